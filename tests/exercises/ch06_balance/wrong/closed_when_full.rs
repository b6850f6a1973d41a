// expect: there are 2 ranges for 3 stages

use std::ops::Range;

/// Closes a stage once it has its fair share: with a large layer at the end, nothing is left for the last stages.
pub fn balance(costs: &[u64], stages: usize) -> Vec<Range<usize>> {
    let share = costs.iter().sum::<u64>().div_ceil(stages as u64);
    let mut ranges = Vec::new();
    let (mut begin, mut size) = (0, 0);
    for (layer, cost) in costs.iter().enumerate() {
        size += cost;
        if size >= share || layer + 1 == costs.len() {
            ranges.push(begin..layer + 1);
            (begin, size) = (layer + 1, 0);
        }
    }
    ranges
}
