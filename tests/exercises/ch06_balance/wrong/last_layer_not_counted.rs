// expect: the largest stage is not as small as it can be

use std::ops::Range;

/// The best cut of the first layers into some stages.
#[derive(Clone, Copy)]
struct Best {
    /// Its largest stage.
    largest: u64,
    /// Where its last stage begins.
    begin: usize,
}

/// Adds up one layer too few: a stage looks as if its first layer cost nothing.
pub fn balance(costs: &[u64], stages: usize) -> Vec<Range<usize>> {
    let layers = costs.len();
    // best[s][end]: layers 0..end in s stages. Where layers are too few for that, it stays as it is here.
    let impossible = Best { largest: u64::MAX, begin: 0 };
    let mut best = vec![vec![impossible; layers + 1]; stages + 1];
    best[0][0].largest = 0;
    for s in 1..=stages {
        for end in 1..=layers {
            let mut last = 0;
            for begin in (0..end).rev() {
                let largest = last.max(best[s - 1][begin].largest);
                last += costs[begin];
                if largest < best[s][end].largest {
                    best[s][end] = Best { largest, begin };
                }
            }
        }
    }
    let mut ranges = Vec::new();
    let mut end = layers;
    for s in (1..=stages).rev() {
        let begin = best[s][end].begin;
        ranges.push(begin..end);
        end = begin;
    }
    ranges.reverse();
    ranges
}
