//! Schedules with one mistake each, and the messages that their authors get.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the right answer")]

use model_parallel::Action::{
    AllReduce, Backward, BackwardInput, BackwardWeight, Forward, ForwardOnly, Recompute,
    RecvActivation, RecvGradient, SendActivation, SendGradient, Update,
};

use crate::prelude::*;

const ONCE: &str = "Every micro-batch passes a unit forward once and backward once, its activations are kept once, every \
                    message is sent once, and every unit is summed and updated once";

/// A schedule that is about to be broken.
struct Edit(Schedule);

impl Edit {
    fn of(kind: Kind, stages: usize, micro_batches: usize) -> Self {
        Self(kind.schedule(stages, micro_batches).unwrap())
    }

    fn list(&mut self, stage: usize) -> &mut Vec<Instruction> {
        &mut self.0.lists[stage]
    }

    fn find(&self, stage: usize, action: Action) -> usize {
        self.0.lists[stage].iter().position(|it| it.action == action).unwrap()
    }

    fn drop(mut self, stage: usize, action: Action) -> Self {
        let position = self.find(stage, action);
        self.list(stage).remove(position);
        self
    }

    fn put(mut self, stage: usize, position: usize, action: Action) -> Self {
        self.list(stage).insert(position, Instruction { unit: stage, action });
        self
    }

    fn swap(mut self, stage: usize, one: Action, other: Action) -> Self {
        let (one, other) = (self.find(stage, one), self.find(stage, other));
        self.list(stage).swap(one, other);
        self
    }

    fn replace(mut self, stage: usize, action: Action, by: Action) -> Self {
        let position = self.find(stage, action);
        self.list(stage)[position].action = by;
        self
    }

    /// Changes the unit of one instruction.
    fn of_unit(mut self, stage: usize, position: usize, unit: usize) -> Self {
        self.list(stage)[position].unit = unit;
        self
    }

    /// Moves an instruction of the stage's second unit to the beginning.
    fn at_first(mut self, stage: usize, action: Action) -> Self {
        let instruction = Instruction { unit: stage + self.0.stages(), action };
        let list = self.list(stage);
        let position = list.iter().position(|it| *it == instruction).unwrap();
        list[..=position].rotate_right(1);
        self
    }

    #[track_caller]
    fn rejected(self, message: &str) {
        self.rejected_with(UNBOUNDED, message);
    }

    #[track_caller]
    fn rejected_with(self, capacity: usize, message: &str) {
        let found = check(self.0, capacity).expect_err("this is broken").to_string();
        assert_eq!(found, message);
    }
}

/// Three stages, four micro-batches.
fn one_f_one_b() -> Edit {
    Edit::of(Kind::OneFOneB, 3, 4)
}

fn gpipe() -> Edit {
    Edit::of(Kind::GPipe, 3, 4)
}

fn zb_h1() -> Edit {
    Edit::of(Kind::ZbH1, 3, 4)
}

/// Two replicas of three stages. The first unit has nothing to train.
fn replicas() -> Edit {
    Edit(one_f_one_b().0.with_replicas(2).trained_from(1))
}

/// Two chunks on each stage.
fn interleaved(stages: usize, micro_batches: usize) -> Edit {
    Edit::of(Kind::Interleaved { chunks: 2 }, stages, micro_batches)
}

// ANCHOR: early
#[test]
fn the_update_comes_before_the_last_gradient() {
    zb_h1().swap(2, BackwardWeight(3), Update).rejected(
        "stage 2, instruction 19, Update of unit 2: it needs BackwardWeight(3) of unit 2 first, \
         and that comes later, as instruction 20. The update comes after the gradients of all \
         micro-batches",
    );
}
// ANCHOR_END: early

/// The stage before waits for the gradient a little longer, and gets the same one.
#[test]
fn an_update_may_come_before_a_message_and_before_the_passes_of_other_units() {
    let Edit(schedule) = one_f_one_b().swap(2, SendGradient(3), Update);
    check(schedule, UNBOUNDED).unwrap();
    let mut early = interleaved(2, 4);
    let list = early.list(0);
    let update = list.iter().position(|it| (it.unit, it.action) == (2, Update)).unwrap();
    let last = list.iter().position(|it| (it.unit, it.action) == (2, Backward(3))).unwrap();
    list[last + 1..=update].rotate_right(1);
    assert!(update > last + 1);
    check(early.0, UNBOUNDED).unwrap();
}

