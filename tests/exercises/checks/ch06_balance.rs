//! Chapter 6a, `book/src/ch06a-better-lists.md`: a list of layers, cut into stages.
//!
//! Each law of a cut in turn, and then its largest stage, compared with the smallest limit that suffices. The message names the
//! first law that is broken.

use std::ops::Range;

use crate::prelude::*;

/// Costs of layers, and the number of stages; the layers of each stage.
pub type Answer = fn(&[u64], usize) -> Vec<Range<usize>>;

pub const LAWS: &[Law<Answer>] = laws![
    the_largest_stage_is_as_small_as_it_can_be: is_best in few_layers(),
    every_question_is_answered_once: is_best in
        [Case { costs: (0..300).map(|i| i * i * 31 % 101).collect(), stages: 12 }],
    every_digit_counts: is_best in large_costs(),
];

const DEVICES: &str = "there is a device for each stage, and none is left without layers";
const ORDER: &str = "each stage sends its result to the next: layers are in their order";
const ENDS: &str = "a range does not include its end: each stage begins where the one before it ends, and the stages have all layers";
const DIGITS: &str = "costs are whole numbers, and every digit counts: no tolerance, no float; only the sum of all costs fits into u64";
const SLOWEST: &str = "a pipeline is as fast as its slowest stage, which all others wait for";

const FEW: usize = 12;

/// Larger costs have more digits than f32.
const FEW_DIGITS: u64 = 1 << 24;

struct Case {
    costs: Vec<u64>,
    stages: usize,
}

shown!(Case { costs, stages } => "{}, {stages} stages", match costs.len() {
    ..=FEW => format!("costs {}", in_a_row(costs)),
    layers => format!("{layers} layers"),
});

fn case((costs, stages): (&[u64], usize)) -> Case {
    Case { costs: costs.to_vec(), stages }
}

/// The example; layers that cost more and more, or less and less; a large layer between small ones, first, in between and last;
/// layers that cost nothing; one stage; a stage for each layer. Then up to five layers that cost 0 to 3, in all ways.
fn few_layers() -> Vec<Case> {
    const CASES: [(&[u64], usize); 10] = [
        (&[3, 3, 3, 3, 3, 1], 3),
        (&[1, 2, 3, 4, 5, 6], 3),
        (&[6, 5, 4, 3, 2, 1], 3),
        (&[1, 5, 3, 2], 3),
        (&[1, 6, 3, 3], 3),
        (&[20, 1, 1, 1, 1, 1], 3),
        (&[1, 1, 20, 1, 1, 1], 4),
        (&[1, 1, 1, 1, 1, 20], 3),
        (&[0, 0, 4, 0, 0, 4, 0], 4),
        (&[7], 1),
    ];
    let mut cases: Vec<Case> = CASES.map(case).into();
    for layers in 1..=5u32 {
        for number in 0..4u64.pow(layers) {
            let costs: Vec<u64> = (0..layers).map(|i| number / 4u64.pow(i) % 4).collect();
            cases.extend((1..=costs.len()).map(|stages| case((&costs, stages))));
        }
    }
    cases
}

/// Costs with nine digits, which f32 has no room for; their sum is beyond 32 bits. Numbers above those that f64 can tell apart; sums
/// above the largest i64; the largest sum.
fn large_costs() -> Vec<Case> {
    const F64: u64 = 1 << 53;
    const I64: u64 = 1 << 63;
    const CASES: [(&[u64], usize); 6] = [
        (&[F64 + 3, F64 + 2, F64, F64 + 1, F64 + 1, F64 + 2, F64 + 3], 3),
        (&[F64, F64 + 3, 1, 1, F64 + 1], 2),
        (&[I64 / 2, I64 / 2 + 1, I64 / 2 - 1, 3, 2, 7], 3),
        (&[I64, 5, I64 - 10], 2),
        (&[I64 / 2, I64 / 2, I64 / 2], 2),
        (&[u64::MAX - 10, 3, 4, 1, 2], 4),
    ];
    let nine_digits = |(layers, stages)| {
        let costs = (0..layers).map(|i| 300_000_000 + i * i * 7919 % 1009 * 1000).collect();
        Case { costs, stages }
    };
    let nine_digits = [(9, 3), (14, 4), (40, 7)].map(nine_digits);
    nine_digits.into_iter().chain(CASES.map(case)).collect()
}

