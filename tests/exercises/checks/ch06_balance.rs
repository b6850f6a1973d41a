//! Chapter 6, `book/src/ch06-model-parallel.md`: a list of layers, cut into stages.
//!
//! Each law of a cut in turn, and then its largest stage, compared with the smallest limit that suffices. The message names the
//! first law that is broken.

use std::cmp::Ordering;
use std::fmt;
use std::ops::Range;

use crate::call;
use crate::prelude::*;

/// Costs of layers, and the number of stages; the layers of each stage.
pub type Answer = fn(&[u64], usize) -> Vec<Range<usize>>;

/// The laws of an answer.
pub const LAWS: &[Law<Answer>] = laws![
    the_largest_stage_is_as_small_as_it_can_be: is_best in few_layers(),
    hundreds_of_layers,
    every_digit_counts: is_best in large_costs(),
];

const DEVICES: &str = "there is a device for each stage, and none is left without layers";
const ORDER: &str =
    "each stage sends its result to the next one, so layers are in the order of stages";
const ENDS: &str = "a range does not include its end: each stage begins where the one before it ends, the first at \
                    0, and the last one ends at the number of layers";
const DIGITS: &str = "costs are whole numbers, and every digit counts: no tolerance, and no float; the sum of all costs fits into \
                      u64, and a larger number need not";
const SLOWEST: &str = "a pipeline is as fast as its slowest stage, which all others wait for";

const FEW: usize = 12;

/// Larger costs have more digits than f32.
const FEW_DIGITS: u64 = 1 << 24;

/// A measure of stage sizes that an answer may have used, and whether less or more of it is better.
type Measure = (&'static str, fn(&[u64]) -> u64, Ordering);

#[derive(Clone)]
struct Case {
    costs: Vec<u64>,
    stages: usize,
    expected: Vec<Range<usize>>,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.costs.len() {
            0..=FEW => write!(f, "costs {}, ", in_a_row(&self.costs))?,
            layers => write!(f, "{layers} layers, ")?,
        }
        write!(f, "{} stages", self.stages)
    }
}

impl Case {
    fn new(costs: &[u64], stages: usize) -> Self {
        let (mut low, mut high) = (largest(costs), costs.iter().sum::<u64>());
        while low < high {
            let middle = low + (high - low) / 2;
            let enough = filled(costs, stages, middle).len() <= stages;
            (low, high) = if enough { (low, middle) } else { (middle + 1, high) };
        }
        Self { costs: costs.to_vec(), stages, expected: filled(costs, stages, low) }
    }

    fn sizes(&self, cut: &[Range<usize>]) -> Vec<u64> {
        cut.iter().map(|range| self.costs[range.clone()].iter().sum()).collect()
    }

    /// The size of the largest stage, and the costs of all if they are few.
    fn shown(&self, cut: &[Range<usize>]) -> String {
        let groups: Vec<_> = cut.iter().map(|range| self.costs[range.clone()].to_vec()).collect();
        match self.costs.len() {
            0..=FEW => format!("{}: {}", largest(&self.sizes(cut)), in_groups(&groups)),
            _ => largest(&self.sizes(cut)).to_string(),
        }
    }

