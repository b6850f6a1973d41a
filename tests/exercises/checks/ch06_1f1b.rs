//! Chapter 6, `book/src/ch06-model-parallel.md`: what a stage of a pipeline does, in the order of 1F1B.
//!
//! The lists of all stages are one schedule, which stage 6 checks and times. Then the laws of 1F1B: the update at the end, the
//! activations that a stage keeps, the bubble, and the order.

use crate::prelude::*;
use model_parallel::partition::Cost;
use model_parallel::pipeline::check::Error as Fault;
use model_parallel::pipeline::schedule::{Action, Instruction, Schedule};
use model_parallel::pipeline::{Checked, Kind, Timeline, check, predict};

/// A stage, the number of stages and of micro-batches; the actions of the stage.
pub type Answer = fn(usize, usize, usize) -> Vec<Action>;

/// The laws of an answer.
pub const LAWS: &[Law<Answer>] = laws![stages_take_turns];

const CAPACITY: usize = 1;

/// The number of instructions that a message shows before the wrong one.
const BEFORE: usize = 5;

// Reasons for a bubble that is too large.
const WARM_UP: &str = "a stage goes forward until work has reached the last one: p − r times on stage r, or m times if \
                       there are no more";
const IN_TURN: &str =
    "when work has reached the last stage, all go forward once and backward once in turn";
const SENT: &str = "each result is sent before the next pass begins";
const SENT_FIRST: &str = "each result is sent before anything is awaited";
const AWAITED: &str = "a message is awaited right before the pass that needs it, and not earlier";

#[derive(Clone, Copy)]
struct Case {
    stages: usize,
    micro_batches: usize,
}

impl Case {
    fn fail(self, what: &str, expected: &str, got: &str, law: &str) -> ! {
        let counted = |number, one, more| match number {
            1 => format!("1 {one}"),
            _ => format!("{number} {more}"),
        };
        let stages = counted(self.stages, "stage", "stages");
        let micro_batches = counted(self.micro_batches, "micro-batch", "micro-batches");
        fail(&format!("{stages}, {micro_batches}: {what}"), expected, got, law)
    }

    fn check(self, answer: Answer) {
        let Self { stages, micro_batches } = self;
        let lists = Schedule::of(stages, micro_batches, |stage| {
            given(format!("stage {stage} of {stages}, {micro_batches} micro-batches"));
            answer(stage, stages, micro_batches)
        });
        let theirs = Kind::OneFOneB.schedule(stages, micro_batches).expect("a stage and work");
        let theirs = check(theirs, CAPACITY).expect("stage 6's own schedule is sound");
        let found = match check(lists.clone(), CAPACITY) {
            Ok(found) => found,
            Err(error) => self.not_sound(&lists, &error),
        };
        self.few_activations_are_kept(&theirs, &found);
        self.devices_wait_no_longer_than_they_have_to(&theirs, &found);
        self.the_order_is_that_of_stage_6(&theirs, &found);
    }

