//! Chapter 7, `book/src/ch07-sharded-state.md`: lists that gather, free and sum, as ZeRO 3 and FSDP do.
//!
//! Stage 6's checker judges the lists, with the updates of stage 7. Then the simulator weighs and times the lists, beside ours.

use model_parallel::Action;
use sharded_state::strategies::{self, List, passes, recomputed, summed, updated};

use crate::prelude::*;
use crate::sharded::{checked, costs, schedule, step};

/// The two functions.
#[derive(Clone, Copy)]
pub struct Answer {
    /// Passes; the passes with gathers and frees.
    pub gathered: fn(List) -> List,
    /// A list; the list with a sum for each unit.
    pub reduced: fn(List) -> List,
}

pub const LAWS: &[Law<Answer>] = laws![
    the_passes_stay in cases(),
    the_checker_accepts_the_list in cases(),
    no_more_is_held_and_sent_than_has_to_be in cases(),
    units_that_are_not_gathered_are_summed_too in cases(),
];

const SAME: &str = "a list gets instructions between its own, and these stay in their order";
const LAWFUL: &str = "a unit is gathered and waited for before its passes, freed after them, and summed once, at its end";
const ONCE: &str = "one gather for each run of passes: a unit that goes forward and backward in one run is gathered once";
const FREED: &str =
    "a unit is whole for its passes only: no other unit is gathered before the unit is freed";
const EARLY: &str = "a sum starts right after everything that the unit does, and travels while earlier units go backward";
const REST: &str = "the gradients of a unit stay until its sum starts";

/// Units, micro-batches, and whether units are recomputed.
#[derive(Clone, Copy)]
struct Case(usize, usize, bool);

shown!(Case(units, micro_batches, again) => "{}, {}{}", counted(*units, "unit"),
    counted(*micro_batches, "micro-batch"), if *again { ", recomputed" } else { "" });

fn cases() -> impl Iterator<Item = Case> {
    let of =
        |units| (1..=3).flat_map(move |micro| [false, true].map(|again| Case(units, micro, again)));
    (1..=5).flat_map(of)
}

impl Case {
    fn passes(self) -> List {
        let list = passes(self.0, self.1);
        if self.2 { recomputed(list, |_| true) } else { list }
    }
}

/// `Gather of unit 0, Wait of unit 0, …`
fn in_words(list: &List) -> String {
    let words: Vec<String> = list.iter().map(ToString::to_string).collect();
    words.join(", ")
}

fn without(list: &List, added: &[Action]) -> List {
    list.iter().copied().filter(|it| !added.contains(&it.action)).collect()
}

fn the_passes_stay(answer: Answer, &case: &Case) -> Outcome {
    let (passes, gathers) = (case.passes(), [Action::Gather, Action::Wait, Action::Free]);
    let gathered = (answer.gathered)(passes.clone());
    let left = without(&gathered, &gathers);
    let what = "`gathered`, without its gathers, waits and frees";
    same(what, in_words(&passes), in_words(&left), SAME)?;
    let left = without(&(answer.reduced)(gathered.clone()), &[Action::ReduceScatter]);
    same("`reduced`, without its sums", in_words(&gathered), in_words(&left), SAME)
}

fn the_checker_accepts_the_list(answer: Answer, &case: &Case) -> Outcome {
    let list = updated((answer.reduced)((answer.gathered)(case.passes())));
    checked(schedule(&list, case.0, case.1), LAWFUL).map(drop)
}

fn no_more_is_held_and_sent_than_has_to_be(answer: Answer, &case: &Case) -> Outcome {
    let passes = case.passes();
    let lists =
        [strategies::zero3(passes.clone()), updated((answer.reduced)((answer.gathered)(passes)))];
    let gathers =
        lists.each_ref().map(|list| list.iter().filter(|it| it.action == Action::Gather).count());
    let what = "the number of gathers";
    expect(gathers[1] <= gathers[0], what, (gathers[0], gathers[1]), ONCE)?;
    let costs = costs(&vec![120; case.0], 2.0);
    let [ours, yours] = lists
        .map(|list| checked(schedule(&list, case.0, case.1), LAWFUL).map(|it| step(&it, &costs)));
    let [ours, yours] = [ours?, yours?];
    let [expected, got] = [&ours, &yours].map(|it| it.held(0).peak.parameters);
    expect(got <= expected, "the most bytes of parameters at one time", (expected, got), FREED)?;
    let [expected, got] = [&ours, &yours].map(|it| it.held(0).peak.gradients);
    expect(got <= expected, "the most bytes of gradients at one time", (expected, got), EARLY)?;
    let [expected, got] = [&ours, &yours].map(|it| it.makespan());
    expect(got <= expected + 1e-9, "the seconds of a step", (expected, got), EARLY)
}

/// Under ZeRO 2.
fn units_that_are_not_gathered_are_summed_too(answer: Answer, &case: &Case) -> Outcome {
    let passes = case.passes();
    let expected = summed(passes.clone(), Action::ReduceScatter);
    same(
        "`reduced` of the passes alone",
        in_words(&expected),
        in_words(&(answer.reduced)(passes)),
        REST,
    )
}
