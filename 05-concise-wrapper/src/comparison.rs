//! The table of `--compare`, and its conclusion.
//!
//! Several devices can be less accurate than one for two reasons. K times the batch and K times the rate make fewer and longer
//! steps, and a local batch norm uses the images of one device. `--compare N` changes one of the two at a time, with N seeds.
//! A third cause is the statistics that normalise test images: `--test-norm` changes them.

use harness::cli::name_of;
use harness::report::outputs::Outputs;
use harness::report::{Table, counted, number, paragraph};
use itertools::Itertools as _;
use serde::Serialize;

use crate::arguments::TestNorm;
use crate::report::Finished;

/// A combination of settings, and its accuracy with each seed.
#[derive(Clone, Debug, Serialize)]
struct Row {
    devices: usize,
    batch_norm: &'static str,
    batch_size: usize,
    learning_rate: f64,
    test_norm: String,
    accuracies: Vec<f64>,
}

impl Row {
    fn mean(&self) -> f64 {
        self.accuracies.iter().sum::<f64>() / self.accuracies.len() as f64
    }

    /// The standard deviation over the seeds.
    fn spread(&self) -> f64 {
        let (mean, seeds) = (self.mean(), self.accuracies.len() as f64);
        let squares: f64 = self.accuracies.iter().map(|it| (it - mean).powi(2)).sum();
        (squares / (seeds - 1.0)).sqrt()
    }
}

/// Prints the table of all combinations and the conclusion, and writes the table to the metrics.
pub(crate) fn report(
    runs: &[Finished],
    test_norm: TestNorm,
    outputs: &mut Outputs,
) -> anyhow::Result<()> {
    let rows = rows(runs, test_norm);
    if let [row, ..] = &rows[..] {
        let by = match test_norm {
            TestNorm::Running => "",
            TestNorm::Batch => ", normalised by the statistics of their own batches",
        };
        let seeds = row.accuracies.len();
        paragraph(format_args!("\nAccuracy on the test images{by}, with {seeds} seeds:"))?;
        table(&rows).print()?;
    }
    paragraph(format_args!("\n{}", conclusion(&rows, test_norm)))?;
    if let Some(metrics) = outputs.metrics() {
        rows.iter().try_for_each(|row| metrics.write("accuracy", row))?;
    }
    Ok(())
}

/// The combinations with at least two accuracies: the spread needs two. After an interrupt or a failure, a row may have fewer.
fn rows(runs: &[Finished], test_norm: TestNorm) -> Vec<Row> {
    let combination = |Finished { run, .. }: &&Finished| {
        (run.world_size, run.batch_norm(), run.options.batch_size)
    };
    let finished = runs.iter().filter(|run| !run.summary.interrupted);
    let rows = finished.clone().unique_by(combination).map(|first| {
        let (devices, batch_norm, batch_size) = combination(&first);
        let of_row = finished.clone().filter(|run| combination(run) == combination(&first));
        let accuracies = of_row.map(|run| run.summary.test_accuracy).collect();
        let (learning_rate, test_norm) = (first.run.options.learning_rate, name_of(&test_norm));
        Row { devices, batch_norm, batch_size, learning_rate, test_norm, accuracies }
    });
    rows.filter(|row| row.accuracies.len() > 1).collect()
}

fn table(rows: &[Row]) -> Table {
    let table = Table::new("devices, batch norm").column("batch", 1).column("lr", 2);
    let mut table = table.column("mean", 0).column("spread", 0).words("each seed", 3);
    for row in rows {
        let Row { devices, batch_norm, batch_size, learning_rate, accuracies, .. } = row;
        let name = match devices {
            1 => "one device".to_owned(),
            devices => format!("{}, {batch_norm}", counted(*devices, "device")),
        };
        let [mean, spread] = [row.mean(), row.spread()].map(|it| format!("{it:.3}"));
        let seeds = format!("{:.3}", accuracies.iter().format(" "));
        table.row([name, batch_size.to_string(), number(*learning_rate), mean, spread, seeds]);
    }
    table
}

/// Names the settings that make a larger difference than the spread of the seeds.
fn conclusion(rows: &[Row], test_norm: TestNorm) -> String {
    let [one, local, sync, local_scaled, sync_scaled] = rows else {
        return "The runs are not complete: each setting needs two seeds for a comparison."
            .to_owned();
    };
    let spread = |rows: &[&Row]| rows.iter().map(|row| row.spread()).fold(0.0, f64::max);
    let on_several = spread(&[local, sync, local_scaled, sync_scaled]);
    let [m, l, s, ls, ss] = [one, local, sync, local_scaled, sync_scaled].map(Row::mean);
    let devices = counted(local.devices, "device");
    let factors = [
        (
            "the number of devices",
            format!("{devices} in place of one"),
            (l + s) / 2.0 - m,
            spread(&[one, local, sync]),
        ),
        (
            "batch and rate",
            format!("{} times the batch and the rate", local.devices),
            (ls + ss - l - s) / 2.0,
            on_several,
        ),
        (
            "batch norm",
            "Synchronised in place of local batch norm".to_owned(),
            (s + ss - l - ls) / 2.0,
            on_several,
        ),
    ];
    let is_clear = |effect: f64, spread: f64| effect.abs() > spread && !rounds_to_zero(effect);
    let clear = factors.iter().filter(|(.., effect, spread)| is_clear(*effect, *spread));
    let names = clear.map(|(name, ..)| *name).join(" and ");
    let mut sentences = vec![match names.is_empty() {
        true => "No setting makes a difference that these seeds can show.".to_owned(),
        false => format!("A clear difference comes from {names}."),
    }];
    for (_, subject, effect, spread) in &factors {
        let size = effect.abs();
        sentences.push(match is_clear(*effect, *spread) {
            _ if rounds_to_zero(*effect) => format!("{subject}: no difference."),
            true => {
                let direction = if *effect > 0.0 { "higher" } else { "lower" };
                format!("{subject}: {size:.3} {direction}, more than the spread of the seeds ({spread:.3}).")
            }
            false => format!("{subject}: not clear, the spread of the seeds ({spread:.3}) is larger than the difference ({size:.3})."),
        });
    }
    let (_, _, effect, spread) = factors[1];
    if test_norm == TestNorm::Running && effect < 0.0 && is_clear(effect, spread) {
        sentences.push(
            "The flag --test-norm batch finds out whether the weights are worse, or only the running statistics of batch norm."
                .to_owned(),
        );
    }
    sentences.join("\n")
}

