//! Chapter 2's table and chapter 4's training with the learner's sums.

use std::error::Error;
use std::time::Duration;

use candle_core::{DType, Tensor};
use datasets::source::LoadedData;
use devices::DevicePlan;
use harness::records::TrainOptions;
use harness::report::{Report, Table, columns, counted, line, paragraph};
use ops::difference::largest_difference;
use params_and_allreduce::bandwidth::{Sum, by, seconds, share, size};
use params_and_allreduce::communicator::{self, Communicator, SharedCommunicator};
use params_and_allreduce::thread::{Cause, run_ranks};
use params_and_allreduce::{Algorithm, forward};
use scratch_data_parallel::{Error as TrainError, allreduce_sums, train, train_batch};
use single_gpu::lenet::Lenet;
use single_gpu::sgd::sgd;
use single_gpu::train::{Step, local_gradients};
use split_batch::loader::{LocalBatch, Shards};

use super::comparison::{Row, show};

/// A rank waits so long for a message: an answer that hangs is named by its rank.
pub(super) const TIMEOUT: Duration = Duration::from_secs(15);

/// The bytes of the tensors of the table, and how often each is measured.
const SIZES: [(usize, u32); 3] = [(4 << 10, 200), (1 << 20, 50), (45 << 20, 5)];

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

impl From<&Peer> for SharedCommunicator {
    fn from(peer: &Peer) -> Self {
        peer.0.clone()
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

/// Prints rows of chapter 2's tables: the learner's sum of one tensor, beside ours by the same algorithm and by one-shot.
pub(super) fn show_speed(sums: Sums<'_>, same: Algorithm) -> Result<(), Box<dyn Error>> {
    let names =
        ["yours".to_owned(), format!("{same}, ours"), format!("{}, ours", Algorithm::OneShot)];
    for devices in [2, 4] {
        let plan = DevicePlan::slices(devices)?;
        let columns = run_ranks(&plan, TIMEOUT, |rank| {
            let yours: Sum<'_> = Box::new(|tensor| {
                let sum =
                    sums(&Peer(rank.into()), std::slice::from_ref(tensor))?.into_iter().next();
                // The rows take turns with one tensor, so all of them need its shape.
                Ok(sum
                    .filter(|sum| sum.shape() == tensor.shape())
                    .unwrap_or_else(|| tensor.clone()))
            });
            let rows = [yours, by(rank, same), by(rank, Algorithm::OneShot)];
            let column = |(bytes, runs)| seconds(rank, &rows, bytes, Some(runs));
            SIZES.into_iter().map(column).collect::<Result<Vec<_>, _>>()
        })?;
        let shared = if plan.shares_hardware() { " that share cores" } else { "" };
        let mut table = Table::new(&format!("bus bandwidth in GB/s, {devices} devices{shared}"));
        for (bytes, _) in SIZES {
            table = table.column(&size(bytes), 0);
        }
        for (row, name) in names.iter().enumerate() {
            let rate = |((bytes, _), column): (_, &Vec<Option<f64>>)| {
                let moved = bytes as f64 * share(devices);
                column[row].map_or("–".to_owned(), |it| format!("{:.3}", moved / it / 1e9))
            };
            let rates = SIZES.into_iter().zip(&columns[0]).map(rate);
            table.row([name.clone()].into_iter().chain(rates));
        }
        line(format_args!("{}\n", table.text(harness::report::columns())))?;
    }
    Ok(())
}

/// Trains LeNet on two devices with the learner's sums of gradients and with our all-reduce, and prints the difference.
pub(super) fn show_training(yours: Sums<'_>, ours: Algorithm) -> Result<(), Box<dyn Error>> {
    let step: StepOf<'_> =
        &|comm, model, batch, rate| train_batch(&**comm, model, batch, rate, ours);
    show_steps(2, &step_with(yours), &[(format!("{ours}, ours"), step)], 1)
}

/// A step that adds up the gradients by `sums`.
pub(super) fn step_with(
    sums: Sums<'_>,
) -> impl Fn(&SharedCommunicator, &Lenet, &LocalBatch, f64) -> Result<Step, TrainError> + Sync {
    move |comm, model, batch, rate| {
        let local = local_gradients(model, &batch.shards[0].to_device(comm.device())?)?;
        let gradients = sums(&Peer(comm.clone()), &local.gradients)?;
        sgd(model.parameters(), &gradients, rate, batch.samples)?;
        Ok(Step { sums: allreduce_sums(&**comm, local.sums, Algorithm::default())?, gradients })
    }
}

/// Trains LeNet on so many devices for some epochs, with the learner's step and with our steps. Prints the times and the
/// weights, and compares the learner's weights with our first step's and with one device's.
pub(super) fn show_steps(
    devices: usize,
    yours: StepOf<'_>,
    ours: &[(String, StepOf<'_>)],
    epochs: usize,
) -> Result<(), Box<dyn Error>> {
    let (data, options) = (images(), TrainOptions { epochs, ..OPTIONS });
    let plan = DevicePlan::slices(devices)?;
    let run = |plan: &DevicePlan, step: StepOf<'_>| {
        train(&data, &options, DType::F32, plan, &mut Report::silent(), Shards::of_rank, step)
    };
    let alone = run(&DevicePlan::slices(1)?, &|comm, model, batch, rate| {
        train_batch(&**comm, model, batch, rate, Algorithm::default())
    })?;
    let yours = match run(&plan, yours) {
        Err(failure) => match failure.cause {
            Cause::Error(TrainError::ReplicasDiffer(differs)) => {
                return Ok(paragraph(format_args!(
                    "LeNet on {devices} devices, with your answer: {differs}. Nothing else fails: only the comparison of \
                     the replicas shows it."
                ))?);
            }
            _ => return Err(failure.into()),
        },
        trained => trained?,
    };
    let ours = ours.iter().map(|(name, step)| Ok((name, run(&plan, *step)?)));
    let ours = ours.collect::<Result<Vec<_>, Box<dyn Error>>>()?;
    let rows = ours.iter().map(|(name, trained)| Row::of(name, trained));
    let first = [Row::of("one device", &alone), Row::of("yours", &yours)];
    let title = format!("LeNet on {}", counted(devices, "device"));
    show(&title, &first.into_iter().chain(rows).collect::<Vec<_>>())?;
    let apart = largest_difference(&yours.after_first_step, &alone.after_first_step)?;
    Ok(paragraph(conclusion(yours.hashes == ours[0].1.hashes, apart))?)
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

/// A step, as [`train`] takes it.
pub(super) type StepOf<'a> =
    &'a (dyn Fn(&SharedCommunicator, &Lenet, &LocalBatch, f64) -> Result<Step, TrainError> + Sync);
