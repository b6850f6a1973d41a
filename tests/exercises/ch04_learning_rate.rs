//! Chapter 4, `book/src/ch04-data-parallel.md`: accuracy against learning rate and number of devices.
//!
//! Check your answer: `cargo course check ch04_learning_rate`

use datasets::Batch;
use exercises::classifier::Classifier;
use exercises::experiment::{Experiment, Row};
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::{Communicator, Error};
use params_and_allreduce::thread::RankFailure;
use single_gpu::sgd::sgd;
use split_batch::split_batch;

/// Trains once for every learning rate on every number of devices, and measures on the test images.
///
/// One row for each pair: the rows are ordered by rate, and for each rate by the number of devices as asked for.
/// Every run
///
/// - starts from fresh weights, `Classifier::new(experiment.seed, …)`;
/// - trains `experiment.epochs` epochs (0, 1, …) on `experiment.batches(epoch)`, the *global* batches:
///   each of the k devices takes its shard, gradients are summed, and all make the same update, to the
///   last bit;
/// - ends with `model.evaluate(&experiment.test)`: mean loss and accuracy of the test images.
///
/// Batch and rate are the same for every k. The result of a run must not depend on the number of devices, except for rounding
/// in the last of sixteen digits.
///
/// `experiment.on_devices(k, |rank| …)` runs a closure on k devices and returns the results in rank order.
/// Call this function once for each row; the check counts the runs.
///
/// Fails with the error of the rank that failed first.
pub fn rate_table(
    experiment: &Experiment,
    rates: &[f64],
    devices: &[usize],
) -> Result<Vec<Row>, RankFailure<Error>> {
    // TODO: for every rate and every number of devices: train, measure, add a row.
    todo!("a row for every rate on every number of devices")
}

// The check of this answer. Leave this line as it is.
exercises::check!(ch04_learning_rate, rate_table);
