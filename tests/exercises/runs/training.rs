//! Trainings that differ in the learner's part: a row of numbers for each, and a sentence about their weights.

use std::io;

use concise_wrapper::model::{Progress, Step as StepOfStage5};
use concise_wrapper::optimizer::{Momentum, Sgd};
use concise_wrapper::weights::Weights;
use harness::records::seconds_per_epoch;
use harness::report::Table;

use super::data_parallel::StepOf;
use super::note_if_busy;
use super::prelude::*;

/// A rank waits so long for a message: an answer that hangs is named by its rank.
pub(super) const TIMEOUT: Duration = Duration::from_secs(15);

/// Weights that differ by at most this after one step are equal up to rounding in f32.
pub(super) const ROUNDING: f64 = 1e-5;

/// The effect of most mistakes.
pub(super) const SILENT: &str = "The run ends without an error all the same.";

/// So many images to train on, and some to test.
pub(super) fn images(train: usize) -> LoadedData {
    LoadedData::draw((Some(train), Some(500)))
}

pub(super) const fn options(epochs: usize, batch_size: usize, learning_rate: f64) -> TrainOptions {
    TrainOptions { epochs, batch_size, learning_rate, seed: 1 }
}

/// The results of a training.
pub(super) struct Training {
    pub name: String,
    pub records: Vec<EpochRecord>,
    pub accuracy: f64,
    /// After the first step, and at the end.
    pub weights: [Snapshot; 2],
    pub hash: WeightsHash,
    /// The cells of further columns.
    pub more: Vec<String>,
}

impl Training {
    pub(super) fn new(
        name: &str,
        records: Vec<EpochRecord>,
        weights: [Snapshot; 2],
    ) -> candle_core::Result<Self> {
        let accuracy = records.last().map_or(f64::NAN, |last| last.test_accuracy);
        let (name, hash) = (name.to_owned(), WeightsHash::new(&weights[1])?);
        Ok(Self { name, records, accuracy, weights, hash, more: Vec::new() })
    }

    /// Trains LeNet with chapter 4's loop.
    pub(super) fn of_lenet(
        name: &str,
        devices: usize,
        (data, options): (&LoadedData, &TrainOptions),
        shards: impl Fn(usize, usize) -> Shards + Sync,
        step: StepOf<'_>,
    ) -> Run<Self> {
        let (plan, report) = (DevicePlan::slices(devices)?, &mut Report::silent());
        let it =
            scratch_data_parallel::train(data, options, DType::F32, &plan, report, shards, step)?;
        Ok(Self::new(name, it.records, [it.after_first_step, it.weights])?)
    }

    /// Trains a model with stage 5's loop.
    pub(super) fn of(
        name: &str,
        model: &impl Model,
        (data, options): (&LoadedData, &TrainOptions),
    ) -> Result<Self, ModelError> {
        let (mut first, report) = (Snapshot::new(), &mut Report::silent());
        let observe = |progress: Progress<'_>| {
            if progress.steps == 1 && progress.last.is_some() {
                first = model.weights().snapshot()?;
            }
            Ok(())
        };
        let sgd = &mut Sgd::new(Momentum::default());
        let it = concise_wrapper::train(model, data, options, (sgd, 0), None, report, observe)?;
        Ok(Self::new(name, it.records, [first, it.weights])?)
    }
}

/// Another backward pass of a model.
pub(super) struct With<M, B> {
    pub model: M,
    pub backward: B,
}

impl<M: Model, B> Model for With<M, B>
where
    B: Fn(&M, &LocalBatch) -> Result<StepOfStage5, ModelError>,
{
    fn backward(&self, batch: &LocalBatch) -> Result<StepOfStage5, ModelError> {
        (self.backward)(&self.model, batch)
    }

    fn hosts(&self) -> Shards {
        self.model.hosts()
    }

    fn weights(&self) -> &Weights {
        self.model.weights()
    }

    fn evaluate(&self, images: &Dataset) -> Result<BatchSums, ModelError> {
        self.model.evaluate(images)
    }

    fn rank(&self) -> Option<&SharedCommunicator> {
        self.model.rank()
    }
}

/// Prints a line for each training, and a note if other programs used the cores.
pub(super) fn show(title: &str, trainings: &[Training], more: &[&str]) -> io::Result<()> {
    let columns = [&["s/epoch", "loss", "test acc", "weights"], more].concat();
    let row = |it: &Training| {
        let seconds = format!("{:.2}", seconds_per_epoch(&it.records));
        let loss = it.records.last().map_or(f64::NAN, |last| last.train_loss);
        let accuracy = format!("{:.3}", it.accuracy);
        let first = [it.name.clone(), seconds, format!("{loss:.4}"), accuracy, it.hash.to_string()];
        [&first, it.more.as_slice()].concat()
    };
    table(title, &columns, trainings.iter().map(row))?;
    note_if_busy()
}

/// Prints a table. A row begins with its name.
pub(super) fn table(
    title: &str,
    columns: &[&str],
    rows: impl IntoIterator<Item = Vec<String>>,
) -> io::Result<()> {
    let mut table = columns.iter().fold(Table::new(title), |table, name| table.column(name, 0));
    rows.into_iter().for_each(|row| table.row(row));
    table.print()
}

pub(super) fn milliseconds(seconds: f64) -> String {
    format!("{:.1} ms", 1e3 * seconds)
}

/// Compares the learner's weights with those of other trainings, each with its name. If none of them ends with the same weights,
/// the sentence is about the first step of the learner and of the first of these trainings.
pub(super) fn conclusion(yours: &Training, others: &[(&str, &Training)]) -> String {
    if let Some((whose, same)) = others.iter().find(|(_, it)| it.hash == yours.hash) {
        let [loss, right] =
            [yours, same].map(|it| it.records.last().map_or(0.0, |last| last.train_loss));
        let told = if (loss - right).abs() <= 1e-5 * right.abs() {
            ""
        } else {
            " The loss that you report is not."
        };
        return format!("Your weights are {whose}, to the last bit.{told}");
    }
    let (whose, right) = &others[0];
    let [yours, right] = [yours, right].map(|it| &it.weights[0]);
    match largest_difference(yours, right) {
        Ok(0.0) => {
            format!("Your first step is {whose}, to the last bit, and a later step is not.")
        }
        _ => format!("After one step, {}", difference(yours, right, whose, ROUNDING)),
    }
}

/// How far weights are from those that are right.
pub(super) fn difference(yours: &Snapshot, right: &Snapshot, whose: &str, rounding: f64) -> String {
    match largest_difference(yours, right) {
        Err(_) => {
            let [yours, right] =
                [yours, right].map(|all| all.iter().map(|(_, it)| it.elem_count()).sum::<usize>());
            format!("your devices train {yours} numbers, and one device trains {right}. {SILENT}")
        }
        Ok(0.0) => format!("your weights are {whose}, to the last bit."),
        Ok(apart) if apart <= rounding => {
            format!(
                "your weights are {whose} up to rounding. More steps make the difference larger."
            )
        }
        Ok(apart) => {
            let apart = if apart < 0.05 { format!("{apart:.0e}") } else { format!("{apart:.1}") };
            format!(
                "your weights are {apart} away from {whose}, relative to the largest number of a tensor: that is no rounding. {SILENT}"
            )
        }
    }
}