#[test]
fn a_task_comes_before_the_task_that_it_needs() {
    let needs = |edit: Edit, early: &str, needs: &str, position: usize, law: &str| {
        edit.rejected(&format!(
            "{early}: it needs {needs} first, and that comes later, as instruction {position}. {law}"
        ));
    };
    needs(
        one_f_one_b().swap(0, RecvGradient(0), Backward(0)),
        "stage 0, instruction 6, Backward(0) of unit 0",
        "RecvGradient(0) of unit 0",
        7,
        "A backward pass starts from the received gradient",
    );
    needs(
        one_f_one_b().swap(2, RecvActivation(1), Forward(1)),
        "stage 2, instruction 4, Forward(1) of unit 2",
        "RecvActivation(1) of unit 2",
        5,
        "A forward pass starts from the activation that was received",
    );
    needs(
        replicas().swap(0, ForwardOnly(1), SendActivation(1)),
        "stage 0, instruction 2, SendActivation(1) of unit 0",
        "ForwardOnly(1) of unit 0",
        3,
        "What is sent has to be computed first",
    );
    needs(
        one_f_one_b().swap(2, Forward(1), Backward(1)),
        "stage 2, instruction 5, Backward(1) of unit 2",
        "Forward(1) of unit 2",
        6,
        "The backward pass uses what the forward pass has kept",
    );
    needs(
        gpipe().swap(0, Forward(2), SendActivation(2)),
        "stage 0, instruction 4, SendActivation(2) of unit 0",
        "Forward(2) of unit 0",
        5,
        "What is sent has to be computed first",
    );
    needs(
        zb_h1().swap(2, BackwardInput(1), SendGradient(1)),
        "stage 2, instruction 6, SendGradient(1) of unit 2",
        "BackwardInput(1) of unit 2",
        7,
        "What is sent has to be computed first",
    );
    needs(
        zb_h1().swap(0, BackwardInput(0), BackwardWeight(0)),
        "stage 0, instruction 7, BackwardWeight(0) of unit 0",
        "BackwardInput(0) of unit 0",
        8,
        "The second half uses what the first half has left",
    );
    needs(
        replicas().swap(2, Backward(3), AllReduce),
        "stage 2, instruction 14, AllReduce of unit 2",
        "Backward(3) of unit 2",
        15,
        "The sum over replicas comes after all micro-batches",
    );
    needs(
        replicas().swap(2, AllReduce, Update),
        "stage 2, instruction 15, Update of unit 2",
        "AllReduce of unit 2",
        17,
        "The update uses the gradients that are summed over all replicas",
    );
    let mut descending = gpipe();
    descending.list(2)[8..12].rotate_right(2);
    needs(
        descending,
        "stage 2, instruction 8, Backward(1) of unit 2",
        "Backward(0) of unit 2",
        10,
        "Gradients are summed over the micro-batches in ascending order: another order has other bits",
    );
    let mut chunks = interleaved(1, 2);
    chunks.list(0).swap(0, 1);
    needs(
        chunks,
        "stage 0, instruction 0, Forward(0) of unit 1",
        "Forward(0) of unit 0",
        1,
        "A unit goes forward with what the unit before it has computed",
    );
    let mut chunks = interleaved(1, 2);
    let backward = chunks.find(0, Backward(0));
    let other = chunks.list(0)[backward + 1..].iter().position(|it| it.action == Backward(0));
    chunks.list(0).swap(backward, backward + 1 + other.unwrap());
    needs(
        chunks,
        "stage 0, instruction 2, Backward(0) of unit 0",
        "Backward(0) of unit 1",
        4,
        "A unit goes backward with the gradient that the unit after it has computed",
    );
}

