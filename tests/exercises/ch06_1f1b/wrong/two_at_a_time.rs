// expect: So when work has reached the last stage, all go forward once and backward once in turn

use model_parallel::pipeline::Action::{
    self, Backward, Forward, RecvActivation, RecvGradient, SendActivation, SendGradient, Update,
};

/// Goes backward twice, then forward twice, wherever it can.
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
    let ahead = (behind + 1).min(micro_batches);
    let (mut begun, mut back) = (0, 0);
    while back < micro_batches {
        while begun < micro_batches && begun - back < ahead {
            forward(&mut actions, begun);
            begun += 1;
        }
        for _ in 0..2.min(begun - back) {
            backward(&mut actions, back);
            back += 1;
        }
    }
    actions.push(Update);
    actions
}
