//! Strategies: functions from list to list. Each decides what a rank holds, and when it communicates.
//!
//! A list begins as the passes of one device. All micro-batches pass a unit before the next unit, so a unit is gathered
//! once for each direction.

use itertools::Itertools as _;
use model_parallel::instructions::Action::{
    AllReduce, Backward, Forward, ForwardOnly, Free, Gather, Recompute, ReduceScatter, Update, Wait,
};
use model_parallel::instructions::{Action, Instruction};

/// Everything that a rank does in a step.
pub type List = Vec<Instruction>;

fn of(unit: usize, action: Action) -> Instruction {
    Instruction { unit, action }
}

// ANCHOR: passes
/// The passes alone: forward through all units, then back.
pub fn passes(units: usize, micro_batches: usize) -> List {
    let through =
        |unit, pass: fn(usize) -> Action| (0..micro_batches).map(move |i| of(unit, pass(i)));
    let forward = (0..units).flat_map(|unit| through(unit, Forward));
    let backward = (0..units).rev().flat_map(|unit| through(unit, Backward));
    forward.chain(backward).collect()
}

/// One device: the passes, then the updates.
pub fn alone(passes: List) -> List {
    then(passes, Update)
}

/// Adds an instruction of each unit to the end, the last unit first.
fn then(mut list: List, action: Action) -> List {
    let units = list.iter().map(|it| it.unit).unique().collect_vec();
    list.extend(units.into_iter().rev().map(|unit| of(unit, action)));
    list
}
// ANCHOR_END: passes

// ANCHOR: ddp
/// DDP: every rank holds everything. A unit's gradients travel while earlier units go backward. Each rank updates as one
/// device does.
pub fn ddp(passes: List) -> List {
    alone(summed(passes, AllReduce))
}
// ANCHOR_END: ddp

// ANCHOR: summed
/// Starts a sum after everything that a unit does in the list.
pub fn summed(list: List, sum: Action) -> List {
    let is_last = |n: usize| !list[n + 1..].iter().any(|later| later.unit == list[n].unit);
    let with_sum = |(n, &it): (usize, &Instruction)| {
        let sum = is_last(n).then_some(of(it.unit, sum));
        [it].into_iter().chain(sum)
    };
    list.iter().enumerate().flat_map(with_sum).collect()
}
// ANCHOR_END: summed

// ANCHOR: zero
/// ZeRO 1: the optimizer's state is in chunks. All gradients stay until the end. Then each rank updates its chunk of a
/// unit, and the unit is gathered again.
pub fn zero1(passes: List) -> List {
    gathered_again(updated(then(passes, ReduceScatter)))
}

/// ZeRO 2: the gradients are in chunks, too. They travel as soon as they are complete.
pub fn zero2(passes: List) -> List {
    gathered_again(updated(summed(passes, ReduceScatter)))
}

/// ZeRO 3, or FSDP: the parameters are in chunks, too. A unit is whole for its passes only.
pub fn zero3(passes: List) -> List {
    updated(summed(gathered(passes), ReduceScatter))
}
// ANCHOR_END: zero

// ANCHOR: gathered
/// Gathers a unit before each run of its passes, and frees it after the run.
pub fn gathered(list: List) -> List {
    let around = |run: &[Instruction]| {
        let unit = run[0].unit;
        [&[of(unit, Gather), of(unit, Wait)], run, &[of(unit, Free)]].concat()
    };
    list.chunk_by(|a, b| a.unit == b.unit).flat_map(around).collect()
}

/// Updates a unit right after the next sum has started. Under ZeRO 2 and 3, its own sum then had a backward pass of time.
pub fn updated(list: List) -> List {
    one_later(list, ReduceScatter, None, Update)
}

/// Gathers each unit after its update, while the rank goes on. The unit is waited for before the next gather.
fn gathered_again(list: List) -> List {
    one_later(list, Update, Some(Gather), Wait)
}

/// After each `first`, does `later` with the unit of the `first` before, and then `now` with this unit.
fn one_later(list: List, first: Action, now: Option<Action>, later: Action) -> List {
    let (mut all, mut waiting) = (List::new(), None);
    for it in list {
        all.push(it);
        if it.action == first {
            all.extend(waiting.replace(it.unit).map(|unit| of(unit, later)));
            all.extend(now.map(|now| of(it.unit, now)));
        }
    }
    all.extend(waiting.map(|unit| of(unit, later)));
    all
}
// ANCHOR_END: gathered

// ANCHOR: prefetched
/// Starts each gather as soon as the unit before has arrived, so a unit travels while the unit before computes.
pub fn prefetched(list: List) -> List {
    let mut gathers = list.iter().copied().filter(|it| it.action == Gather);
    let first: Vec<_> = gathers.next().into_iter().collect();
    let rest = list.iter().filter(|it| it.action != Gather);
    let with_next = |&it: &Instruction| {
        let next = if it.action == Wait { gathers.next() } else { None };
        [it].into_iter().chain(next)
    };
    first.into_iter().chain(rest.flat_map(with_next)).collect()
}
// ANCHOR_END: prefetched

// ANCHOR: recomputed
/// Recomputation: a chosen unit keeps its input only, and goes forward again before its backward pass. The last unit
/// goes backward at once, and keeps everything.
pub fn recomputed(list: List, chosen: impl Fn(usize) -> bool) -> List {
    let last = list.iter().map(|it| it.unit).max();
    let again = |it: Instruction| match it.action {
        _ if Some(it.unit) == last || !chosen(it.unit) => vec![it],
        Forward(i) => vec![of(it.unit, ForwardOnly(i))],
        Backward(i) => vec![of(it.unit, Recompute(i)), it],
        _ => vec![it],
    };
    list.into_iter().flat_map(again).collect()
}
// ANCHOR_END: recomputed