#[test]
fn a_task_is_done_twice() {
    let end = one_f_one_b().find(0, Update);
    for (edit, step, first) in [
        (
            one_f_one_b().replace(0, Forward(2), Forward(1)),
            "stage 0, instruction 4, Forward(1) of unit 0",
            "instruction 2, Forward(1) of unit 0",
        ),
        (
            zb_h1().put(1, 9, Backward(0)),
            "stage 1, instruction 9, Backward(0) of unit 1",
            "instruction 7, BackwardInput(0) of unit 1",
        ),
        (
            one_f_one_b().put(0, end, Update),
            "stage 0, instruction 17, Update of unit 0",
            "instruction 16, Update of unit 0",
        ),
        (
            replicas().put(2, 15, AllReduce),
            "stage 2, instruction 16, AllReduce of unit 2",
            "instruction 15, AllReduce of unit 2",
        ),
    ] {
        edit.rejected(&format!("{step}: {first}, has done that already. {ONCE}"));
    }
}

/// All lists of a kind: several micro-batches, one and two replicas, with units that have nothing to train, and for
/// evaluation.
fn generated(kind: Kind, stages: usize) -> impl Iterator<Item = Schedule> {
    (1..=4).filter_map(move |m| kind.schedule(stages, m).ok()).flat_map(move |schedule| {
        let units = schedule.units();
        let trained = (0..units).flat_map(|first| [(first, 1), (first, 2)]);
        let trained = trained
            .map(|(first, replicas)| schedule.clone().with_replicas(replicas).trained_from(first));
        let evaluation = schedule.forward_only(schedule.micro_batches);
        trained.chain([evaluation]).collect::<Vec<_>>()
    })
}

/// The end of the sentence about a schedule without this instruction.
fn never_done(schedule: &Schedule, deleted: Instruction) -> String {
    let other = schedule.message(deleted).map(|it| match it.sends {
        true => format!(", and stage {} waits for it", it.to),
        false => format!(", and stage {} sends it", it.from),
    });
    format!("{}. {ONCE}", other.unwrap_or_default())
}

#[test]
fn every_single_deletion_is_refused_by_its_law() {
    let kinds = [
        Kind::Naive,
        Kind::GPipe,
        Kind::OneFOneB,
        Kind::ZbH1,
        Kind::Interleaved { chunks: 2 },
        Kind::Interleaved { chunks: 3 },
    ];
    let mut deletions = 0;
    let all = kinds.into_iter().flat_map(|kind| (1..=4).flat_map(move |p| generated(kind, p)));
    for schedule in all {
        check(schedule.clone(), UNBOUNDED).unwrap();
        for stage in 0..schedule.stages() {
            for position in 0..schedule.lists[stage].len() {
                let mut broken = schedule.clone();
                let deleted = broken.lists[stage].remove(position);
                let end = never_done(&schedule, deleted);
                Edit(broken).rejected(&format!("stage {stage} never does {deleted}{end}"));
                deletions += 1;
            }
        }
    }
    println!("{deletions} deletions");
    assert!(deletions > 10_000);
}

#[test]
fn activations_are_kept_once() {
    let never = format!("stage 0 never does Recompute(0) of unit 0. {ONCE}");
    one_f_one_b().replace(0, Forward(0), ForwardOnly(0)).rejected(&never);
    let twice = "stage 0, instruction 2, Recompute(0) of unit 0: instruction 0, Forward(0) of unit 0, has done that already";
    one_f_one_b().put(0, 2, Recompute(0)).rejected(&format!("{twice}. {ONCE}"));
}

#[test]
fn several_tasks_are_forgotten() {
    for (edit, missing) in [
        (gpipe().drop(2, Forward(3)).drop(2, Backward(3)).drop(2, SendGradient(3)), "Forward(3)"),
        (gpipe().drop(2, Backward(1)).drop(2, SendGradient(1)), "Backward(1)"),
        (zb_h1().drop(2, BackwardInput(3)).drop(2, BackwardWeight(3)), "Backward(3)"),
        (zb_h1().drop(2, BackwardInput(3)).drop(2, SendGradient(3)), "BackwardInput(3)"),
    ] {
        let found = check(edit.0, UNBOUNDED).unwrap_err().to_string();
        assert_eq!(found, format!("stage 2 never does {missing} of unit 2. {ONCE}"));
    }
}

