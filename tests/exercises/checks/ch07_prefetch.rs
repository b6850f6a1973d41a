//! Chapter 7, `book/src/ch07-sharded-state.md`: gathers that start early enough, and not too early.
//!
//! Stage 6's checker judges the list. The simulator scores it: the share of the communication that is hidden, and the bytes of the
//! parameters.

use model_parallel::{Action, Timeline};
use sharded_state::strategies::{List, passes, recomputed, zero3};

use crate::prelude::*;
use crate::sharded::{RANKS, checked, costs, hidden, schedule, step};

/// A list; the same list, with earlier gathers.
pub type Answer = fn(List) -> List;

pub const LAWS: &[Law<Answer>] = laws![
    only_gathers_move in cases(),
    the_checker_accepts_the_list in cases(),
    two_units_are_in_memory in cases(),
    the_link_is_hidden in cases(),
];

const MOVES: &str =
    "all instructions but the gathers stay in their order, and the gathers stay in theirs";
const LAWFUL: &str = "a gather starts after the unit was freed, and before the unit's Wait";
const TWO: &str = "a unit takes memory from its Gather to its Free: while a unit computes, only the next unit is on its way";
const HIDDEN: &str = "while a unit computes, the parameters of the next unit travel: at least 80 % of the communication is hidden";
const SHARE: f64 = 0.8;

/// Units, micro-batches, whether units are recomputed, and the communication as a share of computing.
#[derive(Clone, Copy)]
struct Case(usize, usize, bool, f64);

shown!(Case(units, micro_batches, again, share) => "{}, {}{}, a link of {share} of the computing time",
    counted(*units, "unit"), counted(*micro_batches, "micro-batch"), if *again { ", recomputed" } else { "" });

fn cases() -> impl Iterator<Item = Case> {
    let of = |units| {
        [(1, false), (2, false), (1, true)].into_iter().flat_map(move |(micro, again)| {
            [0.3, 0.6].map(|share| Case(units, micro, again, share))
        })
    };
    [8, 12, 20].into_iter().flat_map(of)
}

/// The bytes of each unit's parameters.
const UNIT: usize = 120;

impl Case {
    fn list(self) -> List {
        let list = passes(self.0, self.1);
        zero3(if self.2 { recomputed(list, |_| true) } else { list })
    }

    /// The simulated step of an answer's list.
    fn step(self, list: &List) -> Outcome<Timeline> {
        let checked = checked(schedule(list, self.0, self.1), LAWFUL)?;
        let free = step(&checked, &costs(&vec![UNIT; self.0], 0.0));
        // Two gathers and a sum are three halves of an all-reduce. The last unit is gathered once.
        let all_reduces = (3 * self.0 - 1) as f64 / 2.0;
        let seconds = self.3 * free.busy(0) / all_reduces;
        Ok(step(&checked, &costs(&vec![UNIT; self.0], seconds)))
    }
}

fn only_gathers_move(answer: Answer, &case: &Case) -> Outcome {
    let list = case.list();
    let found = answer(list.clone());
    for (what, gathers) in [("all but the gathers", false), ("the gathers", true)] {
        let [expected, got] = [&list, &found].map(|list| {
            let kept = list.iter().filter(|it| (it.action == Action::Gather) == gathers);
            in_a_row(kept.map(|it| format!("{:?}·{}", it.action, it.unit)))
        });
        same(what, expected, got, MOVES)?;
    }
    Ok(())
}

fn the_checker_accepts_the_list(answer: Answer, &case: &Case) -> Outcome {
    case.step(&answer(case.list())).map(drop)
}

fn two_units_are_in_memory(answer: Answer, &case: &Case) -> Outcome {
    let got = case.step(&answer(case.list()))?.held(0).peak.parameters;
    let most = case.0 * UNIT / RANKS + 2 * UNIT;
    expect(got <= most, "the most bytes of parameters at one time", (most, got), TWO)
}

fn the_link_is_hidden(answer: Answer, &case: &Case) -> Outcome {
    let got = hidden(&case.step(&answer(case.list()))?);
    let percent = |share: f64| format!("{:.0} %", 100.0 * share);
    let expected = format!("at least {}", percent(SHARE));
    expect(got >= SHARE, "the hidden share of the communication", (expected, percent(got)), HIDDEN)
}
