//! Lists with one mistake each, and the messages that their authors get.

use model_parallel::Action::{Gather, ReduceScatter, Update, Wait};
use model_parallel::check::in_one_order;
use model_parallel::{Instruction, Schedule, UNBOUNDED, check};
use sharded_state::Sharing;

/// The list of ZeRO 3 on two ranks, with three units and one micro-batch.
pub fn zero3() -> Schedule {
    Sharing::Zero3.plain().schedule(3, 1, 2)
}

pub fn place(schedule: &Schedule, unit: usize, action: model_parallel::Action) -> usize {
    schedule.lists[0].iter().position(|it| *it == Instruction { unit, action }).unwrap()
}

pub fn refused(schedule: Schedule) -> String {
    check(schedule, UNBOUNDED).expect_err("this list is broken").to_string()
}

// ANCHOR: wait
#[test]
fn a_forgotten_wait() {
    let mut schedule = zero3();
    let wait = place(&schedule, 1, Wait);
    schedule.lists[0].remove(wait);
    let message = "stage 0, instruction 5, Forward(0) of unit 1: the parameters \
                   are on their way, and the layers of a unit run after its Wait";
    assert_eq!(refused(schedule), message);
}
// ANCHOR_END: wait

// ANCHOR: update
#[test]
fn an_update_before_the_sum() {
    let mut schedule = zero3();
    let sum = place(&schedule, 2, ReduceScatter);
    let update = place(&schedule, 2, Update);
    schedule.lists[0].swap(sum, update);
    let message = "stage 0, instruction 13, Update of unit 2: it needs \
                   ReduceScatter of unit 2 first, and that comes later, as \
                   instruction 19. The update uses the gradients that are \
                   summed over all replicas";
    assert_eq!(refused(schedule), message);
}
// ANCHOR_END: update

// ANCHOR: orders
#[test]
fn other_orders_on_two_ranks() {
    let (mut one, other) = (zero3(), zero3());
    let sum = place(&one, 2, ReduceScatter);
    assert_eq!(one.lists[0][sum + 1].action, Gather);
    one.lists[0].swap(sum, sum + 1);
    let lists = [&one, &other].map(|it| it.lists[0].clone());
    let message = "collective 3: replica 0 starts Gather of unit 1, replica 1 \
                   ReduceScatter of unit 2. All replicas start their \
                   collectives in one order";
    assert_eq!(in_one_order(&lists).unwrap_err().to_string(), message);
    // Each list alone is a sound one.
    assert!([one, other].into_iter().all(|list| check(list, UNBOUNDED).is_ok()));
}
// ANCHOR_END: orders