#[test]
fn messages_arrive_in_another_order() {
    // Both are computed by then.
    let sends_swapped = gpipe().drop(0, SendActivation(0));
    let behind = sends_swapped.find(0, SendActivation(1)) + 1;
    let receives_swapped =
        gpipe().swap(2, RecvActivation(1), RecvActivation(2)).swap(2, Forward(1), Forward(2));
    for (edit, receiving, sending) in [
        (
            sends_swapped.put(0, behind, SendActivation(0)),
            "stage 1, instruction 0, RecvActivation(0) of unit 1",
            "SendActivation(1) of unit 0, instruction 2 of stage 0",
        ),
        (
            receives_swapped,
            "stage 2, instruction 2, RecvActivation(2) of unit 2",
            "SendActivation(1) of unit 1, instruction 5 of stage 1",
        ),
        (
            interleaved(3, 3).at_first(1, RecvActivation(0)),
            "stage 1, instruction 0, RecvActivation(0) of unit 4",
            "SendActivation(0) of unit 0, instruction 1 of stage 0",
        ),
    ] {
        let law = "What is sent first arrives first";
        edit.rejected(&format!("{receiving}: what arrives is {sending}. {law}"));
    }
}

#[test]
fn an_instruction_does_not_exist() {
    let last = interleaved(2, 4).find(0, Update);
    for (edit, message) in [
        (
            one_f_one_b().replace(0, Forward(3), Forward(4)),
            "stage 0, instruction 8, Forward(4) of unit 0: there is no micro-batch 4; the last one is micro-batch 3",
        ),
        (
            interleaved(2, 4).of_unit(0, 3, 4),
            "stage 0, instruction 3, SendActivation(1) of unit 4: there is no unit 4; the last one is unit 3",
        ),
        (
            interleaved(2, 4).of_unit(0, last, 1),
            "stage 0, instruction 40, Update of unit 1: unit 1 is on stage 1",
        ),
        (
            one_f_one_b().put(0, 16, AllReduce),
            "stage 0, instruction 16, AllReduce of unit 0: there is one replica, and nothing to sum over",
        ),
        (
            replicas().replace(0, ForwardOnly(0), Forward(0)),
            "stage 0, instruction 0, Forward(0) of unit 0: no backward pass uses what this pass keeps: this is \
             ForwardOnly",
        ),
    ] {
        edit.rejected(message);
    }
    let no_message = "there is no such message: the neighbouring unit is missing or on the same stage, or nobody needs the gradient";
    for (edit, step) in [
        (
            one_f_one_b().put(0, 0, RecvActivation(0)),
            "stage 0, instruction 0, RecvActivation(0) of unit 0",
        ),
        (
            one_f_one_b().put(2, 2, SendActivation(0)),
            "stage 2, instruction 2, SendActivation(0) of unit 2",
        ),
        (
            interleaved(1, 2).put(0, 1, SendActivation(0)),
            "stage 0, instruction 1, SendActivation(0) of unit 0",
        ),
    ] {
        edit.rejected(&format!("{step}: {no_message}"));
    }
    for (stage, action, law) in [
        (0, Backward(0), "this unit has nothing to train"),
        (0, BackwardInput(1), "this unit has nothing to train"),
        (0, BackwardWeight(2), "this unit has nothing to train"),
        (0, AllReduce, "this unit has nothing to train"),
        (0, Update, "this unit has nothing to train"),
        (0, RecvGradient(0), no_message),
        (1, SendGradient(0), no_message),
    ] {
        let unit = stage;
        let step = format!("stage {stage}, instruction 2, {}", Instruction { unit, action });
        replicas().put(stage, 2, action).rejected(&format!("{step}: {law}"));
    }
}

