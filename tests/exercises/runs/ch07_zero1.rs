//! The learner's step on chunks under chapter 4's training.

use std::collections::HashMap;
use std::sync::Mutex;

use harness::lock::locked;
use ops::size_in_bytes;
use sharded_state::flat;

use super::data_parallel::setting;
use super::prelude::*;
pub use crate::checks::ch07_zero1::Answer;

const DEVICES: usize = 2;
const MOMENTUM: f64 = 0.5;

/// The velocities of all ranks.
type Velocities = Mutex<HashMap<usize, Tensor>>;

/// A step of LeNet on the row of its parameters.
fn on_rows<'a>(
    step: impl Fn(
        &SharedCommunicator,
        &Tensor,
        &Tensor,
        Option<&Tensor>,
        [f64; 2],
    ) -> Result<(Tensor, Tensor), CommError>
    + Sync
    + 'a,
    velocities: &'a Velocities,
) -> impl Fn(&SharedCommunicator, &Lenet, &LocalBatch, f64) -> Result<Step, TrainError> + Sync + 'a
{
    move |comm, model, batch, rate| {
        let local = local_gradients(model, &batch.shards[0].to_device(comm.device())?)?;
        let parameters: Vec<Tensor> =
            model.parameters().iter().map(|it| it.value.as_detached_tensor()).collect();
        let (row, gradient) = (flat::join(&parameters)?, flat::join(&local.gradients)?);
        let velocity = locked(velocities).get(&comm.rank()).cloned();
        let constants = [MOMENTUM, rate / batch.samples as f64];
        let (row, velocity) = step(comm, &row, &gradient, velocity.as_ref(), constants)?;
        locked(velocities).insert(comm.rank(), velocity);
        let values = flat::split(&row, &parameters)?;
        for (parameter, value) in model.parameters().iter().zip(values) {
            parameter.value.set(&value)?;
        }
        let sums = allreduce_sums(&**comm, local.sums, Algorithm::default())?;
        Ok(Step { sums, gradients: local.gradients })
    }
}

/// Every rank holds the whole velocity.
fn whole(
    comm: &SharedCommunicator,
    row: &Tensor,
    gradient: &Tensor,
    velocity: Option<&Tensor>,
    [momentum, rate]: [f64; 2],
) -> Result<(Tensor, Tensor), CommError> {
    let mut sum = comm.all_reduce(gradient, Algorithm::Ring)?;
    if let Some(velocity) = velocity {
        sum = ((velocity * momentum)? + sum)?;
    }
    Ok(((row - (&sum * rate)?)?, sum))
}

/// Trains LeNet with the learner's step and with whole velocities. Fails with the answer.
pub fn run(step: Answer) -> Run {
    let (data, options) = setting();
    let [yours, ours] = [Velocities::default(), Velocities::default()];
    let steps: [(&str, super::data_parallel::StepOf<'_>, &Velocities); 2] =
        [("yours", &on_rows(step, &yours), &yours), ("whole, ours", &on_rows(whole, &ours), &ours)];
    let mut trained = Vec::new();
    for (name, step, velocities) in steps {
        let mut training =
            Training::of_lenet(name, DEVICES, (&data, &options), Shards::of_rank, step)?;
        let bytes = locked(velocities).values().map(size_in_bytes).max().unwrap_or(0);
        training.more.push(format!("{:.2}", bytes as f64 / 1e6));
        trained.push(training);
    }
    show(
        &format!("LeNet on {DEVICES} devices, momentum {MOMENTUM}"),
        &trained,
        &["MB of\nvelocity"],
    )?;
    Ok(paragraph(conclusion(&trained[0], &[("ours", &trained[1])]))?)
}
