// expect: got      7: 3 | 3 3 | 3 3 1

use std::ops::Range;

/// A fair share of what is left, anew for each stage: better than one share for all, and still greedy.
pub fn balance(costs: &[u64], stages: usize) -> Vec<Range<usize>> {
    let mut ranges = Vec::new();
    let mut begin = 0;
    for rest in (1..stages).rev() {
        let share = costs[begin..].iter().sum::<u64>() as f64 / (rest + 1) as f64;
        let mut end = begin + 1;
        let mut size = costs[begin];
        while end + rest < costs.len() && (size + costs[end]) as f64 <= share {
            size += costs[end];
            end += 1;
        }
        ranges.push(begin..end);
        begin = end;
    }
    ranges.push(begin..costs.len());
    ranges
}
