//! Lists of instructions for units in chunks: checked, and weighed by the simulator.

use model_parallel::check::Error;
use model_parallel::{Checked, Cost, Instruction, Schedule, Timeline, UNBOUNDED, check};
use sharded_state::Sharing;

use crate::outcome::{Finding, Outcome};

/// The two ranks of the checks.
pub const RANKS: usize = 2;

/// The number of instructions that a message shows before the wrong one.
const BEFORE: usize = 5;

/// A schedule of ZeRO 3 for two ranks, with this list in place of its own.
pub fn schedule(list: &[Instruction], units: usize, micro_batches: usize) -> Schedule {
    let of_zero3 = Sharing::Zero3.plain().schedule(units, micro_batches, RANKS);
    Schedule { lists: vec![list.to_vec()], ..of_zero3 }
}

/// Demands that stage 6's checker accepts a schedule. A finding shows the list up to the wrong instruction.
pub fn checked(schedule: Schedule, law: &str) -> Outcome<Checked> {
    check(schedule.clone(), UNBOUNDED).map_err(|error: Error| {
        let list = &schedule.lists[0];
        let end = error.places.iter().map(|it| it.1 + 1).max().unwrap_or(0).min(list.len());
        let begin = end.saturating_sub(BEFORE + 1);
        let before = if begin > 0 { "… " } else { "" };
        let shown: Vec<String> = list[begin..end].iter().map(Instruction::to_string).collect();
        let got = format!("{error}\n{before}{}", shown.join(", "));
        Finding::new("the checker refuses the list")
            .expected("a list that keeps the laws", got)
            .law(law)
    })
}

/// A step of a checked list.
pub fn step(checked: &Checked, costs: &[Cost]) -> Timeline {
    checked.simulate(costs, 0.0).expect("a cost for each unit")
}

/// Units of so many bytes of parameters. A forward pass takes a second, a backward pass takes two, and a whole all-reduce takes
/// `all_reduce` seconds.
pub fn costs(sizes: &[usize], all_reduce: f64) -> Vec<Cost> {
    let cost = |&parameters: &usize| Cost {
        forward: 1.0,
        backward: 2.0,
        backward_input: 1.0,
        backward_weight: 1.0,
        all_reduce,
        parameters,
        optimizer: 2 * parameters,
        activations: 60,
        input: 10,
        output: 10,
        ..Cost::default()
    };
    sizes.iter().map(cost).collect()
}

/// The share of the communication during which the rank computes, from 0 to 1.
pub fn hidden(step: &Timeline) -> f64 {
    let collectives = step.spans.iter().filter(|it| it.instruction.action.is_collective());
    let communication: f64 = collectives.map(|it| it.end - it.start).sum();
    1.0 - (step.makespan() - step.busy(0)) / communication
}