    fn not_sound(self, lists: &Schedule, error: &Fault) -> ! {
        let last = self.micro_batches - 1;
        let (expected, law, shown) = match error {
            Fault::NoSuch { step, .. } if step.instruction.action.micro_batch() > Some(last) => (
                format!("micro-batches 0 to {last}"),
                "a stage works on the micro-batches that there are; m may be smaller than p",
                vec![(step.stage, step.position)],
            ),
            Fault::NoSuch { step, .. } => (
                "messages between neighbours".to_owned(),
                "no stage comes before the first, and none after the last",
                vec![(step.stage, step.position)],
            ),
            Fault::TooEarly { step, needs, .. } if step.instruction.action == Action::Update => (
                format!("{} after {}", step.instruction, needs.instruction),
                match needs.instruction.action {
                    Action::SendGradient(_) => {
                        "the update comes last: until a gradient is sent, the stage before waits for it"
                    }
                    _ => {
                        "sum, then update once: micro-batches on p stages equal one batch on one device"
                    }
                },
                vec![(needs.stage, needs.position)],
            ),
            Fault::TooEarly { step, needs, .. } => (
                format!("{}, then {}", needs.instruction, step.instruction),
                "an action comes after the message or the pass that it needs",
                vec![(step.stage, step.position)],
            ),
            Fault::Twice { step, .. } => (
                format!("{} once", step.instruction),
                "every micro-batch goes forward once and backward once, and one update changes the weights",
                vec![(step.stage, step.position)],
            ),
            Fault::Missing { stage, missing, .. } => (
                format!("{missing} in the list of stage {stage}"),
                "every micro-batch passes all stages, forward and backward; then the weights change",
                vec![(*stage, lists.instructions[*stage].len())],
            ),
            Fault::Order { sending, receiving } => (
                format!("the order of the sender: {}", sending.instruction),
                "messages arrive in the order of their sends",
                vec![(sending.stage, sending.position), (receiving.stage, receiving.position)],
            ),
            Fault::Deadlock { circle, .. } => (
                "every stage comes to the end of its list".to_owned(),
                "before a stage waits for a neighbour, it sends the message for which the neighbour waits",
                circle.iter().map(|wait| (wait.step.stage, wait.step.position)).collect(),
            ),
            Fault::Empty { .. } => unreachable!("there are stages and micro-batches"),
        };
        let shown = shown.into_iter().map(|(stage, position)| up_to(lists, stage, position));
        let got = format!("{error}\n{}", shown.collect::<Vec<_>>().join("\n"));
        self.fail("these lists are no schedule", &expected, &got, law)
    }

    fn few_activations_are_kept(self, theirs: &Checked, found: &Checked) {
        for (stage, peak) in found.peaks().iter().enumerate() {
            let (kept, most) = (peak.activations, (self.stages - stage).min(self.micro_batches));
            if kept > most {
                let what = format!(
                    "stage {stage} keeps the activations of {kept} micro-batches at a time"
                );
                let told = |kept, checked| format!("{kept}: {}", passes(checked, stage));
                let law = "a stage goes backward as soon as it can: it keeps no more micro-batches than there \
                           are stages from it to the end, however many come";
                self.fail(&what, &told(most, theirs), &told(kept, found), law);
            }
        }
    }

    fn devices_wait_no_longer_than_they_have_to(self, theirs: &Checked, found: &Checked) {
        let Self { stages, micro_batches } = self;
        let times = |checked| timeline(checked).unwrap_or_else(|error| panic!("{error}"));
        let (expected, got) = (times(theirs), times(found));
        let formula = (stages - 1) as f64 / (micro_batches + stages - 1) as f64;
        if got.bubble() - formula > 1e-9 {
            let told = |timeline: &Timeline| {
                format!("{}\n{}", short(timeline.bubble()), timeline.drawing(1.0, usize::MAX))
            };
            let (why, rule) = why_devices_wait(theirs, found);
            let law = format!(
                "devices wait while the pipeline fills and while it drains, and not in between: the bubble is \
                 (p − 1)/(m + p − 1). So {rule}"
            );
            let what = format!("the bubble is too large: {why}");
            self.fail(&what, &told(&expected), &told(&got), &law);
        }
    }

    fn the_order_is_that_of_stage_6(self, theirs: &Checked, found: &Checked) {
        for stage in 0..self.stages {
            let [expected, got] = [theirs, found].map(|checked| passes(checked, stage));
            if expected != got {
                let what = format!("stage {stage} computes in another order");
                let law = "micro-batches go forward in their order, and backward in the same order, each whole";
                self.fail(&what, &expected, &got, law);
            }
        }
    }
}

/// The timeline if every pass takes a second and messages take no time.
fn timeline(checked: &Checked) -> Result<Timeline, Box<dyn std::error::Error>> {
    let cost = Cost { forward: 1.0, backward: 1.0, ..Cost::default() };
    Ok(predict(checked, &vec![cost; checked.schedule().stages()], 0.0)?)
}

