//! Mistakes that break a law.

use model_parallel::pipeline::Action::{
    Backward, BackwardInput, BackwardWeight, Forward, RecvActivation, RecvGradient, SendActivation,
    SendGradient, Update,
};
use model_parallel::pipeline::{Instruction, Kind, Schedule};

use super::{Edit, gpipe, one_f_one_b, zb_h1};

#[test]
fn a_receive_is_dropped() {
    one_f_one_b().drop(1, RecvActivation(2)).rejected(
        "stage 1, instruction 9, Forward(2): it needs RecvActivation(2) first, and that is \
         never done. A stage goes forward with the activation that it has received",
    );
}

#[test]
fn a_gradient_is_not_waited_for() {
    one_f_one_b().swap(0, RecvGradient(0), Backward(0)).rejected(
        "stage 0, instruction 6, Backward(0): it needs RecvGradient(0) first, and that comes \
         later, as instruction 7. The backward pass starts from the gradient that the next \
         stage sends",
    );
}

#[test]
fn backward_comes_before_forward() {
    one_f_one_b().swap(2, Forward(1), Backward(1)).rejected(
        "stage 2, instruction 5, Backward(1): it needs Forward(1) first, and that comes \
         later, as instruction 6. The backward pass uses what the forward pass has kept",
    );
}

#[test]
fn a_result_is_sent_before_it_is_computed() {
    gpipe().swap(0, Forward(2), SendActivation(2)).rejected(
        "stage 0, instruction 4, SendActivation(2): it needs Forward(2) first, and that comes \
         later, as instruction 5. What is sent has to be computed first",
    );
}

#[test]
fn a_gradient_is_sent_before_it_is_computed() {
    zb_h1().swap(2, BackwardInput(1), SendGradient(1)).rejected(
        "stage 2, instruction 6, SendGradient(1): it needs BackwardInput(1) first, and that \
         comes later, as instruction 7. What is sent has to be computed first",
    );
}

#[test]
fn a_micro_batch_goes_forward_twice() {
    one_f_one_b().replace(0, Forward(2), Forward(1)).rejected(
        "stage 0, instruction 4, Forward(1): instruction 2, Forward(1), has done that \
         already. Every micro-batch goes forward once and backward once, every message is \
         sent once, and there is one update",
    );
}

#[test]
fn a_micro_batch_goes_backward_in_one_piece_and_in_two() {
    zb_h1().put(1, 9, Backward(0)).rejected(
        "stage 1, instruction 9, Backward(0): instruction 7, BackwardInput(0), has done that \
         already. Every micro-batch goes forward once and backward once, every message is \
         sent once, and there is one update",
    );
}

#[test]
fn a_micro_batch_is_forgotten() {
    gpipe().drop(2, Forward(3)).drop(2, Backward(3)).drop(2, SendGradient(3)).rejected(
        "stage 2 never does Forward(3). Every micro-batch goes forward once and backward \
         once, on every stage",
    );
}

#[test]
fn a_micro_batch_never_comes_back() {
    gpipe().drop(2, Backward(1)).drop(2, SendGradient(1)).rejected(
        "stage 2 never does Backward(1). Every micro-batch goes forward once and backward \
         once, on every stage",
    );
}

#[test]
fn a_send_is_forgotten() {
    one_f_one_b()
        .drop(2, SendGradient(3))
        .rejected("stage 2 never does SendGradient(3), and stage 1 waits for it");
}

#[test]
fn sends_are_swapped() {
    // Both are computed by then.
    let mut edit = gpipe().drop(0, SendActivation(0));
    let behind = edit.find(0, SendActivation(1)) + 1;
    edit = edit.put(0, behind, SendActivation(0));
    edit.rejected(
        "stage 1, instruction 0, RecvActivation(0): what arrives is SendActivation(1), \
         instruction 2 of stage 0. What is sent first arrives first",
    );
}

#[test]
fn a_stage_takes_micro_batches_in_another_order_than_they_come() {
    gpipe().swap(2, RecvActivation(1), RecvActivation(2)).swap(2, Forward(1), Forward(2)).rejected(
        "stage 2, instruction 2, RecvActivation(2): what arrives is SendActivation(1), \
             instruction 5 of stage 1. What is sent first arrives first",
    );
}

#[test]
fn the_gradient_of_the_weights_is_forgotten() {
    zb_h1().drop(2, BackwardWeight(3)).rejected(
        "stage 2 never does BackwardWeight(3). Without it, the update would lack the gradient \
         of a micro-batch",
    );
}

#[test]
fn the_gradient_of_the_weights_comes_before_that_of_the_input() {
    zb_h1().swap(0, BackwardInput(0), BackwardWeight(0)).rejected(
        "stage 0, instruction 7, BackwardWeight(0): it needs BackwardInput(0) first, and that \
         comes later, as instruction 8. The weights' gradient uses what the gradient of the \
         input has left",
    );
}

