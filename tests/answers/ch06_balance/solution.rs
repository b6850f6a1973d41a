//! The last stage begins somewhere. For every place, the layers before it are a smaller question of the same kind,
//! and its answer is known by then.

use std::ops::Range;

/// The best cut of the first layers into some stages.
#[derive(Clone, Copy)]
struct Best {
    /// Its largest stage.
    largest: u64,
    /// Where its last stage begins.
    begin: usize,
}

pub fn balance(costs: &[u64], stages: usize) -> Vec<Range<usize>> {
    let layers = costs.len();
    let sums: Vec<u64> = (0..=layers).map(|end| costs[..end].iter().sum()).collect();
    let one_stage = sums.iter().map(|&largest| Best { largest, begin: 0 }).collect();
    // best[s][end]: layers 0..end in s + 1 stages.
    let mut best: Vec<Vec<Best>> = vec![one_stage];
    for s in 1..stages {
        let before = &best[s - 1];
        let with_last = |begin: usize, end: usize| {
            let largest = before[begin].largest.max(sums[end] - sums[begin]);
            Best { largest, begin }
        };
        let of_first = |end: usize| {
            let cuts = (s..end).map(|begin| with_last(begin, end));
            // Where layers are too few, any value will do: nobody asks for it.
            cuts.min_by_key(|cut| cut.largest).unwrap_or(before[end])
        };
        let row = (0..=layers).map(of_first).collect();
        best.push(row);
    }
    let mut ranges = Vec::new();
    let mut end = layers;
    for row in best.iter().rev() {
        let begin = row[end].begin;
        ranges.push(begin..end);
        end = begin;
    }
    ranges.reverse();
    ranges
}

exercises::check!(ch06_balance, balance, run);