/// The reason why devices wait too long, and its law: passes in another order than stage 6's, or messages that are not next to
/// their passes.
fn why_devices_wait(theirs: &Checked, found: &Checked) -> (String, &'static str) {
    let stages = 0..found.schedule().stages();
    for stage in stages.clone() {
        let [expected, got] = [theirs, found].map(|checked| directions(checked, stage));
        let ahead = |all: &str| all.chars().take_while(|&direction| direction == 'F').count();
        let (expected_ahead, got_ahead) = (ahead(&expected), ahead(&got));
        if got_ahead != expected_ahead {
            let times = format!("{got_ahead} of {expected_ahead} times");
            let why = format!("stage {stage} has gone forward {times} when it first goes backward");
            return (why, WARM_UP);
        }
        if got != expected {
            return (format!("stage {stage} does not take turns"), IN_TURN);
        }
    }
    for (sends, law) in [(true, SENT), (false, AWAITED)] {
        if let Some(why) = stages.clone().find_map(|stage| apart(found, stage, sends)) {
            return (why, law);
        }
    }
    // Every message is next to its pass. Only a receive can be between a pass and the send of its result.
    ("a stage waits for a message before it sends one".to_owned(), SENT_FIRST)
}

/// The first message that a stage sends, or receives, with another pass between it and its own.
fn apart(checked: &Checked, stage: usize, sends: bool) -> Option<String> {
    let list = &checked.schedule().instructions[stage];
    list.iter().enumerate().find_map(|(position, message)| {
        let own = match message.action {
            Action::RecvActivation(i) | Action::SendActivation(i) => Action::Forward(i),
            Action::RecvGradient(i) | Action::SendGradient(i) => Action::Backward(i),
            _ => return None,
        };
        let computes = |instruction: &&Instruction| instruction.action.computes();
        let (beside, order) = match sends {
            true => (list[..position].iter().rev().find(computes)?, "only after"),
            false => (list[position..].iter().find(computes)?, "already before"),
        };
        let apart = message.action.sends() == sends && beside.action != own;
        apart.then(|| format!("stage {stage} does {message} {order} {beside}"))
    })
}

/// `stage 1: … Forward(1), SendActivation(1), RecvGradient(0)`, where the last is the one at this position.
fn up_to(lists: &Schedule, stage: usize, position: usize) -> String {
    let list = &lists.instructions[stage];
    let end = list.len().min(position + 1);
    let begin = position.saturating_sub(BEFORE);
    let shown: Vec<String> = list[begin..end].iter().map(ToString::to_string).collect();
    let before = if begin > 0 { "… " } else { "" };
    let after = if end == list.len() { ", and no more" } else { "" };
    format!("stage {stage}: {before}{}{after}", shown.join(", "))
}

/// `F0 F1 B0 B1`: the passes of a stage, without messages and update.
fn passes(checked: &Checked, stage: usize) -> String {
    let pass = |action| match action {
        Action::Forward(i) => Some(format!("F{i}")),
        Action::Backward(i) => Some(format!("B{i}")),
        Action::BackwardInput(i) => Some(format!("input of B{i}")),
        Action::BackwardWeight(i) => Some(format!("weights of B{i}")),
        _ => None,
    };
    let list = &checked.schedule().instructions[stage];
    let passes: Vec<String> =
        list.iter().filter_map(|instruction| pass(instruction.action)).collect();
    passes.join(" ")
}

/// `FFBFBB`: the same, without micro-batches.
fn directions(checked: &Checked, stage: usize) -> String {
    passes(checked, stage).replace(|c: char| c == ' ' || c.is_ascii_digit(), "")
}

fn stages_take_turns(answer: Answer) {
    within("writing the lists", move || {
        // The drawing first, then all small pipelines: one stage, more stages than micro-batches, and the other way
        // round.
        Case { stages: 3, micro_batches: 4 }.check(answer);
        for stages in 1..=8 {
            for micro_batches in 1..=32 {
                Case { stages, micro_batches }.check(answer);
            }
        }
    });
}
