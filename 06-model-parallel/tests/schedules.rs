//! Generated schedules: they keep the laws, and the literature's formulas hold.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the right answer")]

use std::collections::HashMap;

use model_parallel::orders::MOST_CHUNKS;
use model_parallel::simulate::Span;

use crate::prelude::*;

const KINDS: [Kind; 6] = [
    Kind::Naive,
    Kind::GPipe,
    Kind::OneFOneB,
    Kind::Interleaved { chunks: 2 },
    Kind::Interleaved { chunks: 4 },
    Kind::ZbH1,
];

/// Stages 1 to 8, micro-batches 1 to 32.
fn sizes() -> impl Iterator<Item = (usize, usize)> {
    (1..=8).flat_map(|stages| (1..=32).map(move |micro_batches| (stages, micro_batches)))
}

/// All schedules of a kind that there are.
fn all(kind: Kind) -> impl Iterator<Item = (usize, usize, Checked)> {
    sizes().filter_map(move |(stages, micro_batches)| {
        let schedule = kind.schedule(stages, micro_batches).ok()?;
        let checked = check(schedule, UNBOUNDED);
        let checked = checked.unwrap_or_else(|e| panic!("{kind} {stages} × {micro_batches}: {e}"));
        Some((stages, micro_batches, checked))
    })
}

fn timeline(checked: &Checked, forward: f64, input: f64, weight: f64) -> Timeline {
    let cost = Cost {
        forward,
        backward: input + weight,
        backward_input: input,
        backward_weight: weight,
        ..Cost::UNITS
    };
    let units = checked.schedule().units();
    // The chunks of a stage share its work.
    let cost = cost.faster((units / checked.schedule().stages()) as f64);
    checked.simulate(&vec![cost; units], 0.0).unwrap()
}

#[test]
fn all_generated_schedules_keep_the_laws() {
    for kind in KINDS {
        // Interleaved: the sum over p = 1, …, 8 of ⌊32 / p⌋.
        let expected = if matches!(kind, Kind::Interleaved { .. }) { 85 } else { 256 };
        assert_eq!(all(kind).count(), expected, "{kind}");
    }
}

#[test]
fn what_cannot_be_generated_is_refused() {
    for (stages, micro_batches) in sizes() {
        let refused = Kind::Interleaved { chunks: 2 }.schedule(stages, micro_batches).err();
        let told = refused.map(|refused| refused.to_string()).unwrap_or_default();
        assert_eq!(told.contains("cannot be interleaved"), micro_batches % stages != 0, "{told}");
    }
    for (kind, stages, micro_batches, message) in [
        (
            Kind::Interleaved { chunks: 2 },
            4,
            10,
            "10 micro-batches cannot be interleaved on 4 stages: their number has to be a multiple of 4, such as 12",
        ),
        (
            Kind::Interleaved { chunks: 1 },
            4,
            8,
            "an interleaved schedule has 2 to 26 chunks on each stage, not 1",
        ),
        (
            Kind::Interleaved { chunks: usize::MAX },
            4,
            8,
            "an interleaved schedule has 2 to 26 chunks on each stage, not 18446744073709551615",
        ),
        (
            Kind::OneFOneB,
            0,
            8,
            "0 stages and 8 micro-batches: a schedule needs at least one of each",
        ),
        (Kind::GPipe, 4, 0, "4 stages and 0 micro-batches: a schedule needs at least one of each"),
    ] {
        assert_eq!(kind.schedule(stages, micro_batches).unwrap_err().to_string(), message);
        assert_eq!(kind.check(stages, micro_batches).unwrap_err().to_string(), message);
    }
    assert!(Kind::Interleaved { chunks: MOST_CHUNKS }.schedule(4, 8).is_ok());
}

#[test]
fn activations_alive() {
    let alive = |checked: &Checked| -> Vec<usize> {
        let units = timeline(checked, 1.0, 1.0, 1.0);
        (0..units.stages).map(|stage| units.held(stage).peak.activations).collect()
    };
    for (p, m, checked) in all(Kind::Naive) {
        assert_eq!(alive(&checked), vec![1; p], "naive {p} × {m}");
    }
    for (p, m, checked) in all(Kind::GPipe) {
        assert_eq!(alive(&checked), vec![m; p], "GPipe {p} × {m}");
    }
    for (p, m, checked) in all(Kind::OneFOneB) {
        let at_most: Vec<usize> = (0..p).map(|rank| (p - rank).min(m)).collect();
        assert_eq!(alive(&checked), at_most, "1F1B {p} × {m}");
    }
    for (p, m, checked) in all(Kind::ZbH1) {
        // Until the second half of their backward pass.
        assert!(alive(&checked).iter().all(|&kept| kept <= p), "ZB-H1 {p} × {m}");
    }
}

