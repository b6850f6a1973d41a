//! Chapter 2's table and chapter 4's training with the learner's sums.

use std::error::Error;
use std::io;
use std::time::Duration;

use candle_core::{DType, Tensor};
use datasets::source::LoadedData;
use devices::DevicePlan;
use harness::records::TrainOptions;
use harness::report::{Report, line, paragraph};
use ops::difference::largest_difference;
use params_and_allreduce::bandwidth;
use params_and_allreduce::communicator::{self, Communicator, SharedCommunicator};
use params_and_allreduce::thread::{Cause, run_ranks};
use params_and_allreduce::{Algorithm, forward};
use scratch_data_parallel::train::Outcome;
use scratch_data_parallel::{Error as TrainError, allreduce_sums, train, train_batch};
use single_gpu::lenet::Lenet;
use single_gpu::sgd::sgd;
use single_gpu::train::{Step, local_gradients};
use split_batch::loader::{LocalBatch, Shards};

use super::comparison::{self, Row};

/// A rank waits so long for a message: an answer that hangs is named by its rank.
pub(super) const TIMEOUT: Duration = Duration::from_secs(15);

/// Runs of each row of the table.
const RUNS: u32 = 30;

/// The options of a training. LeNet begins to learn in the third epoch.
pub(super) const OPTIONS: TrainOptions =
    TrainOptions { epochs: 5, batch_size: 32, learning_rate: 0.2, seed: 1 };

/// The images of a training.
pub(super) fn images() -> LoadedData {
    LoadedData::draw((Some(6016), Some(1000)))
}

/// Weights whose difference after one step is at most this are equal up to rounding in f32.
const ROUNDING: f64 = 1e-4;

/// A rank of a real program, as an answer takes it.
pub struct Peer(pub(super) SharedCommunicator);

impl Communicator for Peer {
    forward!(0: rank, world_size, device, send, send_shared, recv, shares_memory, world_rank);

    fn all_reduce(
        &self,
        tensor: &Tensor,
        algorithm: Algorithm,
    ) -> Result<Tensor, communicator::Error> {
        self.0.all_reduce(tensor, algorithm)
    }
}

/// An answer that adds up tensors of all ranks: on each rank, the sums in the order of the tensors.
pub(super) type Sums<'a> =
    &'a (dyn Fn(&Peer, &[Tensor]) -> Result<Vec<Tensor>, communicator::Error> + Sync);

/// A communicator whose native all-reduce is the learner's.
pub(super) struct Yours<'a> {
    pub(super) comm: SharedCommunicator,
    pub(super) sums: Sums<'a>,
}

impl Communicator for Yours<'_> {
    forward!(comm: rank, world_size, device, send, send_shared, recv, shares_memory, world_rank);

    fn all_reduce(
        &self,
        tensor: &Tensor,
        algorithm: Algorithm,
    ) -> Result<Tensor, communicator::Error> {
        match algorithm {
            Algorithm::Native => {
                let sums = (self.sums)(&Peer(self.comm.clone()), std::slice::from_ref(tensor))?;
                Ok(sums.into_iter().next().unwrap_or_else(|| tensor.clone()))
            }
            ours => self.comm.all_reduce(tensor, ours),
        }
    }
}

/// Prints chapter 2's table with a row for the learner's sum of one tensor, beside ours by the same algorithm and by one-shot.
pub(super) fn show_speed(sums: Sums<'_>, same: Algorithm) -> Result<(), Box<dyn Error>> {
    let rows = [
        (Algorithm::Native, "yours".to_owned()),
        (same, format!("{same}, ours")),
        (Algorithm::OneShot, "one-shot, ours".to_owned()),
    ];
    line("all-reduce in GB/s, bus bandwidth")?;
    for devices in [2, 4] {
        let plan = DevicePlan::slices(devices)?;
        if plan.shares_hardware() {
            paragraph(format_args!("{plan}: left out, because the devices would share cores"))?;
            continue;
        }
        let tables = run_ranks(&plan, TIMEOUT, |rank| {
            let yours = Yours { comm: rank.into(), sums };
            bandwidth::Table::measure_rank(&yours, plan.to_string(), &rows, Some(RUNS))
        })?;
        line(&tables[0])?;
    }
    Ok(line("")?)
}