/// Fills stages in order up to a limit, and leaves a layer for each stage that follows.
fn filled(costs: &[u64], stages: usize, limit: u64) -> Vec<Range<usize>> {
    let (mut ranges, mut begin, mut size) = (Vec::new(), 0, 0u64);
    for (layer, &cost) in costs.iter().enumerate().skip(1) {
        size += costs[layer - 1];
        let fits = size <= limit && cost <= limit - size;
        if !fits || costs.len() - layer < stages.saturating_sub(ranges.len()) {
            ranges.push(begin..layer);
            (begin, size) = (layer, 0);
        }
    }
    ranges.push(begin..costs.len());
    ranges
}

/// A cut with the smallest largest stage: no smaller limit suffices.
fn best(Case { costs, stages }: &Case) -> Vec<Range<usize>> {
    let (mut low, mut high) = (largest(costs), costs.iter().sum::<u64>());
    while low < high {
        let middle = low + (high - low) / 2;
        let enough = filled(costs, *stages, middle).len() <= *stages;
        (low, high) = if enough { (low, middle) } else { (middle + 1, high) };
    }
    filled(costs, *stages, low)
}

fn largest(sizes: &[u64]) -> u64 {
    sizes.iter().copied().max().unwrap_or(0)
}

/// The laws of a cut in turn.
fn is_best(answer: Answer, case: &Case) -> Outcome {
    let Case { costs, stages } = case;
    let (layers, best, found) = (costs.len(), best(case), answer(costs, *stages));
    let broken = |what: String, law: &str| {
        let shown = |ranges: &[Range<usize>]| match ranges.len() {
            0..=FEW => format!("{ranges:?}"),
            many => format!("{:?}, … ({many} stages)", &ranges[..FEW]),
        };
        Err(Finding::new(what).expected(shown(&best), shown(&found)).law(law))
    };
    if found.len() != *stages {
        return broken(format!("there are {} ranges for {stages} stages", found.len()), DEVICES);
    }
    if let Some(stage) = found.iter().position(Range::is_empty) {
        return broken(format!("stage {stage} has no layer"), DEVICES);
    }
    if let Some(at) = (1..found.len()).find(|&at| found[at].start < found[at - 1].start) {
        let [begin, before] = [at, at - 1].map(|stage| found[stage].start);
        let what = format!("stage {at} begins at layer {begin}, and stage {} at {before}", at - 1);
        return broken(what, ORDER);
    }
    let begins = found.iter().map(|range| range.start).chain([layers]).enumerate();
    let ends = [0].into_iter().chain(found.iter().map(|range| range.end));
    if let Some(((stage, begin), end)) = begins.zip(ends).find(|((_, begin), end)| begin != end) {
        let what = match stage {
            _ if begin > end => format!("no stage has layer {end}"),
            _ if stage < *stages => format!("layer {begin} is in stages {} and {stage}", stage - 1),
            _ => format!("there is no layer {layers}, but the last stage ends at {end}"),
        };
        return broken(what, ENDS);
    }
    let [best_sizes, sizes] = [&best, &found]
        .map(|cut| cut.iter().map(|range| costs[range.clone()].iter().sum()).collect::<Vec<u64>>());
    let [wanted, got] = [&best_sizes, &sizes].map(|sizes| largest(sizes));
    let what = "the largest stage is nearly as small as it can be";
    let is_near = wanted > FEW_DIGITS && got != wanted && got - wanted <= wanted / 1000;
    expect(!is_near, what, (wanted, got), DIGITS)?;
    demand(got == wanted, || {
        let groups = |cut: &[Range<usize>], largest| match layers {
            ..=FEW => {
                let groups = cut.iter().map(|stage| costs[stage.clone()].to_vec());
                format!("{largest}: {}", in_groups(&groups.collect::<Vec<_>>()))
            }
            _ => format!("{largest}: many"),
        };
        let what = "the largest stage is not as small as it can be";
        Finding::new(format!("{what}{}", guess(&found, &sizes, &best_sizes)))
            .expected(groups(&best, wanted), groups(&found, got))
            .law(SLOWEST)
    })
}

/// A guess at the rule of a cut, from its sizes and the best ones; may be empty.
fn guess(found: &[Range<usize>], sizes: &[u64], best: &[u64]) -> String {
    if found.iter().all(|range| range.len() == found[0].len()) {
        return ": stages have equally many layers, but layers do not cost the same".to_owned();
    }
    let share = sizes.iter().sum::<u64>() as f64 / sizes.len() as f64;
    if sizes.iter().rev().skip(1).all(|&size| size as f64 <= share) {
        return ": the last stage has all layers that are left".to_owned();
    }
    let [got, wanted] = [sizes, best].map(|sizes| {
        sizes.iter().map(|size| size.saturating_mul(*size)).fold(0, u64::saturating_add)
    });
    if got >= wanted {
        return String::new();
    }
    format!(": the sum of squares is smaller ({got}, not {wanted}), but nobody waits for that")
}