/// Huang et al. 2019, section 2.3; Narayanan et al. 2021 (Megatron-LM), sections 2.2.1 and 2.2.2.
#[test]
fn bubbles_are_those_of_the_literature() {
    for kind in KINDS {
        for (stages, micro_batches, checked) in all(kind) {
            let (p, m) = (stages as f64, micro_batches as f64);
            let formula = match kind {
                Kind::Naive => (p - 1.0) / p,
                Kind::GPipe | Kind::OneFOneB => (p - 1.0) / (m + p - 1.0),
                Kind::Interleaved { chunks } => (p - 1.0) / (chunks as f64 * m + p - 1.0),
                Kind::ZbH1 => continue,
            };
            for (forward, input, weight) in [(1.0, 0.5, 0.5), (1.0, 1.5, 0.5), (3.0, 0.25, 0.25)] {
                let found = timeline(&checked, forward, input, weight).bubble();
                let what = format!("{kind} {p} × {m}: {found} for {formula}");
                assert!((found - formula).abs() < 1e-12, "{what}");
            }
        }
    }
}

/// Qi et al. 2023, table 2: (p − 1)(tF + tB − tW), which is a third of 1F1B's when all are equal.
#[test]
fn the_bubble_of_zb_h1_is_that_of_its_paper() {
    let times = [0.5, 1.0, 2.0];
    for (p, m, checked) in all(Kind::ZbH1).filter(|(p, m, _)| m >= p) {
        for forward in times {
            for input in times {
                for weight in times {
                    let idle = timeline(&checked, forward, input, weight).makespan()
                        - m as f64 * (forward + input + weight);
                    let saved = weight.min(forward).min(input);
                    let expected = (p - 1) as f64 * (forward + input - saved);
                    assert_eq!(idle, expected, "{p} × {m}: {forward}, {input}, {weight}");
                }
            }
        }
    }
}

/// Every send waits for its receiver: stages 2 to 8, 1 to 32 micro-batches.
#[test]
fn unfused_1f1b_needs_channels_that_hold_one_message() {
    let pipelines = || sizes().filter(|&(stages, _)| stages > 1);
    let schedule = |(p, m)| Kind::OneFOneB.schedule(p, m).unwrap();
    let deadlocks = |capacity| {
        pipelines().filter(|&size| check(schedule(size), capacity).is_err()).collect::<Vec<_>>()
    };
    assert_eq!(pipelines().count(), 224);
    assert_eq!(deadlocks(0).len(), 217);
    assert_eq!(deadlocks(1).len(), 0);
    // The seven that do not: with a single micro-batch, nothing is ever sent both ways at once.
    assert!(deadlocks(0).iter().all(|&(_, m)| m > 1));
}

#[test]
fn the_smallest_capacity_is_the_smallest() {
    for kind in KINDS {
        for (stages, micro_batches, checked) in all(kind) {
            let smallest = checked.smallest_capacity();
            let one_message = match kind {
                Kind::Naive | Kind::GPipe => false,
                Kind::Interleaved { .. } => stages > 1,
                Kind::OneFOneB | Kind::ZbH1 => stages > 1 && micro_batches > 1,
            };
            assert_eq!(smallest, usize::from(one_message), "{kind} {stages} × {micro_batches}");
            assert!(check(checked.schedule().clone(), smallest).is_ok());
            if one_message {
                assert!(check(checked.schedule().clone(), 0).is_err());
            }
        }
    }
}

/// Three stages, or two with two chunks each. All passes take equally long.
#[test]
fn drawings_by_hand_are_what_is_generated() {
    for (kind, micro_batches, column, drawn) in [
        (
            Kind::Naive,
            2,
            1.0,
            "\
stage 0   F0  ··  ··  ··  ··  B0  F1  ··  ··  ··  ··  B1
stage 1   ··  F0  ··  ··  B0  ··  ··  F1  ··  ··  B1  ··
stage 2   ··  ··  F0  B0  ··  ··  ··  ··  F1  B1  ··  ··
",
        ),
        (
            Kind::GPipe,
            4,
            1.0,
            "\
stage 0   F0  F1  F2  F3  ··  ··  ··  ··  B0  B1  B2  B3
stage 1   ··  F0  F1  F2  F3  ··  ··  B0  B1  B2  B3  ··
stage 2   ··  ··  F0  F1  F2  F3  B0  B1  B2  B3  ··  ··
",
        ),
        (
            Kind::OneFOneB,
            4,
            1.0,
            "\
stage 0   F0  F1  F2  ··  ··  B0  F3  B1  ··  B2  ··  B3
stage 1   ··  F0  F1  ··  B0  F2  B1  F3  B2  ··  B3  ··
stage 2   ··  ··  F0  B0  F1  B1  F2  B2  F3  B3  ··  ··
",
        ),
        (
            Kind::Interleaved { chunks: 2 },
            4,
            0.5,
            "\
stage 0   F0a F1a F0b F1b F2a B0b F3a B1b F2b B0a F3b B1a ··  B2b ··  B3b B2a B3a
stage 1   ··  F0a F1a F0b B0b F1b B1b F2a B0a F3a B1a F2b B2b F3b B3b B2a B3a ··
",
        ),
        (
            Kind::ZbH1,
            4,
            1.0,
            "\
stage 0   F0  F1  F2  ··  ··  B0  W0  F3  B1  W1  B2  W2  B3  W3
stage 1   ··  F0  F1  ··  B0  F2  B1  W0  F3  B2  W1  B3  W2  W3
stage 2   ··  ··  F0  B0  F1  B1  F2  B2  W0  F3  B3  W1  W2  W3
",
        ),
    ] {
        let stages = drawn.lines().count();
        let checked = check(kind.schedule(stages, micro_batches).unwrap(), 1).unwrap();
        // A whole backward pass takes one column, and so does each of its halves.
        let weight = if kind == Kind::ZbH1 { 1.0 } else { 0.0 };
        let drawing = timeline(&checked, 1.0, 1.0, weight).drawing(column, usize::MAX);
        assert_eq!(drawn, drawing, "the drawing of {kind}:\n{drawing}");
    }
}

