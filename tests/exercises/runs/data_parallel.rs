//! Chapter 2's tables and chapter 4's training with the learner's sums.

use std::slice;

use params_and_allreduce::bandwidth::{Sum, seconds, share, size};
use params_and_allreduce::forward;

use super::prelude::*;

/// A rank whose native all-reduce is the learner's.
pub(super) struct WithSums {
    pub comm: SharedCommunicator,
    pub sums: Sums<'static>,
}

impl Communicator for WithSums {
    forward!(comm: rank, world_size, device, send, send_shared, recv, shares_memory, world_rank);

    fn all_reduce(&self, tensor: &Tensor, algorithm: Algorithm) -> Result<Tensor, CommError> {
        match algorithm {
            Algorithm::Native => sum_of(self.sums, self.comm.clone(), tensor),
            _ => self.comm.all_reduce(tensor, algorithm),
        }
    }
}

/// An answer that adds up tensors of all ranks: on each rank, the sums in the order of the tensors.
pub(super) type Sums<'a> = &'a (dyn Fn(&Peer, &[Tensor]) -> Result<Vec<Tensor>, CommError> + Sync);

/// The sum of one tensor. An answer without a sum leaves the tensor.
fn sum_of(
    sums: Sums<'_>,
    comm: impl Into<SharedCommunicator>,
    tensor: &Tensor,
) -> Result<Tensor, CommError> {
    let sums = sums(&Peer::new(comm), slice::from_ref(tensor))?;
    Ok(sums.into_iter().next().unwrap_or_else(|| tensor.clone()))
}

/// A sum of one tensor, with the name of its row.
pub(super) type Named<'a> =
    (&'a str, &'a (dyn Fn(&Rank, &Tensor) -> Result<Tensor, CommError> + Sync));

/// Measures sums of tensors of so many bytes, each so often. Returns a row for each sum, with a cell for each size.
pub(super) fn measure(
    plan: &DevicePlan,
    sizes: &[(usize, u32)],
    sums: &[Named<'_>],
    cell: impl Fn(usize, f64) -> String,
) -> Run<Vec<Vec<String>>> {
    let columns = run_ranks(plan, TIMEOUT, |rank| {
        // The rows take turns with one tensor, so all of them need its shape.
        let rows = sums.iter().map(|&(_, sum)| {
            Box::new(move |tensor: &Tensor| {
                let sum = sum(rank, tensor)?;
                Ok(if sum.shape() == tensor.shape() { sum } else { tensor.clone() })
            }) as Sum<'_>
        });
        let rows: Vec<_> = rows.collect();
        let column = |&(bytes, runs)| seconds(rank, &rows, bytes, Some(runs));
        sizes.iter().map(column).collect::<Result<Vec<_>, _>>()
    })?;
    let row = |(row, (name, _)): (usize, &Named<'_>)| {
        let cell = |(column, (bytes, _)): (&Vec<Option<f64>>, &_)| {
            column[row].map_or("–".to_owned(), |seconds| cell(*bytes, seconds))
        };
        [(*name).to_owned()].into_iter().chain(columns[0].iter().zip(sizes).map(cell)).collect()
    };
    Ok(sums.iter().enumerate().map(row).collect())
}

/// Prints rows of chapter 2's tables: the learner's sum of one tensor, beside ours by the same algorithm and by one-shot.
pub(super) fn show_speed(yours: Sums<'_>, same: Algorithm) -> Run {
    let sizes = [(4 << 10, 200), (1 << 20, 50), (45 << 20, 5)];
    let names = [same, Algorithm::OneShot].map(|algorithm| format!("{algorithm}, ours"));
    for devices in [2, 4] {
        let plan = DevicePlan::slices(devices)?;
        let rows: [Named<'_>; 3] = [
            ("yours", &|rank, tensor| sum_of(yours, rank, tensor)),
            (&names[0], &|rank, tensor| rank.all_reduce(tensor, same)),
            (&names[1], &|rank, tensor| rank.all_reduce(tensor, Algorithm::OneShot)),
        ];
        let rate = |bytes, seconds| format!("{:.3}", bytes as f64 * share(devices) / seconds / 1e9);
        let rows = measure(&plan, &sizes, &rows, rate)?;
        let shared = if plan.shares_hardware() { " that share cores" } else { "" };
        let title = format!("bus bandwidth in GB/s, {devices} devices{shared}");
        table(&title, &sizes.map(|(bytes, _)| size(bytes)).each_ref().map(String::as_str), rows)?;
        line("")?;
    }
    Ok(())
}

/// A step, as chapter 4's loop takes it.
pub(super) type StepOf<'a> =
    &'a (dyn Fn(&SharedCommunicator, &Lenet, &LocalBatch, f64) -> Result<Step, TrainError> + Sync);

/// Our step.
pub(super) fn our_step(
    algorithm: Algorithm,
) -> impl Fn(&SharedCommunicator, &Lenet, &LocalBatch, f64) -> Result<Step, TrainError> + Sync {
    move |comm, model, batch, rate| train_batch(&**comm, model, batch, rate, algorithm)
}

/// A step that adds up the gradients by `sums`.
pub(super) fn step_with(
    sums: Sums<'_>,
) -> impl Fn(&SharedCommunicator, &Lenet, &LocalBatch, f64) -> Result<Step, TrainError> + Sync {
    move |comm, model, batch, rate| {
        let local = local_gradients(model, &batch.shards[0].to_device(comm.device())?)?;
        let gradients = sums(&Peer::new(comm.clone()), &local.gradients)?;
        sgd(model.parameters(), &gradients, rate, batch.samples)?;
        Ok(Step { sums: allreduce_sums(&**comm, local.sums, Algorithm::default())?, gradients })
    }
}

/// Images and options with which LeNet learns in a few seconds: its loss begins to fall in the third epoch.
pub(super) fn setting() -> (LoadedData, TrainOptions) {
    (images(3008), options(5, 16, 0.2))
}

/// Trains LeNet on two devices with the learner's sums of gradients and with our all-reduce, and prints the difference.
pub(super) fn show_training(yours: Sums<'_>, ours: Algorithm) -> Run {
    show_steps(2, &step_with(yours), &[(&format!("{ours}, ours"), &our_step(ours))])
}

/// Trains LeNet on so many devices, with the learner's step and with our steps, and prints the difference.
pub(super) fn show_steps(devices: usize, yours: StepOf<'_>, ours: &[(&str, StepOf<'_>)]) -> Run {
    let (data, options) = setting();
    let alone = our_step(Algorithm::default());
    let steps =
        [("one device", &alone as _), ("yours", yours)].into_iter().chain(ours.iter().copied());
    let train = |(row, (name, step)): (usize, (&str, StepOf<'_>))| {
        let devices = if row == 0 { 1 } else { devices };
        Training::of_lenet(name, devices, (&data, &options), Shards::of_rank, step)
    };
    let trained = steps.enumerate().map(train).collect::<Run<Vec<_>>>()?;
    show(&format!("LeNet on {}", counted(devices, "device")), &trained, &[])?;
    let [alone, yours, same] = [0, 1, 2].map(|row| &trained[row]);
    paragraph(conclusion(yours, &[("one device's", alone), ("ours", same)]))?;
    let apart = |at: usize| largest_difference(&same.weights[at], &alone.weights[at]);
    let [first, last] = [apart(0)?, apart(1)?];
    Ok(paragraph(format_args!(
        "After one step, ours are {first:.0e} away from one device's: one device adds the samples in another order, and rounds \
         differently. Each step makes the difference larger, up to {last:.2} at the end."
    ))?)
}