#[test]
fn the_update_is_forgotten() {
    one_f_one_b().drop(1, Update).rejected(
        "stage 1 never does Update. A step ends with the update of the weights, on every stage",
    );
}

// ANCHOR: early
#[test]
fn the_update_comes_before_the_last_gradient() {
    zb_h1().swap(2, BackwardWeight(3), Update).rejected(
        "stage 2, instruction 19, Update: it lacks the gradient of BackwardWeight(3), which \
         comes only as instruction 20. The update comes after the gradients of all \
         micro-batches",
    );
}
// ANCHOR_END: early

#[test]
fn there_are_two_updates() {
    let two = one_f_one_b();
    let end = two.find(0, Update);
    two.put(0, end, Update).rejected(
        "stage 0, instruction 17, Update: instruction 16, Update, has done that already. \
         Every micro-batch goes forward once and backward once, every message is sent once, \
         and there is one update",
    );
}

#[test]
fn a_micro_batch_does_not_exist() {
    one_f_one_b().replace(0, Forward(3), Forward(4)).rejected(
        "stage 0, instruction 8, Forward(4): there is no micro-batch 4; the last one is \
         micro-batch 3",
    );
}

#[test]
fn a_chunk_does_not_exist() {
    let mut edit = Edit::of(Kind::Interleaved { chunks: 2 }, 2, 4);
    edit.0.instructions[0][3].chunk = 2;
    edit.rejected(
        "stage 0, instruction 3, SendActivation(1) of chunk 2: there is no chunk 2; the last \
         one is chunk 1",
    );
    let mut edit = Edit::of(Kind::Interleaved { chunks: 2 }, 2, 4);
    let last = edit.0.instructions[0].len() - 1;
    edit.0.instructions[0][last].chunk = 1;
    edit.rejected(
        "stage 0, instruction 40, Update of chunk 1: there is no update of chunk 1; the last \
         one is update of chunk 0",
    );
}

#[test]
fn messages_with_nobody() {
    one_f_one_b().put(0, 0, RecvActivation(0)).rejected(
        "stage 0, instruction 0, RecvActivation(0): this is the beginning of the model: its \
         input is the data, which no other stage sends",
    );
    one_f_one_b().put(2, 2, SendActivation(0)).rejected(
        "stage 2, instruction 2, SendActivation(0): this is the end of the model: its \
         activation goes into the loss, and to no other stage",
    );
    Edit::of(Kind::Interleaved { chunks: 2 }, 1, 2).put(0, 1, SendActivation(0)).rejected(
        "stage 0, instruction 1, SendActivation(0): the neighbouring chunk is on the same \
         stage, without a message",
    );
}

#[test]
fn chunks_of_one_stage_in_the_wrong_order() {
    let mut edit = Edit::of(Kind::Interleaved { chunks: 2 }, 1, 2);
    edit.0.instructions[0].swap(0, 1);
    edit.rejected(
        "stage 0, instruction 0, Forward(0) of chunk 1: it needs Forward(0) first, and that \
         comes later, as instruction 1. A chunk goes forward with what the chunk before it \
         has computed",
    );
    let mut edit = Edit::of(Kind::Interleaved { chunks: 2 }, 1, 2);
    let backward = edit.find(0, Backward(0));
    let other = (0..).find(|&at| at > backward && edit.0.instructions[0][at].action == Backward(0));
    edit.0.instructions[0].swap(backward, other.unwrap());
    edit.rejected(
        "stage 0, instruction 2, Backward(0): it needs Backward(0) of chunk 1 first, and that \
         comes later, as instruction 4. A chunk's gradient comes from the chunk after it",
    );
}

#[test]
fn another_chunk_arrives_than_expected() {
    let mut edit = Edit::of(Kind::Interleaved { chunks: 2 }, 3, 3);
    let list = &mut edit.0.instructions[1];
    let of_chunk_1 = Instruction { chunk: 1, action: RecvActivation(0) };
    let position = list.iter().position(|instruction| *instruction == of_chunk_1).unwrap();
    list.remove(position);
    list.insert(0, of_chunk_1);
    edit.rejected(
        "stage 1, instruction 0, RecvActivation(0) of chunk 1: what arrives is \
         SendActivation(0), instruction 1 of stage 0. What is sent first arrives first",
    );
}

#[test]
fn nothing_to_do() {
    Edit(Schedule::of(0, 4, |_| vec![])).rejected(
        "stages: 0, chunks on each: 1, micro-batches: 4; a schedule has at least one of each",
    );
    Edit(Schedule { chunks: 0, ..gpipe().0 }).rejected(
        "stages: 3, chunks on each: 0, micro-batches: 4; a schedule has at least one of each",
    );
}
