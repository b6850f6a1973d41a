//! Chapter 6, `book/src/ch06-model-parallel.md`: a list of layers, cut into stages.
//!
//! Each law of a cut in turn, and then its largest stage, compared with stage 6's. The message names the first law that is
//! broken.

use std::cmp::Ordering;
use std::ops::Range;

use crate::prelude::*;
use model_parallel::partition::cut;

/// Costs of layers, and the number of stages; the layers of each stage.
pub type Answer = fn(&[u64], usize) -> Vec<Range<usize>>;

/// The laws of an answer.
pub const LAWS: &[Law<Answer>] =
    laws![the_largest_stage_is_as_small_as_it_can_be, hundreds_of_layers, every_digit_counts];

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

impl Case {
    fn new(costs: &[u64], stages: usize) -> Self {
        // Whole numbers this small are exact in f64.
        let exact: Vec<f64> = costs.iter().map(|&cost| cost as f64).collect();
        let expected = cut(&exact, stages).expect("there is a layer for each stage");
        Self { costs: costs.to_vec(), stages, expected }
    }

    fn told(&self) -> String {
        let Self { costs, stages, .. } = self;
        match costs.len() {
            0..=FEW => format!("costs {}, {stages} stages", in_a_row(costs)),
            layers => format!("{layers} layers, {stages} stages"),
        }
    }

    fn fail(&self, what: &str, found: &[Range<usize>], law: &str) -> ! {
        let ranges = |ranges: &[Range<usize>]| match ranges.len() {
            0..=FEW => format!("{ranges:?}"),
            many => format!("{:?}, … ({many} stages)", &ranges[..FEW]),
        };
        fail(&format!("{}: {what}", self.told()), &ranges(&self.expected), &ranges(found), law)
    }

    fn check(&self, answer: Answer) {
        given(self.told());
        let found = answer(&self.costs, self.stages);
        self.a_range_for_each_stage(&found);
        self.stages_are_in_order(&found);
        self.every_layer_once(&found);
        self.the_largest_is_as_small_as_it_can_be(&found);
    }

    fn a_range_for_each_stage(&self, found: &[Range<usize>]) {
        let law = "there is a device for each stage, and none is left without layers";
        if found.len() != self.stages {
            let what = format!("there are {} ranges for {} stages", found.len(), self.stages);
            self.fail(&what, found, law);
        }
        if let Some(stage) = found.iter().position(Range::is_empty) {
            self.fail(&format!("stage {stage} has no layer"), found, law);
        }
    }

    fn stages_are_in_order(&self, found: &[Range<usize>]) {
        let begins = found.iter().map(|range| range.start);
        let mut pairs = begins.clone().zip(begins.skip(1)).enumerate();
        if let Some((stage, (before, begin))) = pairs.find(|(_, (before, begin))| begin < before) {
            let what = format!(
                "stage {} begins at layer {begin}, and stage {stage} at {before}",
                stage + 1
            );
            let law =
                "each stage sends its result to the next one, so layers are in the order of stages";
            self.fail(&what, found, law);
        }
    }

    fn every_layer_once(&self, found: &[Range<usize>]) {
        let law = "a range does not include its end: each stage begins where the one before it ends, the first at \
                   0, and the last one ends at the number of layers";
        let layers = self.costs.len();
        let ends = std::iter::once(0).chain(found.iter().map(|range| range.end));
        for (stage, (end, range)) in ends.zip(found).enumerate() {
            let begin = range.start;
            if begin < end {
                let what =
                    format!("layer {begin} is in stage {} and in stage {stage}", stage.max(1) - 1);
                self.fail(&what, found, law);
            }
            if begin > end {
                self.fail(&format!("no stage has layer {end}"), found, law);
            }
        }
        let end = found.last().map_or(0, |range| range.end);
        if end > layers {
            let what = format!("there is no layer {layers}, but the last stage ends at {end}");
            self.fail(&what, found, law);
        }
        if end < layers {
            self.fail(&format!("no stage has layer {end}"), found, law);
        }
    }