#[test]
fn nothing_to_do() {
    let no_stages = Schedule::of(0, 4, |_| vec![]);
    for (schedule, sizes) in [
        (no_stages, "stages: 0, units: 0, micro-batches: 4, replicas: 1"),
        (
            Schedule { placement: Vec::new(), ..gpipe().0 },
            "stages: 3, units: 0, micro-batches: 4, replicas: 1",
        ),
        (
            Schedule { replicas: 0, ..gpipe().0 },
            "stages: 3, units: 3, micro-batches: 4, replicas: 0",
        ),
    ] {
        Edit(schedule).rejected(&format!("{sizes}; a schedule has at least one of each"));
    }
    for (placement, message) in [
        (
            vec![0, 1, 3],
            "the units are on stages [0, 1, 3]; there are 3 stages, and each has a unit",
        ),
        (
            vec![0, 2, 2],
            "the units are on stages [0, 2, 2]; there are 3 stages, and each has a unit",
        ),
    ] {
        Edit(Schedule { placement, ..gpipe().0 }).rejected(message);
    }
}

// ANCHOR: deadlock
#[test]
fn every_send_waits_for_its_receiver() {
    one_f_one_b().rejected_with(
        0,
        "deadlock with channels that hold 0 messages: stage 1, instruction \
         5, SendActivation(1) of unit 1 waits for stage 2; stage 2, \
         instruction 3, SendGradient(0) of unit 2 waits for stage 1. \
         Channels that hold 1 message would do",
    );
}
// ANCHOR_END: deadlock

/// Stage 0 does all forward, then all backward; stage 1 one forward, one backward, without warm-up.
fn mixed(micro_batches: usize) -> Edit {
    let mut mixed = Edit::of(Kind::GPipe, 2, micro_batches);
    *mixed.list(1) = Edit::of(Kind::Naive, 2, micro_batches).list(1).clone();
    mixed
}

#[test]
fn stages_of_different_kinds_need_larger_channels() {
    mixed(4).rejected_with(
        1,
        "deadlock with channels that hold 1 message: stage 0, instruction \
         7, SendActivation(3) of unit 0 waits for stage 1; stage 1, \
         instruction 7, SendGradient(1) of unit 1 waits for stage 0. \
         Channels that hold 2 messages would do",
    );
    // The smallest capacity is found, however large it is.
    for micro_batches in 1..20 {
        let Edit(schedule) = mixed(micro_batches);
        let smallest = check(schedule.clone(), UNBOUNDED).unwrap().smallest_capacity();
        assert_eq!(smallest, micro_batches / 2);
        assert!(check(schedule.clone(), smallest).is_ok());
        if let Some(smaller) = smallest.checked_sub(1) {
            assert!(check(schedule, smaller).is_err());
        }
    }
}

#[test]
fn stages_wait_in_a_circle_that_no_channel_opens() {
    for (edit, circle) in [
        (
            // A stage waits for what it has yet to cause.
            gpipe().swap(0, SendActivation(3), RecvGradient(0)),
            "stage 0, instruction 7, RecvGradient(0) of unit 0 waits for stage 1; stage 1, instruction 9, \
             RecvActivation(3) of unit 1 waits for stage 0",
        ),
        (
            // Stages 0 and 1 wait for the circle, and are not part of it.
            interleaved(4, 4).at_first(0, RecvActivation(0)).at_first(2, RecvGradient(0)),
            "stage 2, instruction 0, RecvGradient(0) of unit 6 waits for stage 3; stage 3, instruction 0, \
             RecvActivation(0) of unit 3 waits for stage 2",
        ),
        (
            // Chunks make a ring of the stages: stage 0 is also behind stage 2.
            interleaved(3, 3).at_first(0, RecvActivation(0)),
            "stage 0, instruction 0, RecvActivation(0) of unit 3 waits for stage 2; stage 2, instruction 0, \
             RecvActivation(0) of unit 2 waits for stage 1; stage 1, instruction 0, RecvActivation(0) of unit \
             1 waits for stage 0",
        ),
    ] {
        edit.rejected(&format!(
            "deadlock with channels that hold any number of messages: {circle}. No channel helps, however much \
             it holds: each needs what another has yet to send"
        ));
    }
}
