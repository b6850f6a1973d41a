// expect: layer 2 is in stage 0 and in stage 1

use std::ops::Range;

/// The best cut of the first layers into some stages.
#[derive(Clone, Copy)]
struct Best {
    /// Its largest stage.
    largest: u64,
    /// Where its last stage begins.
    begin: usize,
}

/// Takes the end of a range for its last layer: stages share the layer at the boundary.
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
                last += costs[begin];
                let largest = last.max(best[s - 1][begin].largest);
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
        ranges.push(begin..(end + 1).min(layers));
        end = begin;
    }
    ranges.reverse();
    ranges
}