#[test]
fn schedules_come_back_from_json() {
    for kind in KINDS {
        let schedule = kind.schedule(2, 4).unwrap();
        let json = serde_json::to_string(&schedule).unwrap();
        assert_eq!(serde_json::from_str::<Schedule>(&json).unwrap(), schedule, "{json}");
    }
    let json = serde_json::to_string(&Kind::Naive.schedule(1, 1).unwrap()).unwrap();
    let list = r#"[{"unit":0,"do":"forward","micro_batch":0},{"unit":0,"do":"backward","micro_batch":0},{"unit":0,"do":"update"}]"#;
    let before =
        r#""micro_batches":1,"replicas":1,"placement":[0],"first_trained":0,"sharded":false"#;
    assert_eq!(json, format!(r#"{{{before},"lists":[{list}]}}"#));
}

/// All spans in which stages compute, each with the time at which its device and its inputs allow it to begin. A message to
/// another stage takes `message`.
pub fn earliest(checked: &Checked, timeline: &Timeline, message: f64) -> Vec<(Span, f64)> {
    use Action::{
        AllReduce, Backward, BackwardInput, BackwardWeight, Forward, ForwardOnly, Update,
    };
    let schedule = checked.schedule();
    let ends = timeline.spans.iter().map(|span| {
        let Instruction { unit, action } = span.instruction;
        ((unit, action), span.end)
    });
    let ends: HashMap<_, _> = ends.collect();
    // The end of the one or the other, at the stage of another unit.
    let end = |unit: usize, wanted: [Action; 2], user: usize| {
        let is_sent = schedule.placement[unit] != schedule.placement[user];
        let end = wanted.iter().find_map(|action| ends.get(&(unit, *action))).unwrap();
        end + if is_sent { message } else { 0.0 }
    };
    let mut free = vec![0.0; schedule.stages()];
    let computing = timeline.spans.iter().filter(|span| span.instruction.action.computes());
    let with_earliest = computing.map(|span| {
        let Instruction { unit, action } = span.instruction;
        let inputs = match action {
            Forward(i) | ForwardOnly(i) if unit > 0 => {
                vec![end(unit - 1, [Forward(i), ForwardOnly(i)], unit)]
            }
            Backward(i) | BackwardInput(i) if schedule.is_last(unit) => {
                vec![end(unit, [Forward(i); 2], unit)]
            }
            Backward(i) | BackwardInput(i) => {
                let gradient = end(unit + 1, [Backward(i), BackwardInput(i)], unit);
                vec![end(unit, [Forward(i); 2], unit), gradient]
            }
            BackwardWeight(i) => vec![end(unit, [BackwardInput(i); 2], unit)],
            Update => {
                let all = 0..schedule.micro_batches;
                let all = all.map(|i| end(unit, [Backward(i), BackwardWeight(i)], unit));
                all.chain(ends.get(&(unit, AllReduce)).copied()).collect()
            }
            _ => vec![],
        };
        let earliest = inputs.into_iter().fold(free[span.stage], f64::max);
        free[span.stage] = span.end;
        (*span, earliest)
    });
    with_earliest.collect()
}

/// A pass begins when its input is there and its device is free.
#[test]
fn no_pass_could_begin_a_moment_earlier() {
    for kind in KINDS {
        for (stages, micro_batches, checked) in all(kind).filter(|(p, m, _)| p * m <= 64) {
            let timeline = timeline(&checked, 1.0, 0.625, 0.375);
            for (span, earliest) in earliest(&checked, &timeline, 0.0) {
                assert_eq!(span.start, earliest, "{kind} {stages} × {micro_batches}: {span:?}");
            }
        }
    }
}