    /// A guess at the rule of a cut, from its sizes and the best ones.
    fn guess(&self, found: &[Range<usize>]) -> String {
        let [sizes, best] = [found, &self.expected].map(|cut| self.sizes(cut));
        let counts: Vec<u64> = found.iter().map(|range| range.len() as u64).collect();
        if spread(&counts) == 0 {
            return ": stages have equally many layers, but layers do not cost the same".to_owned();
        }
        let share = sizes.iter().sum::<u64>() as f64 / self.stages as f64;
        if sizes.iter().rev().skip(1).all(|&size| size as f64 <= share) {
            return ": the last stage has all layers that are left".to_owned();
        }
        let measures: [Measure; 3] = [
            ("the sum of squares", squares, Ordering::Less),
            ("the difference between the largest and the smallest", spread, Ordering::Less),
            ("the smallest stage", smallest, Ordering::Greater),
        ];
        let improved = measures.iter().filter_map(|(what, of, better)| {
            let (got, expected) = (of(&sizes), of(&best));
            let word = if *better == Ordering::Less { "smaller" } else { "larger" };
            (got.cmp(&expected) == *better)
                .then(|| format!("{what} is {word} ({got}, not {expected})"))
        });
        match improved.collect::<Vec<_>>().join(", ") {
            nothing if nothing.is_empty() => nothing,
            improved => format!(": {improved}, but nobody waits for that"),
        }
    }
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

fn largest(sizes: &[u64]) -> u64 {
    sizes.iter().copied().max().unwrap_or(0)
}

fn smallest(sizes: &[u64]) -> u64 {
    sizes.iter().copied().min().unwrap_or(0)
}

fn spread(sizes: &[u64]) -> u64 {
    largest(sizes) - smallest(sizes)
}

fn squares(sizes: &[u64]) -> u64 {
    sizes.iter().map(|size| size.saturating_mul(*size)).fold(0, u64::saturating_add)
}

/// The laws of a cut in turn.
fn is_best(answer: Answer, case: &Case) -> Outcome {
    let found = answer(&case.costs, case.stages);
    let shown = |ranges: &[Range<usize>]| match ranges.len() {
        0..=FEW => format!("{ranges:?}"),
        many => format!("{:?}, … ({many} stages)", &ranges[..FEW]),
    };
    let broken = |what: String, law: &str| {
        Err(Finding::new(what).expected(shown(&case.expected), shown(&found)).law(law))
    };
    if found.len() != case.stages {
        return broken(
            format!("there are {} ranges for {} stages", found.len(), case.stages),
            DEVICES,
        );
    }
    if let Some(stage) = found.iter().position(Range::is_empty) {
        return broken(format!("stage {stage} has no layer"), DEVICES);
    }
    if let Some(stage) = (1..found.len()).find(|&stage| found[stage].start < found[stage - 1].start)
    {
        let [begin, before] = [stage, stage - 1].map(|stage| found[stage].start);
        let what =
            format!("stage {stage} begins at layer {begin}, and stage {} at {before}", stage - 1);
        return broken(what, ORDER);
    }
    let mut end = 0;
    for (stage, range) in found.iter().enumerate() {
        match range.start.cmp(&end) {
            Ordering::Less => {
                let (begin, before) = (range.start, stage.max(1) - 1);
                return broken(
                    format!("layer {begin} is in stage {before} and in stage {stage}"),
                    ENDS,
                );
            }
            Ordering::Equal => end = range.end,
            Ordering::Greater => return broken(format!("no stage has layer {end}"), ENDS),
        }
    }
    match (end, case.costs.len()) {
        (end, layers) if end < layers => return broken(format!("no stage has layer {end}"), ENDS),
        (end, layers) if end > layers => {
            return broken(
                format!("there is no layer {layers}, but the last stage ends at {end}"),
                ENDS,
            );
        }
        _ => {}
    }
    let [wanted, got] = [&case.expected, &found].map(|cut| largest(&case.sizes(cut)));
    demand(wanted <= FEW_DIGITS || got == wanted || got - wanted > wanted / 1000, || {
        let what = "the largest stage is nearly as small as it can be";
        Finding::new(what).expected(wanted, got).law(DIGITS)
    })?;
    demand(got == wanted, || {
        Finding::new(format!(
            "the largest stage is not as small as it can be{}",
            case.guess(&found)
        ))
        .expected(case.shown(&case.expected), case.shown(&found))
        .law(SLOWEST)
    })
}

/// The example; layers that cost more and more, or less and less; a large layer between small ones, first, in between and last;
/// layers that cost nothing; one stage; a stage for each layer. Then up to five layers that cost 0 to 3, in all ways.
fn few_layers() -> Vec<Case> {
    const CASES: [(&[u64], usize); 13] = [
        (&[3, 3, 3, 3, 3, 1], 3),
        (&[1, 2, 3, 4, 5, 6], 3),
        (&[6, 5, 4, 3, 2, 1], 3),
        (&[1, 5, 3, 2], 3),
        (&[1, 6, 3, 3], 3),
        (&[20, 1, 1, 1, 1, 1], 3),
        (&[1, 1, 20, 1, 1, 1], 4),
        (&[1, 1, 1, 1, 1, 20], 3),
        (&[0, 0, 4, 0, 0, 4, 0], 4),
        (&[0, 0, 0], 2),
        (&[4, 1, 5], 1),
        (&[4, 1, 5], 3),
        (&[7], 1),
    ];
    let mut cases: Vec<Case> = CASES.map(|(costs, stages)| Case::new(costs, stages)).into();
    for layers in 1..=5u32 {
        for number in 0..4u64.pow(layers) {
            let costs: Vec<u64> = (0..layers).map(|i| number / 4u64.pow(i) % 4).collect();
            cases.extend((1..=costs.len()).map(|stages| Case::new(&costs, stages)));
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
    let nine = [(9, 3), (14, 4), (40, 7)].into_iter().flat_map(|(layers, stages)| {
        let first = |i| 300_000_000 + i * i * 7919 % 1009 * 1000;
        let second = |i| 16_777_216 + i * 31 % 7;
        let of = |cost: &dyn Fn(u64) -> u64| {
            Case::new(&(0..layers).map(cost).collect::<Vec<_>>(), stages)
        };
        [of(&first), of(&second)]
    });
    nine.chain(CASES.map(|(costs, stages)| Case::new(costs, stages))).collect()
}

fn hundreds_of_layers(answer: Answer) -> Outcome {
    let costs: Vec<u64> = (0..300).map(|i| i * i * 31 % 101).collect();
    let case = Case::new(&costs, 12);
    let told = case.to_string();
    let cut = call::within(&told, move || is_best(answer, &case)).map_err(|slow| {
        slow.law(
            "the best cut of the first layers into so many stages is asked for again and again; there are n · p such \
             questions, and each has to be answered once",
        )
    })?;
    cut.map_err(|finding| finding.at(told))
}

/// The expected cuts are stage 6's, where f64 is exact.
#[test]
fn stage_6_cuts_as_well() {
    use model_parallel::partition::cut;

    for case in few_layers() {
        let exact: Vec<f64> = case.costs.iter().map(|&cost| cost as f64).collect();
        let theirs = case.sizes(&cut(&exact, case.stages).unwrap());
        assert_eq!(largest(&theirs), largest(&case.sizes(&case.expected)), "{case}");
    }
}
