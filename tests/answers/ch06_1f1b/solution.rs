//! Every stage behind this one is one micro-batch ahead of its own backward pass. And what a pass needs is received
//! right before it, what it makes is sent right behind it.

use model_parallel::Action::{
    self, Backward, Forward, RecvActivation, RecvGradient, SendActivation, SendGradient, Update,
};

pub fn one_f_one_b(stage: usize, stages: usize, micro_batches: usize) -> Vec<Action> {
    let behind = stages - stage - 1;
    let (first, last) = (stage == 0, behind == 0);
    let mut actions = Vec::new();
    let forward = |actions: &mut Vec<Action>, i: usize| {
        actions.extend((!first).then_some(RecvActivation(i)));
        actions.push(Forward(i));
        actions.extend((!last).then_some(SendActivation(i)));
    };
    let backward = |actions: &mut Vec<Action>, i: usize| {
        actions.extend((!last).then_some(RecvGradient(i)));
        actions.push(Backward(i));
        actions.extend((!first).then_some(SendGradient(i)));
    };
    let ahead = behind.min(micro_batches);
    for i in 0..ahead {
        forward(&mut actions, i);
    }
    for i in ahead..micro_batches {
        forward(&mut actions, i);
        backward(&mut actions, i - ahead);
    }
    for i in micro_batches - ahead..micro_batches {
        backward(&mut actions, i);
    }
    actions.push(Update);
    actions
}

exercises::check!(ch06_1f1b, one_f_one_b, run);
