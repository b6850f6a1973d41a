//! Chapter 6, `book/src/ch06-model-parallel.md`: what a stage of a pipeline does, in the order of 1F1B.
//!
//! Stage 6 checks the lists of all stages as one schedule, and times this schedule. Then come the laws of 1F1B: the update at
//! the end, the activations that a stage keeps, the bubble, and the order.

use std::iter;

use crate::prelude::*;
use model_parallel::check::{Error as Fault, Law as Broken};
use model_parallel::instructions::{Action, Schedule};
use model_parallel::{Checked, Cost, Kind, Timeline, check};

/// A stage, the number of stages and of micro-batches; the actions of the stage.
pub type Answer = fn(usize, usize, usize) -> Vec<Action>;

pub const LAWS: &[Law<Answer>] = laws![stages_take_turns in pipelines()];

const CAPACITY: usize = 1;

/// The number of instructions that a message shows before the wrong one.
const BEFORE: usize = 5;

// Reasons for a bubble that is too large.
const WARM_UP: &str = "a stage goes forward until work has reached the last one: p − r times on stage r, or m times if m is smaller";
const IN_TURN: &str = "when work has reached the last stage, all go forward and backward in turn";
const SENT: &str = "each result is sent before the next pass begins";
const AWAITED: &str = "a message is awaited right before the pass that needs it, and not earlier";

/// The laws of lists that are no schedule.
const NO_SUCH_BATCH: &str = "a stage works on the micro-batches that there are; m may be below p";
const NO_SUCH_STAGE: &str = "no stage comes before the first, and none after the last";
const WHOLE: &str = "a stage holds its layers whole: gathers, frees and chunks are for chapter 7";
const UPDATE_LAST: &str = "the update comes last: until a gradient is sent, a stage waits for it";
const UPDATE_ONCE: &str = "sum, then update once: all micro-batches equal one batch";
const NEEDED_FIRST: &str = "an action comes after the message or the pass that it needs";
const ONCE: &str = "every micro-batch goes forward once and backward once, with one update";
const ALL: &str = "every micro-batch passes all stages, forward and backward; then the update";
const SENDS: &str = "messages arrive in the order of their sends";
const CIRCLE: &str = "before a stage waits for a neighbour, it sends what the neighbour waits for";

// The laws of 1F1B.
const KEPT: &str = "a stage goes backward as soon as it can: it keeps at most one micro-batch for each stage from it to the end";
const IN_ORDER: &str = "micro-batches go forward in their order, and backward in the same order";

/// A pipeline.
#[derive(Clone, Copy)]
struct Case {
    stages: usize,
    micro_batches: usize,
}

shown!(Case { stages, micro_batches } =>
    "{}, {}", counted(*stages, "stage"), counted(*micro_batches, "micro-batch"));

/// The drawing first, then all small pipelines: one stage, more stages than micro-batches, and the other way round.
fn pipelines() -> impl Iterator<Item = Case> {
    let of = |stages| (1..=32).map(move |micro_batches| Case { stages, micro_batches });
    iter::once(Case { stages: 3, micro_batches: 4 }).chain((1..=8).flat_map(of))
}

fn stages_take_turns(answer: Answer, case: &Case) -> Outcome {
    let Case { stages, micro_batches } = *case;
    let lists = Schedule::of(stages, micro_batches, |stage| {
        given(format!("stage {stage} of {stages}, {}", counted(micro_batches, "micro-batch")));
        answer(stage, stages, micro_batches)
    });
    let theirs = Kind::OneFOneB.schedule(stages, micro_batches).expect("a stage and work");
    let theirs = check(theirs, CAPACITY).expect("stage 6's own schedule is sound");
    let found = check(lists.clone(), CAPACITY).map_err(|error| not_sound(&lists, &error))?;
    for (stage, list) in lists.lists.iter().enumerate() {
        demand(list.last().is_none_or(|last| last.action == Action::Update), || {
            let got = up_to(&lists, stage, list.len());
            Finding::new("these lists are no schedule").expected("a schedule", got).law(UPDATE_LAST)
        })?;
    }
    for (stage, kept) in found.kept().into_iter().enumerate() {
        let most = (stages - stage).min(micro_batches);
        demand(kept <= most, || {
            let what =
                format!("stage {stage} keeps the activations of {kept} micro-batches at a time");
            let [expected, got] = [(most, &theirs), (kept, &found)]
                .map(|(kept, checked)| format!("{kept}: {}", passes(checked, stage)));
            Finding::new(what).expected(expected, got).law(KEPT)
        })?;
    }
    devices_wait_no_longer_than_they_have_to(*case, &theirs, &found)?;
    (0..stages).try_for_each(|stage| {
        let [expected, got] = [&theirs, &found].map(|checked| passes(checked, stage));
        same(format!("stage {stage} computes in another order"), expected, got, IN_ORDER)
    })
}