/// Trains LeNet on two devices with the learner's sums of gradients and with our all-reduce, and prints the difference.
pub(super) fn show_training(sums: Sums<'_>, ours: Algorithm) -> Result<(), Box<dyn Error>> {
    let step = |rank: &Peer, model: &Lenet, batch: &LocalBatch, rate: f64| {
        let local = local_gradients(model, &batch.shards[0].to_device(rank.device())?)?;
        let gradients = sums(rank, &local.gradients)?;
        sgd(model.parameters(), &gradients, rate, batch.samples)?;
        Ok(Step { sums: allreduce_sums(rank, local.sums, ours)?, gradients })
    };
    show_steps(&step, ours, 1)
}

/// Trains LeNet on two devices for some epochs with the learner's step and with ours, and prints the difference.
pub(super) fn show_steps(
    yours: YourStep<'_>,
    ours: Algorithm,
    epochs: usize,
) -> Result<(), Box<dyn Error>> {
    let (data, options) = (images(), TrainOptions { epochs, ..OPTIONS });
    let [one, two] = [DevicePlan::slices(1)?, DevicePlan::slices(2)?];
    let run = |plan: &DevicePlan, step: StepOf<'_>| {
        train(&data, &options, DType::F32, plan, &mut Report::silent(), Shards::of_rank, step)
    };
    let plain: StepOf<'_> =
        &|comm, model, batch, rate| train_batch(&**comm, model, batch, rate, ours);
    let yours: StepOf<'_> =
        &|comm, model, batch, rate| yours(&Peer(comm.clone()), model, batch, rate);
    let alone = run(&one, plain)?;
    let with_ours = run(&two, plain)?;
    let with_yours = match run(&two, yours) {
        Err(failure) => match failure.cause {
            Cause::Error(TrainError::ReplicasDiffer(differs)) => {
                return Ok(paragraph(format_args!(
                    "LeNet on 2 devices, with your answer: {differs}. Nothing else fails: only the comparison of \
                     the replicas shows it."
                ))?);
            }
            _ => return Err(failure.into()),
        },
        trained => trained?,
    };
    show_trainings(&[
        ("one device", &alone),
        (&format!("ours, {ours}"), &with_ours),
        ("yours", &with_yours),
    ])?;
    let apart = largest_difference(&with_yours.after_first_step, &alone.after_first_step)?;
    Ok(paragraph(conclusion(with_yours.hashes == with_ours.hashes, apart))?)
}

/// Prints the trainings in a table: seconds per epoch, last loss, last accuracy and weights.
pub(super) fn show_trainings(trainings: &[(&str, &Outcome)]) -> io::Result<()> {
    let rows: Vec<Row<'_>> = trainings.iter().map(|(name, run)| Row::of(name, run)).collect();
    comparison::show("LeNet", &rows)
}

/// What the weights say: whether both runs end with the same, and how far the first step is from the step of one device.
pub(super) fn conclusion(same: bool, apart: f64) -> String {
    match apart {
        _ if same => "Your weights are ours, to the last bit.".to_owned(),
        ..=ROUNDING => "Your sums and ours add in another order: the first step is one device's up to rounding, and training \
                        makes the difference larger."
            .to_owned(),
        _ => format!(
            "After one step, the weights are {apart:.1} away from the weights of one device, relative to the largest: that is \
             no rounding. The run ends without an error all the same."
        ),
    }
}

/// An answer that makes a step.
pub(super) type YourStep<'a> =
    &'a (dyn Fn(&Peer, &Lenet, &LocalBatch, f64) -> Result<Step, TrainError> + Sync);

/// A step, as [`train`] takes it.
pub(super) type StepOf<'a> =
    &'a (dyn Fn(&SharedCommunicator, &Lenet, &LocalBatch, f64) -> Result<Step, TrainError> + Sync);
