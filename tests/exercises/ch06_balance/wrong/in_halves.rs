// expect: costs 3 3 3 3 3 1, 3 stages: the largest stage is not as small as it can be

use std::ops::Range;

/// Cuts in two as well as can be, then each part again: what is best for two is not best for three.
pub fn balance(costs: &[u64], stages: usize) -> Vec<Range<usize>> {
    fn halve(costs: &[u64], layers: Range<usize>, stages: usize) -> Vec<Range<usize>> {
        if stages == 1 {
            return vec![layers];
        }
        let (left, right) = (stages / 2, stages - stages / 2);
        let sum = |range: Range<usize>| costs[range].iter().sum::<u64>();
        let places = layers.start + left..=layers.end - right;
        let middle = places
            .min_by_key(|&middle| sum(layers.start..middle).abs_diff(sum(middle..layers.end)))
            .unwrap();
        let mut ranges = halve(costs, layers.start..middle, left);
        ranges.extend(halve(costs, middle..layers.end, right));
        ranges
    }
    halve(costs, 0..costs.len(), stages)
}
