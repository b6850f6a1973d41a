// expect: it needs RecvGradient(0) first, and that is never done

use model_parallel::pipeline::Action::{
    self, Backward, Forward, RecvActivation, RecvGradient, SendActivation, SendGradient, Update,
};

/// The passes, and nothing that is sent.
pub fn one_f_one_b(stage: usize, stages: usize, micro_batches: usize) -> Vec<Action> {
    let behind = stages - stage - 1;
    let (first, last) = (stage == 0, behind == 0);
    let mut actions = Vec::new();
    let forward = |actions: &mut Vec<Action>, i: usize| {
        actions.push(Forward(i));
    };
    let backward = |actions: &mut Vec<Action>, i: usize| {
        actions.push(Backward(i));
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