fn not_sound(lists: &Schedule, error: &Fault) -> Finding {
    let last = lists.micro_batches - 1;
    let place = error.places.first().copied().unwrap_or_default();
    let action = lists.lists[place.0].get(place.1).map(|it| it.action);
    let law = match error.law {
        Broken::Exists if action.and_then(Action::micro_batch) > Some(last) => NO_SUCH_BATCH,
        Broken::Exists if action.is_some_and(Action::is_collective) => WHOLE,
        Broken::Exists if matches!(action, Some(Action::Wait | Action::Free)) => WHOLE,
        Broken::Exists => NO_SUCH_STAGE,
        Broken::InOrder if action == Some(Action::Update) => UPDATE_ONCE,
        Broken::InOrder => NEEDED_FIRST,
        Broken::Once => ONCE,
        Broken::Missing => ALL,
        Broken::Messages => SENDS,
        Broken::Deadlock => CIRCLE,
        Broken::Parameters => WHOLE,
        Broken::Size => unreachable!("there are stages and micro-batches"),
    };
    let shown = match (error.law, law) {
        (Broken::InOrder, UPDATE_ONCE) => vec![error.places[1]],
        (Broken::InOrder, _) => vec![place],
        _ => error.places.clone(),
    };
    let shown = shown.into_iter().map(|(stage, position)| up_to(lists, stage, position));
    let got = format!("{error}\n{}", shown.collect::<Vec<_>>().join("\n"));
    Finding::new("these lists are no schedule").expected("a schedule", got).law(law)
}

fn devices_wait_no_longer_than_they_have_to(
    case: Case,
    theirs: &Checked,
    found: &Checked,
) -> Outcome {
    let Case { stages, micro_batches } = case;
    let formula = (stages - 1) as f64 / (micro_batches + stages - 1) as f64;
    // Every pass takes a second, and messages take no time.
    let cost = Cost { forward: 1.0, backward: 1.0, ..Cost::default() };
    let [expected, got] = [theirs, found]
        .map(|checked| checked.simulate(&vec![cost; stages], 0.0).expect("a cost for each stage"));
    demand(got.bubble() - formula <= 1e-9, || {
        let told = |timeline: &Timeline| {
            format!("{}\n{}", short(timeline.bubble()), timeline.drawing(1.0, usize::MAX))
        };
        let (why, rule) = why_devices_wait(theirs, found);
        Finding::new(format!("the bubble is too large: {why}"))
            .expected(told(&expected), told(&got))
            .law(format!(
                "devices wait while the pipeline fills and while it drains, and not in between: the bubble is \
                 (p − 1)/(m + p − 1). So {rule}"
            ))
    })
}

/// The reason why devices wait too long, and its law: the first pass, or else the first message, that is not where stage 6 has it.
fn why_devices_wait(theirs: &Checked, found: &Checked) -> (String, &'static str) {
    let lists = |stage: usize| [theirs, found].map(|it| &it.schedule().lists[stage]);
    for only_passes in [true, false] {
        for stage in 0..found.schedule().stages() {
            let [right, got] = lists(stage)
                .map(|list| list.iter().filter(move |it| !only_passes || it.action.computes()));
            let Some((right, got)) = right.zip(got).find(|(a, b)| a.action != b.action) else {
                continue;
            };
            let law = match (right.action, got.action) {
                (Action::Forward(_), Action::Backward(0)) => WARM_UP,
                _ if only_passes => IN_TURN,
                (Action::SendActivation(_) | Action::SendGradient(_), _) => SENT,
                _ => AWAITED,
            };
            return (format!("stage {stage} does {:?} before {:?}", got.action, right.action), law);
        }
    }
    ("a stage waits".to_owned(), AWAITED)
}

/// `stage 1: … Forward(1), SendActivation(1), RecvGradient(0)`, where the last is the one at this position.
fn up_to(lists: &Schedule, stage: usize, position: usize) -> String {
    let list = &lists.lists[stage];
    let end = list.len().min(position + 1);
    let begin = position.saturating_sub(BEFORE);
    let shown: Vec<String> = list[begin..end].iter().map(|it| format!("{:?}", it.action)).collect();
    let before = if begin > 0 { "… " } else { "" };
    let after = if end == list.len() { ", and no more" } else { "" };
    format!("stage {stage}: {before}{}{after}", shown.join(", "))
}

/// `F0 F1 B0 B1`: the passes of a stage, without messages and update.
fn passes(checked: &Checked, stage: usize) -> String {
    let pass = |action| match action {
        Action::Forward(i) => Some(format!("F{i}")),
        Action::Backward(i) => Some(format!("B{i}")),
        _ => None,
    };
    let list = &checked.schedule().lists[stage];
    in_a_row(list.iter().filter_map(|instruction| pass(instruction.action)))
}
