//! The table of `--compare`, and its conclusion.
//!
//! Several devices can be less accurate than one for two reasons. K times the batch and K times the rate make fewer and longer
//! steps, and a local batch norm uses the images of one device. `--compare N` changes one of the two at a time, with N seeds.
//! A third cause is the statistics that normalise test images: `--test-norm` changes them.

use harness::cli::name_of;
use harness::report::outputs::Outputs;
use harness::report::{Table, counted, joined, number, paragraph};
use harness::statistics::{deviation, mean};
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
        paragraph(format_args!(
            "\nAccuracy on the test images{by}, with {seeds} seeds (spread: the standard deviation over the seeds):"
        ))?;
        table(&rows).print()?;
    }
    if let Some(effects) = effects(&rows) {
        paragraph(
            "\nMean accuracy of the rows with a change, less that of the rows without it, all else equal. A difference is clear \
             if it is larger than the largest spread of these rows:",
        )?;
        effects_table(&effects).print()?;
        paragraph(format_args!("\n{}", conclusion(&effects, test_norm)))?;
    } else {
        paragraph("\nThe runs are not complete: each setting needs two seeds for a comparison.")?;
    }
    if let Some(metrics) = &mut outputs.metrics {
        rows.iter().try_for_each(|row| metrics.write_json("accuracy", row))?;
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
    for Row { devices, batch_norm, batch_size, learning_rate, accuracies, .. } in rows {
        let name = match devices {
            1 => "one device".to_owned(),
            devices => format!("{}, {batch_norm}", counted(*devices, "device")),
        };
        let [mean, spread] = [mean(accuracies), deviation(accuracies)].map(|it| format!("{it:.3}"));
        let seeds = format!("{:.3}", accuracies.iter().format(" "));
        table.row([name, batch_size.to_string(), number(*learning_rate), mean, spread, seeds]);
    }
    table
}

/// What the change of one setting does to the accuracy.
#[derive(Clone, Debug)]
struct Effect {
    setting: &'static str,
    change: String,
    /// The average of the rows with the change, less the average of the rows without the change.
    difference: f64,
    /// The largest spread of these rows.
    spread: f64,
}

impl Effect {
    /// Whether other seeds alone would not explain the difference. A difference that is printed as 0.000 is not clear.
    fn is_clear(&self) -> bool {
        self.difference.abs() > self.spread.max(0.0005)
    }
}

/// The effects of all settings: rows with a change are compared with rows that differ in nothing else. `None` if a row is
/// missing.
fn effects(rows: &[Row]) -> Option<[Effect; 3]> {
    let [one, local, sync, local_scaled, sync_scaled] = rows else { return None };
    let devices = local.devices;
    let in_place = format!("{} in place of one", counted(devices, "device"));
    let times = format!("{devices} times the batch and the rate");
    let norms = "synchronised in place of local batch norm".to_owned();
    let effect = |setting, change, without: &[&Row], with: &[&Row]| {
        let of = |rows: &[&Row]| mean(&rows.iter().map(|it| mean(&it.accuracies)).collect_vec());
        let spreads = without.iter().chain(with).map(|row| deviation(&row.accuracies));
        let (difference, spread) = (of(with) - of(without), spreads.fold(0.0, f64::max));
        Effect { setting, change, difference, spread }
    };
    Some([
        effect("the number of devices", in_place, &[one], &[local, sync]),
        effect("batch and rate", times, &[local, sync], &[local_scaled, sync_scaled]),
        effect("batch norm", norms, &[local, local_scaled], &[sync, sync_scaled]),
    ])
}

fn effects_table(effects: &[Effect]) -> Table {
    let table = Table::new("change").column("difference", 0).column("spread", 1);
    let mut table = table.words("clear", 0);
    for it in effects {
        let numbers = [format!("{:+.3}", it.difference), format!("{:.3}", it.spread)];
        let clear = if it.is_clear() { "yes" } else { "no" };
        table.row([it.change.clone()].into_iter().chain(numbers).chain([clear.to_owned()]));
    }
    table
}

/// Names the settings that make a clear difference.
fn conclusion(effects: &[Effect], test_norm: TestNorm) -> String {
    let clear = effects.iter().filter(|effect| effect.is_clear()).collect_vec();
    if clear.is_empty() {
        return "No setting makes a difference that these seeds can show.".to_owned();
    }
    let size = |effect: &&Effect| format!("{} ({:+.3})", effect.setting, effect.difference);
    let lower = |it: &&Effect| it.setting == "batch and rate" && it.difference < 0.0;
    let test = match test_norm == TestNorm::Running && clear.iter().any(lower) {
        true => {
            " --test-norm batch finds out whether the weights are worse, or only the running statistics of batch norm."
        }
        false => "",
    };
    format!("A clear difference comes from {}.{test}", joined(clear.iter().map(size)))
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

    fn said(rows: &[Row], test_norm: TestNorm) -> String {
        conclusion(&effects(rows).expect("all rows"), test_norm)
    }

    #[test]
    fn a_difference_is_clear_if_it_is_larger_than_the_spread() {
        let effects = effects(&rows(PAGE)).expect("all rows");
        assert_eq!(
            effects_table(&effects).text(80),
            "change                                     difference  spread  clear\n\
             2 devices in place of one                      +0.019   0.046  no\n\
             2 times the batch and the rate                 -0.186   0.132  yes\n\
             synchronised in place of local batch norm      -0.022   0.132  no"
        );
        assert_eq!(
            conclusion(&effects, TestNorm::Running),
            "A clear difference comes from batch and rate (-0.186). --test-norm batch finds out whether the weights are worse, or only \
             the running statistics of batch norm."
        );
        assert!(!conclusion(&effects, TestNorm::Batch).contains("--test-norm"));
    }

    #[test]
    fn several_settings_or_none_may_make_a_difference() {
        let flat = [[0.8, 0.81, 0.79]; 5];
        assert!(said(&rows(flat), TestNorm::Running).starts_with("No setting makes"));
        let equal = |accuracy| [accuracy; 3];
        // A difference below what is printed is none, even without any spread.
        let nearly = [0.8, 0.8004, 0.8004, 0.8004, 0.8004].map(equal);
        assert!(said(&rows(nearly), TestNorm::Running).starts_with("No setting makes"));
        let all = said(&rows([0.8, 0.8, 0.85, 0.6, 0.65].map(equal)), TestNorm::Running);
        let names = "comes from the number of devices (+0.025), batch and rate (-0.200) and batch norm (+0.050). --test-norm";
        assert!(all.contains(names), "{all}");
        let better = said(&rows([0.8, 0.8, 0.8, 0.9, 0.9].map(equal)), TestNorm::Running);
        assert_eq!(better, "A clear difference comes from batch and rate (+0.100).");
    }

    #[test]
    fn without_all_rows_nothing_is_compared() {
        let all = rows(PAGE);
        assert!((0..=4).all(|missing| effects(&all[..missing]).is_none()));
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