    fn the_largest_is_as_small_as_it_can_be(&self, found: &[Range<usize>]) {
        let sizes = |ranges: &[Range<usize>]| -> Vec<u64> {
            ranges.iter().map(|range| self.costs[range.clone()].iter().sum()).collect()
        };
        let [best, sizes] = [sizes(&self.expected), sizes(found)];
        let (got, wanted) = (largest(&sizes), largest(&best));
        if got == wanted {
            return;
        }
        if wanted > FEW_DIGITS && (got - wanted) * 1000 < wanted {
            let what =
                format!("{}: the largest stage is nearly as small as it can be", self.told());
            let law = "costs are whole numbers, and every digit counts: no tolerance, and no f32";
            fail(&what, &wanted.to_string(), &got.to_string(), law);
        }
        let shown = |ranges: &[Range<usize>], sizes: &[u64]| {
            let largest = largest(sizes);
            let groups = ranges.iter().map(|range| self.costs[range.clone()].to_vec());
            match self.costs.len() {
                0..=FEW => format!("{largest}: {}", in_groups(&groups.collect::<Vec<_>>())),
                _ => largest.to_string(),
            }
        };
        fail(
            &format!(
                "{}: the largest stage is not as small as it can be{}",
                self.told(),
                self.guess(found, &sizes, &best)
            ),
            &shown(&self.expected, &best),
            &shown(found, &sizes),
            "a pipeline is as fast as its slowest stage, which all others wait for",
        )
    }

    /// A guess at the rule of the answer, from its sizes and the best ones.
    fn guess(&self, found: &[Range<usize>], sizes: &[u64], best: &[u64]) -> String {
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
            let (got, expected) = (of(sizes), of(best));
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

fn the_largest_stage_is_as_small_as_it_can_be(answer: Answer) {
    within("cutting a few layers", move || {
        // The example; layers that cost more and more, or less and less; a large layer between small ones, first, in
        // between and last; layers that cost nothing; one stage; a stage for each layer.
        Case::new(&[3, 3, 3, 3, 3, 1], 3).check(answer);
        Case::new(&[1, 2, 3, 4, 5, 6], 3).check(answer);
        Case::new(&[6, 5, 4, 3, 2, 1], 3).check(answer);
        Case::new(&[1, 5, 3, 2], 3).check(answer);
        Case::new(&[1, 6, 3, 3], 3).check(answer);
        Case::new(&[20, 1, 1, 1, 1, 1], 3).check(answer);
        Case::new(&[1, 1, 20, 1, 1, 1], 4).check(answer);
        Case::new(&[1, 1, 1, 1, 1, 20], 3).check(answer);
        Case::new(&[0, 0, 4, 0, 0, 4, 0], 4).check(answer);
        Case::new(&[0, 0, 0], 2).check(answer);
        Case::new(&[4, 1, 5], 1).check(answer);
        Case::new(&[4, 1, 5], 3).check(answer);
        Case::new(&[7], 1).check(answer);
        // Up to five layers that cost 0 to 3, in all ways.
        for layers in 1..=5u32 {
            for number in 0..4u64.pow(layers) {
                let costs: Vec<u64> = (0..layers).map(|i| number / 4u64.pow(i) % 4).collect();
                for stages in 1..=costs.len() {
                    Case::new(&costs, stages).check(answer);
                }
            }
        }
    });
}

/// Costs with nine digits, which f32 has no room for; their sum is beyond 32 bits.
fn every_digit_counts(answer: Answer) {
    within("cutting layers that cost much", move || {
        for (layers, stages) in [(9, 3), (14, 4), (40, 7)] {
            let costs: Vec<u64> =
                (0..layers).map(|i| 300_000_000 + i * i * 7919 % 1009 * 1000).collect();
            Case::new(&costs, stages).check(answer);
            let costs: Vec<u64> = (0..layers).map(|i| 16_777_216 + i * 31 % 7).collect();
            Case::new(&costs, stages).check(answer);
        }
    });
}

fn hundreds_of_layers(answer: Answer) -> Outcome {
    let costs: Vec<u64> = (0..300).map(|i| i * i * 31 % 101).collect();
    let case = Case::new(&costs, 12);
    let cut = crate::call::within(&case.told(), move || case.check(answer));
    cut.map_err(|slow| {
        slow.law(
            "the best cut of the first layers into so many stages is asked for again and again; there are n · p such \
             questions, and each has to be answered once",
        )
    })
}