/// Whether a difference is 0.000 in the text.
fn rounds_to_zero(difference: f64) -> bool {
    difference.abs() < 0.0005
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The five rows of a comparison with these accuracies.
    fn rows(accuracies: [[f64; 3]; 5]) -> Vec<Row> {
        let settings = [
            (1, "of the batch", 1),
            (2, "local", 1),
            (2, "synchronised", 1),
            (2, "local", 2),
            (2, "synchronised", 2),
        ];
        let row = |((devices, batch_norm, times), accuracies): ((_, _, usize), [f64; 3])| Row {
            devices,
            batch_norm,
            batch_size: 256 * times,
            learning_rate: 0.1 * times as f64,
            test_norm: "running".to_owned(),
            accuracies: accuracies.to_vec(),
        };
        settings.into_iter().zip(accuracies).map(row).collect()
    }

    /// Accuracies as on the page on batch norm.
    const PAGE: [[f64; 3]; 5] = [
        [0.723, 0.807, 0.797],
        [0.795, 0.794, 0.805],
        [0.769, 0.795, 0.812],
        [0.498, 0.761, 0.624],
        [0.603, 0.610, 0.557],
    ];

    #[test]
    fn a_difference_is_clear_if_it_is_larger_than_the_spread() {
        let said = conclusion(&rows(PAGE), TestNorm::Running);
        assert_eq!(
            said,
            "A clear difference comes from batch and rate.\n\
             2 devices in place of one: not clear, the spread of the seeds (0.046) is larger than the difference (0.019).\n\
             2 times the batch and the rate: 0.186 lower, more than the spread of the seeds (0.132).\n\
             Synchronised in place of local batch norm: not clear, the spread of the seeds (0.132) is larger than the difference (0.022).\n\
             The flag --test-norm batch finds out whether the weights are worse, or only the running statistics of batch norm."
        );
        assert!(!conclusion(&rows(PAGE), TestNorm::Batch).contains("--test-norm"));
    }

    #[test]
    fn both_settings_or_none_may_make_a_difference() {
        let flat = [[0.8, 0.81, 0.79]; 5];
        let said = conclusion(&rows(flat), TestNorm::Running);
        assert!(said.starts_with("No setting makes a difference"), "{said}");
        assert_eq!(said.matches(": no difference.").count(), 3, "{said}");
        let equal = |accuracy| [accuracy; 3];
        let both = [0.8, 0.8, 0.85, 0.6, 0.65].map(equal);
        let said = conclusion(&rows(both), TestNorm::Running);
        assert!(
            said.starts_with(
                "A clear difference comes from the number of devices and batch and rate"
            ),
            "{said}"
        );
        assert!(said.contains("local batch norm: 0.050 higher"), "{said}");
        let better = [0.8, 0.8, 0.8, 0.9, 0.9].map(equal);
        assert!(!conclusion(&rows(better), TestNorm::Running).contains("--test-norm"));
    }

    #[test]
    fn rows_that_are_missing_are_named_and_not_compared() {
        let all = rows(PAGE);
        for missing in 0..=4 {
            let said = conclusion(&all[..missing], TestNorm::Running);
            assert!(said.starts_with("The runs are not complete"), "{said}");
        }
    }

    #[test]
    fn the_table_fits_and_drops_the_seeds_first() {
        let wide = table(&rows(PAGE)).text(80);
        assert!(
            wide.contains("2 devices, synchronised    512  0.2  0.590   0.029  0.603 0.610 0.557"),
            "{wide}"
        );
        let narrow = table(&rows(PAGE)).text(60);
        assert!(narrow.contains("512  0.2  0.590   0.029\n"), "{narrow}");
        assert!(narrow.ends_with("(too narrow for: each seed)"), "{narrow}");
        for (text, columns) in [(wide, 80), (narrow, 60)] {
            assert!(text.lines().all(|line| line.chars().count() <= columns), "{text}");
        }
        let many = Row { accuracies: vec![0.5; 100], ..rows(PAGE).remove(0) };
        assert!(table(&[many]).text(80).lines().all(|line| line.chars().count() <= 80));
    }
}
