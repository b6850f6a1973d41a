//! Calibrations and steps as they are displayed.

use cost_model::compute::Line;
use cost_model::record::{Calibration, How, Step};
use cost_model::step::Predicted;
use cost_model::training::Sum;

/// Images of the epoch that is spoken of: Fashion-MNIST's.
const EPOCH: usize = 60_000;

/// The columns of [`calibration()`].
pub(crate) const CALIBRATIONS: &str = "  devices   forward and backward of b images     update    latency, memory    latency, slow link";

/// The columns of [`step()`].
pub(crate) const STEPS: &str = "  devices  link    all-reduce  overlap   compute  all-reduce      seen   predicted   measured    off     an epoch";

/// A line below [`CALIBRATIONS`], and one more where there is a note.
pub(crate) fn calibration(calibration: &Calibration) -> String {
    let Line { fixed, sample, update, .. } = calibration.line;
    let [few, many] = calibration.measured.map(|measured| measured.samples);
    let line = format!("{:.2} ms + b · {:.1} µs ({few}, {many})", 1e3 * fixed, 1e6 * sample);
    let devices = calibration.devices.len();
    let mut told = format!("  {devices:>7}   {line:<33}{:>7.2} ms", 1e3 * update);
    for link in [calibration.memory, calibration.slow].into_iter().flatten() {
        let gigabytes = link.bandwidth() / 1e9;
        let link = format!("{:.0} µs, {gigabytes:.2} GB/s", 1e6 * link.latency);
        told += &format!("{link:>19}");
    }
    if let Some(note) = &calibration.note {
        told += &format!("\n           note: {note}");
    }
    told
}

/// A line below [`STEPS`].
pub(crate) fn step(step: &Step) -> String {
    let Predicted { seconds, compute, communication } = step.predicted;
    let steps = EPOCH.div_ceil(step.batch_size) as f64;
    let [link, way, overlap, all_reduce, seen] = match step.how {
        // Alone there is nobody to talk to.
        None => Default::default(),
        Some(How { slow, sum: Sum { way, overlap } }) => [
            if slow { "slow" } else { "memory" }.to_owned(),
            way.to_string(),
            if overlap { "yes" } else { "no" }.to_owned(),
            milliseconds(communication),
            milliseconds(step.predicted.exposed()),
        ],
    };
    format!(
        "  {:>7}  {link:<6}  {way:<10}  {overlap:<7}{:>10}  {all_reduce:>10}{seen:>10}{:>12}{:>11}{:>+5.0} %{:>11}",
        step.devices,
        milliseconds(compute),
        milliseconds(seconds),
        milliseconds(step.measured),
        100.0 * step.error(),
        format!("{:.1} s", seconds * steps),
    )
}

/// `3.21 ms`
fn milliseconds(seconds: f64) -> String {
    let thousandths = 1e3 * seconds;
    let digits = if thousandths < 9.995 { 2 } else { 1 };
    format!("{thousandths:.digits$} ms")
}
