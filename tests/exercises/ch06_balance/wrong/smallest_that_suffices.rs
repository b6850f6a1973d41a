// expect: there are 2 ranges for 3 stages

use std::ops::Range;

/// Finds the smallest size that suffices, then fills stages up to it: all layers fit into fewer stages.
pub fn balance(costs: &[u64], stages: usize) -> Vec<Range<usize>> {
    let fill = |limit: u64| {
        let mut ranges = Vec::new();
        let (mut begin, mut size) = (0, 0);
        for (layer, &cost) in costs.iter().enumerate() {
            if size + cost > limit && layer > begin {
                ranges.push(begin..layer);
                (begin, size) = (layer, 0);
            }
            size += cost;
        }
        ranges.push(begin..costs.len());
        ranges
    };
    let (mut low, mut high) = (*costs.iter().max().unwrap(), costs.iter().sum());
    while low < high {
        let middle = (low + high) / 2;
        if fill(middle).len() <= stages {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    fill(low)
}
