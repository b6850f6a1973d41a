//! A table of training runs.

use std::io;

use harness::records::{EpochRecord, seconds_per_epoch};
use harness::report::{Table, columns, line};
use model_state::weights_hash::WeightsHash;
use ops::difference::largest_difference;
use scratch_data_parallel::train::Outcome;

/// Weights that differ by at most this after one step are equal up to rounding in f32.
pub(super) const ROUNDING: f64 = 1e-5;

/// A row of the table: the name of a run, its measurements, its test accuracy, and the hash of its weights.
pub(super) struct Row<'a> {
    pub(super) name: &'a str,
    pub(super) records: &'a [EpochRecord],
    pub(super) accuracy: f64,
    pub(super) hash: &'a WeightsHash,
}

impl<'a> Row<'a> {
    /// The row of a run with these measurements, after its last epoch.
    pub(super) fn new(name: &'a str, records: &'a [EpochRecord], hash: &'a WeightsHash) -> Self {
        let accuracy = records.last().map_or(f64::NAN, |last| last.test_accuracy);
        Self { name, records, accuracy, hash }
    }

    /// The row of a run of chapter 4.
    pub(super) fn of(name: &'a str, outcome: &'a Outcome) -> Self {
        Self::new(name, &outcome.records, &outcome.hashes[0])
    }
}

/// Prints a line for each run.
pub(super) fn show(title: &str, rows: &[Row<'_>]) -> io::Result<()> {
    let mut table = Table::new(title).column("s/epoch", 0).column("loss", 0);
    table = table.column("test acc", 0).column("weights", 0);
    for Row { name, records, accuracy, hash } in rows {
        let loss = records.last().map_or(f64::NAN, |last| last.train_loss);
        table.row([
            (*name).to_owned(),
            format!("{:.2}", seconds_per_epoch(records)),
            format!("{loss:.4}"),
            format!("{accuracy:.3}"),
            hash.to_string(),
        ]);
    }
    line(table.text(columns()))
}

/// Compares the weights of two runs, at the end and after the first step. `wrong` says what a large difference means.
pub(super) fn weights(yours: &Outcome, ours: &Outcome, wrong: &str) -> candle_core::Result<String> {
    let apart = largest_difference(&yours.after_first_step, &ours.after_first_step)?;
    Ok(match apart {
        _ if yours.hashes == ours.hashes => "Your weights are ours, to the last bit.".to_owned(),
        0.0 => "Your first step is ours, to the last bit, and a later step is not.".to_owned(),
        ..=ROUNDING => format!(
            "After one step, your weights are ours up to rounding: the largest difference is at most {ROUNDING:.0e}. Training \
             makes the difference larger."
        ),
        _ => format!(
            "After one step, your weights are {apart:.1} away from ours, relative to the largest: {wrong}"
        ),
    })
}
