//! Schedules that keep every law, and in which stages wait for each other.

use model_parallel::pipeline::Action::{Backward, RecvActivation, RecvGradient, SendActivation};
use model_parallel::pipeline::UNBOUNDED;
use model_parallel::pipeline::{Instruction, Kind, check};

use super::{Edit, gpipe, one_f_one_b};

// ANCHOR: deadlock
#[test]
fn every_send_waits_for_its_receiver() {
    one_f_one_b().rejected_with(
        0,
        "deadlock with channels that hold 0 messages: stage 1 (instruction 5, \
         SendActivation(1)) waits for stage 2 to receive, stage 2 (instruction 3, \
         SendGradient(0)) waits for stage 1 to receive. Channels that hold 1 message would do",
    );
}
// ANCHOR_END: deadlock

/// Stage 0 does all forward, then all backward; stage 1 one forward, one backward, without warm-up.
fn mixed(micro_batches: usize) -> Edit {
    let kinds = [Kind::GPipe, Kind::Naive];
    let mut mixed = Edit::of(Kind::GPipe, 2, micro_batches);
    for (stage, kind) in kinds.into_iter().enumerate() {
        mixed.0.instructions[stage] = Edit::of(kind, 2, micro_batches).0.instructions.remove(stage);
    }
    // Stage 0 takes the gradients in the order in which stage 1 sends them.
    let backward = mixed.find(0, RecvGradient(micro_batches - 1));
    let in_order = (0..micro_batches).flat_map(|i| [RecvGradient(i), Backward(i)]);
    for (instruction, action) in mixed.0.instructions[0][backward..].iter_mut().zip(in_order) {
        instruction.action = action;
    }
    mixed
}

#[test]
fn stages_of_different_kinds_need_larger_channels() {
    mixed(4).rejected_with(
        1,
        "deadlock with channels that hold 1 message: stage 0 (instruction 7, \
         SendActivation(3)) waits for stage 1 to receive, stage 1 (instruction 7, \
         SendGradient(1)) waits for stage 0 to receive. Channels that hold 2 messages would \
         do",
    );
}

#[test]
fn the_smallest_capacity_is_found_however_large_it_is() {
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

/// Stage 0 waits for stage 3 and is not part of the circle, nor is stage 1, which waits for stage 0.
#[test]
fn who_waits_for_a_circle_is_not_part_of_it() {
    let mut edit = Edit::of(Kind::Interleaved { chunks: 2 }, 4, 4);
    for (stage, first) in [(0, RecvActivation(0)), (2, RecvGradient(0))] {
        let first = Instruction { chunk: 1, action: first };
        let list = &mut edit.0.instructions[stage];
        let position = list.iter().position(|instruction| *instruction == first).unwrap();
        list.remove(position);
        list.insert(0, first);
    }
    edit.rejected(
        "deadlock with channels that hold any number of messages: stage 2 (instruction 0, \
         RecvGradient(0) of chunk 1) waits for stage 3 to send, stage 3 (instruction 0, \
         RecvActivation(0)) waits for stage 2 to send. No channel helps, however much it holds: \
         each needs what another has yet to send",
    );
}

#[test]
fn a_stage_waits_for_what_it_has_yet_to_cause() {
    gpipe().swap(0, SendActivation(3), RecvGradient(3)).rejected(
        "deadlock with channels that hold any number of messages: stage 0 (instruction 7, \
         RecvGradient(3)) waits for stage 1 to send, stage 1 (instruction 9, \
         RecvActivation(3)) waits for stage 0 to send. No channel helps, however much it \
         holds: each needs what another has yet to send",
    );
}

/// Chunks make a ring of the stages: stage 0 is also behind stage 2.
#[test]
fn three_stages_wait_in_a_circle() {
    let mut edit = Edit::of(Kind::Interleaved { chunks: 2 }, 3, 3);
    let list = &mut edit.0.instructions[0];
    let of_chunk_1 = Instruction { chunk: 1, action: RecvActivation(0) };
    let position = list.iter().position(|instruction| *instruction == of_chunk_1).unwrap();
    list.remove(position);
    list.insert(0, of_chunk_1);
    edit.rejected(
        "deadlock with channels that hold any number of messages: stage 0 (instruction 0, \
         RecvActivation(0) of chunk 1) waits for stage 2 to send, stage 2 (instruction 0, \
         RecvActivation(0)) waits for stage 1 to send, stage 1 (instruction 0, \
         RecvActivation(0)) waits for stage 0 to send. No channel helps, however much it \
         holds: each needs what another has yet to send",
    );
}
