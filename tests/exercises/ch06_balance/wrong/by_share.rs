// expect: what the other stages left is all in the last one

use std::ops::Range;

/// Goes on until a stage has its fair share; the last one gets the rest.
pub fn balance(costs: &[u64], stages: usize) -> Vec<Range<usize>> {
    let share = costs.iter().sum::<u64>() / stages as u64;
    let mut ranges = Vec::new();
    let mut begin = 0;
    for rest in (1..stages).rev() {
        let mut end = begin + 1;
        let mut size = costs[begin];
        while end + rest < costs.len() && size + costs[end] <= share {
            size += costs[end];
            end += 1;
        }
        ranges.push(begin..end);
        begin = end;
    }
    ranges.push(begin..costs.len());
    ranges
}
