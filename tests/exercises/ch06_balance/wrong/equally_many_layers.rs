// expect: stages have equally many layers, but layers do not cost the same

use std::ops::Range;

/// Counts layers in place of adding up what they cost.
pub fn balance(costs: &[u64], stages: usize) -> Vec<Range<usize>> {
    let begin = |stage| costs.len() * stage / stages;
    (0..stages).map(|stage| begin(stage)..begin(stage + 1)).collect()
}
