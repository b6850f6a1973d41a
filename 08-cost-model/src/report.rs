//! The text of a measured number of devices: its parts, and a table of its steps.

use cost_model::record::{Calibration, How, Step};
use cost_model::step::Predicted;
use cost_model::training::Sum;
use harness::report::{Table, counted, thousands, wrapped};

use crate::conclusion::{error, times_of_one};

/// The measured parts of a step, the predicted and measured steps, and the conclusion, in lines of at most `most` columns.
///
/// `one` is the measured step of one device, in seconds.
pub(crate) fn block(calibration: &Calibration, steps: &[Step], one: f64, most: usize) -> String {
    let mut text = wrapped(&parts(calibration), most);
    match steps {
        [step] => {
            let [predicted, measured] = [step.predicted.seconds, step.measured].map(milliseconds);
            let error = error(step);
            let line = format!(
                "  step: predicted {predicted} ms, measured {measured} ms, error {error} %"
            );
            text += &format!("\n{}", wrapped(&line, most));
        }
        _ => {
            let conclusion = wrapped(&format!("  {}", times_of_one(one, steps)), most);
            text += &format!("\n\n{}\n{conclusion}", table(steps).text(most));
        }
    }
    text
}

/// The parts that predictions are made of.
fn parts(calibration: &Calibration) -> String {
    let Calibration { line, measured: [few, many], batch_size, .. } = calibration;
    let devices = calibration.devices.len();
    let samples = batch_size.div_ceil(devices);
    let note = calibration.note.as_ref().map(|note| format!("\n  note: {note}"));
    let mut text = format!(
        "{}{}\n  compute, a line through steps with {} and {} images:\n    {} ms fixed + {} images · {:.1} µs + {} ms update = {} ms",
        counted(devices, "device"),
        note.unwrap_or_default(),
        thousands(few.samples),
        thousands(many.samples),
        milliseconds(line.fixed),
        thousands(samples),
        1e6 * line.sample,
        milliseconds(line.update),
        milliseconds(line.of(samples as f64).seconds()),
    );
    for (name, link) in [("memory", calibration.memory), ("slow link", calibration.slow)] {
        let Some(link) = link else { continue };
        text += &format!(
            "\n  {name}: latency {:.0} µs, bandwidth {:.2} GB/s",
            1e6 * link.latency,
            link.bandwidth() / 1e9
        );
    }
    text
}

/// A row for each step of several devices.
fn table(steps: &[Step]) -> Table {
    let mut table = Table::new("link")
        .words("algorithm", 0)
        .words("overlap", 0)
        .column("all-reduce\nms", 3)
        .column("not\nhidden\nms", 2)
        .column("predicted\nms", 0)
        .column("measured\nms", 0)
        .column("error\n%", 0)
        .indented(2);
    for step in steps {
        let Predicted { seconds, communication, .. } = step.predicted;
        let Some(How { slow, sum: Sum { way, overlap } }) = step.how else { continue };
        table.row([
            if slow { "slow" } else { "memory" }.to_owned(),
            way.to_string(),
            if overlap { "yes" } else { "no" }.to_owned(),
            milliseconds(communication),
            milliseconds(step.predicted.exposed()),
            milliseconds(seconds),
            milliseconds(step.measured),
            error(step),
        ]);
    }
    table
}

/// A number of seconds in milliseconds: `3.21`, `32.1`.
fn milliseconds(seconds: f64) -> String {
    let thousandths = 1e3 * seconds;
    let digits = if thousandths < 9.995 { 2 } else { 1 };
    format!("{thousandths:.digits$}")
}

#[cfg(test)]
mod tests {
    use cost_model::compute::{Line, Measured};
    use cost_model::link::Link;

    use super::*;
    use crate::conclusion::tests::{alone, steps};

    fn calibration(devices: usize) -> Calibration {
        let measured = |samples| Measured { samples, ..Measured::default() };
        let link = Link { latency: 273e-6, wire: 9.6e-9, handling: 1e-10 };
        Calibration {
            model: "LeNet".to_owned(),
            batch_size: 256,
            devices: vec![String::new(); devices],
            note: None,
            measured: [measured(64), measured(1920)],
            line: Line { fixed: 0.23e-3, sample: 81.4e-6, forward: 0.3, update: 0.04e-3 },
            memory: (devices > 1).then_some(Link { wire: 0.0, ..link }),
            slow: (devices > 1).then_some(link),
        }
    }

    #[test]
    fn a_block_shows_the_sum_and_fits() {
        let text = block(&calibration(1), &[alone(0.02)], 0.02, 80);
        assert_eq!(
            text,
            "1 device\n  compute, a line through steps with 64 and 1,920 images:\n    \
             0.23 ms fixed + 256 images · 81.4 µs + 0.04 ms update = 21.1 ms\n  \
             step: predicted 20.0 ms, measured 20.0 ms, error 0 %"
        );
        let shared =
            Calibration { note: Some("2 threads share a core".to_owned()), ..calibration(2) };
        assert!(parts(&shared).starts_with("2 devices\n  note: 2 threads share a core\n  compute"));
        let several = steps(2, [0.01, 0.0101, 123.4, 0.02]);
        for most in [60, 80] {
            let text = block(&calibration(2), &several, 0.02, most);
            assert!(text.lines().all(|line| line.chars().count() <= most), "{text}");
            assert!(text.contains("slow link: latency 273 µs, bandwidth 0.10 GB/s"), "{text}");
            assert_eq!(text.contains("too narrow for: all-reduce ms"), most == 60, "{text}");
            assert_eq!(text.contains("hidden  predicted"), most == 80, "{text}");
            assert!(text.contains("Fastest on 2 devices: ring, 2.00 times one device"), "{text}");
        }
    }
}
