//! The tables of `--compare`, and the conclusion.
//!
//! K times the batch and the rate make fewer and longer steps, and a local batch norm uses the images of one device. `--compare N`
//! changes one of the two at a time, with N seeds. `--test-norm` changes the statistics that normalise test images.

use harness::cli::name_of;
use harness::report::outputs::Outputs;
use harness::report::{Table, number, paragraph};
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
    if let Some(Row { accuracies, .. }) = rows.first() {
        let own = ", normalised by the statistics of their own batches";
        paragraph(format_args!(
            "\nAccuracy on the test images{}, with {} seeds (spread: the standard deviation over the seeds):",
            if test_norm == TestNorm::Batch { own } else { "" },
            accuracies.len()
        ))?;
        table(&rows).print()?;
    }
    if let Some(metrics) = &mut outputs.metrics {
        rows.iter().try_for_each(|row| metrics.write_json("accuracy", row))?;
    }
    let Some(effects) = effects(&rows) else {
        let text = "\nThe runs are not complete: each setting needs two seeds for a comparison.";
        return Ok(paragraph(text)?);
    };
    paragraph(
        "\nMean accuracy of the rows with a change, less that of the rows without it, all else equal. A difference is clear \
         if it is larger than the largest spread of these rows:",
    )?;
    effects_table(&effects).print()?;
    Ok(paragraph(format_args!("\n{}", conclusion(&effects, test_norm)))?)
}

/// The combinations with at least two accuracies: the spread needs two. After an interrupt or a failure, a row may have fewer.
fn rows(runs: &[Finished], test_norm: TestNorm) -> Vec<Row> {
    let combination =
        |run: &Finished| (run.run.world_size, run.run.options.batch_size, run.run.batch_norm());
    let mut finished: Vec<_> = runs.iter().filter(|run| !run.summary.interrupted).collect();
    finished.sort_by_key(|run| combination(run));
    let rows = finished.chunk_by(|a, b| combination(a) == combination(b));
    let row = |of_row: &[&Finished]| {
        let (devices, batch_size, batch_norm) = combination(of_row[0]);
        let learning_rate = of_row[0].run.options.learning_rate;
        let accuracies = of_row.iter().map(|run| run.summary.test_accuracy).collect();
        let test_norm = name_of(&test_norm);
        Row { devices, batch_norm, batch_size, learning_rate, test_norm, accuracies }
    };
    rows.filter(|of_row| of_row.len() > 1).map(row).collect()
}

fn table(rows: &[Row]) -> Table {
    let table = Table::new("devices, batch norm").column("batch", 1).column("lr", 2);
    let mut table = table.column("mean", 0).column("spread", 0).words("each seed", 3);
    for Row { devices, batch_norm, batch_size, learning_rate, accuracies, .. } in rows {
        let several = format!("{devices} devices, {batch_norm}");
        let name = if *devices == 1 { "one device".to_owned() } else { several };
        let [mean, spread] = [mean(accuracies), deviation(accuracies)].map(|it| format!("{it:.3}"));
        let seeds = format!("{:.3}", accuracies.iter().format(" "));
        table.row([name, batch_size.to_string(), number(*learning_rate), mean, spread, seeds]);
    }
    table
}

/// The effect of a change on the accuracy.
#[derive(Clone, Debug)]
struct Effect {
    change: String,
    /// The average of the rows with the change, less the average of the rows that differ in nothing else.
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

/// The effects of all settings. `None` if a row is missing.
fn effects(rows: &[Row]) -> Option<[Effect; 3]> {
    let [one, local, sync, local_scaled, sync_scaled] = rows else { return None };
    let effect = |change: String, without: &[&Row], with: &[&Row]| {
        let of = |rows: &[&Row]| mean(&rows.iter().map(|it| mean(&it.accuracies)).collect_vec());
        let spreads = without.iter().chain(with).map(|row| deviation(&row.accuracies));
        let difference = of(with) - of(without);
        Effect { change, difference, spread: spreads.fold(0.0, f64::max) }
    };
    let (devices, norms) = (local.devices, "synchronised in place of local batch norm".to_owned());
    let (in_place, times) = (
        format!("{devices} devices in place of one"),
        format!("{devices} times the batch and the rate"),
    );
    Some([
        effect(in_place, &[one], &[local, sync]),
        effect(times, &[local, sync], &[local_scaled, sync_scaled]),
        effect(norms, &[local, local_scaled], &[sync, sync_scaled]),
    ])
}

fn effects_table(effects: &[Effect]) -> Table {
    let table = Table::new("change").column("difference", 0).column("spread", 1);
    let mut table = table.words("clear", 0);
    for it in effects {
        let (difference, spread) = (format!("{:+.3}", it.difference), format!("{:.3}", it.spread));
        let clear = if it.is_clear() { "yes" } else { "no" };
        table.row([it.change.clone(), difference, spread, clear.to_owned()]);
    }
    table
}

/// Explains the clear differences, or says that there are none.
fn conclusion(effects: &[Effect], test_norm: TestNorm) -> &'static str {
    let mut clear = effects.iter().filter(|effect| effect.is_clear()).peekable();
    match test_norm {
        _ if clear.peek().is_none() => "No setting makes a difference that these seeds can show.",
        TestNorm::Running if clear.any(|effect| effect.difference < 0.0) => {
            "The flag --test-norm batch finds out whether the weights are worse, or only the running statistics of batch norm."
        }
        _ => "Other seeds would not explain the clear differences.",
    }
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
        let effects_of = |rows: &[Row]| effects(rows).expect("all rows");
        assert_eq!(
            effects_table(&effects_of(&rows(PAGE))).text(80),
            "change                                     difference  spread  clear\n\
             2 devices in place of one                      +0.019   0.046  no\n\
             2 times the batch and the rate                 -0.186   0.132  yes\n\
             synchronised in place of local batch norm      -0.022   0.132  no"
        );
        let equal = |accuracies: [f64; 5]| accuracies.map(|accuracy| [accuracy; 3]);
        let (none, worse, better) = ("No setting", "The flag --test-norm", "Other seeds");
        for (accuracies, test_norm, clear, expected) in [
            (PAGE, TestNorm::Running, [false, true, false], worse),
            (PAGE, TestNorm::Batch, [false, true, false], better),
            ([[0.8, 0.81, 0.79]; 5], TestNorm::Running, [false; 3], none),
            // A difference below what is printed is none, even without any spread.
            (equal([0.8, 0.8004, 0.8004, 0.8004, 0.8004]), TestNorm::Running, [false; 3], none),
            (equal([0.8, 0.8, 0.85, 0.6, 0.65]), TestNorm::Running, [true; 3], worse),
            (equal([0.8, 0.8, 0.8, 0.9, 0.9]), TestNorm::Running, [false, true, false], better),
        ] {
            let effects = effects_of(&rows(accuracies));
            assert_eq!(effects.each_ref().map(Effect::is_clear), clear, "{effects:?}");
            assert!(conclusion(&effects, test_norm).starts_with(expected), "{effects:?}");
        }
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
