// expect: 300 layers, 12 stages: no cut within 10 s

use std::ops::Range;

/// Right, and asks the same question again and again: with hundreds of layers it never ends.
pub fn balance(costs: &[u64], stages: usize) -> Vec<Range<usize>> {
    fn best(costs: &[u64], end: usize, stages: usize) -> (u64, Vec<Range<usize>>) {
        if stages == 1 {
            return (costs[..end].iter().sum(), vec![0..end]);
        }
        (stages - 1..end)
            .map(|begin| {
                let (largest, mut ranges) = best(costs, begin, stages - 1);
                ranges.push(begin..end);
                (largest.max(costs[begin..end].iter().sum()), ranges)
            })
            .min_by_key(|(largest, _)| *largest)
            .unwrap()
    }
    best(costs, costs.len(), stages).1
}
