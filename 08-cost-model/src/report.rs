//! The table of all plans, and the conclusion in sentences.

use cost_model::plan::{Plan, Step};
use harness::machine::gigabytes;
use harness::report::file::LazyFile;
use harness::report::{Table, paragraph, seconds};
use serde::Serialize;

// ANCHOR: report
/// A plan with its prediction, and the measured step if it ran.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    model: String,
    plan: String,
    devices: usize,
    predicted: Step,
    pub(crate) measured: Option<Step>,
}

impl Row {
    pub(crate) fn new(model: &str, plan: &Plan, predicted: Step) -> Self {
        let (model, devices) = (model.to_owned(), plan.mesh.devices());
        Self { model, plan: plan.to_string(), devices, predicted, measured: None }
    }
}

/// Prints a row for each plan, and one below it if it was measured, with the error of the predicted seconds. Bytes are in
/// GB if the largest has one. Then prints the conclusion, and writes the metrics.
pub(crate) fn report(
    rows: &[Row],
    fits: Option<f64>,
    doubt: Option<&str>,
    metrics: Option<LazyFile>,
) -> anyhow::Result<()> {
    table(rows).print()?;
    paragraph(conclusion(rows, fits, doubt))?;
    if let Some(mut metrics) = metrics {
        rows.iter().try_for_each(|row| metrics.write_json("plan", row))?;
        metrics.announce()?;
    }
    Ok(())
}

fn table(rows: &[Row]) -> Table {
    let most = rows.iter().map(|row| row.predicted.total).max().unwrap_or(0);
    let (unit, bytes) = if most < 1_000_000_000 { ("MB", 1e6) } else { ("GB", 1e9) };
    let columns = [("para-\nmeters", 2), ("gradi-\nents", 3), ("opt.\nstate", 4)];
    let columns = columns.into_iter().chain([("activa-\ntions", 1), ("in\nall", 0), ("s/step", 0)]);
    let mut table =
        columns.fold(Table::new(unit), |table, (heading, rank)| table.column(heading, rank));
    let mut add = |name: String, Step { peak, total, seconds: time }: Step| {
        let kinds = [peak.parameters, peak.gradients, peak.optimizer, peak.activations, total];
        let kinds = kinds.map(|it| format!("{:.1}", it as f64 / bytes)).into_iter();
        table.row([name].into_iter().chain(kinds).chain([seconds(time)]));
    };
    for Row { plan, predicted, measured, .. } in rows {
        add(plan.clone(), *predicted);
        if let Some(step) = *measured {
            let error = 100.0 * (predicted.seconds / step.seconds - 1.0);
            add(format!("  measured ({error:+.0} %)"), step);
        }
    }
    table
}

/// Names the fastest plan that fits, the plan with the least memory, and the largest errors of the predictions. A doubt about
/// the times takes the place of the error of seconds.
fn conclusion(rows: &[Row], fits: Option<f64>, doubt: Option<&str>) -> String {
    let bytes = |row: &&Row| row.predicted.total;
    let fit = rows.iter().filter(|row| bytes(row) as f64 <= fits.unwrap_or(f64::INFINITY));
    let fastest = fit.min_by(|a, b| a.predicted.seconds.total_cmp(&b.predicted.seconds));
    let told = |row: &Row| {
        let Step { seconds: time, total, .. } = row.predicted;
        format!("{}, {} s and {}", row.plan, seconds(time), gigabytes(total as f64))
    };
    let least = rows.iter().min_by_key(bytes).map(told).unwrap_or_default();
    let room = fits.map(|bytes| format!(" that fits in {}", gigabytes(bytes))).unwrap_or_default();
    let mut text = match fastest {
        Some(best) => format!("Fastest{room}: {}. Least memory: {least}.", told(best)),
        None => format!("No plan{room}. Least memory: {least}."),
    };
    let measured = rows.iter().filter_map(|row| Some((row.predicted, row.measured?)));
    let errors = measured.map(|(predicted, measured)| {
        let seconds = predicted.seconds / measured.seconds - 1.0;
        [seconds.abs(), predicted.peak.largest_error(measured.peak)]
    });
    if let Some(worst) = errors.reduce(|[a, b], [c, d]| [a.max(c), b.max(d)]) {
        let [of_seconds, of_bytes] = worst.map(|error| 100.0 * error);
        let of_seconds = format!("Predicted seconds are off by at most {of_seconds:.0} %.");
        text += &format!(
            " {} Predicted bytes of a kind are off by at most {of_bytes:.0} %.",
            doubt.unwrap_or(&of_seconds)
        );
    }
    text
}
// ANCHOR_END: report

#[cfg(test)]
mod tests {
    use model_parallel::Bytes;

    use super::*;

    fn row(plan: &str, seconds: f64, total: usize, measured: Option<f64>) -> Row {
        let step = |seconds| {
            let peak = Bytes { parameters: total, ..Bytes::default() };
            Step { seconds, peak, total }
        };
        let (predicted, measured) = (step(seconds), measured.map(step));
        let model = String::new();
        Row { model, plan: plan.to_owned(), devices: 2, predicted, measured }
    }

    #[test]
    fn the_conclusion_names_what_fits_and_what_was_off() {
        let rows = [
            row("ZeRO 1", 1.5, 2_500_000_000, None),
            row("DDP", 1.0, 3_000_000_000, Some(1.25)),
            row("ZeRO 3", 2.0, 1_000_000_000, Some(2.0)),
        ];
        assert_eq!(
            conclusion(&rows, None, None),
            "Fastest: DDP, 1.0 s and 3.0 GB. Least memory: ZeRO 3, 2.0 s and 1.0 GB. \
             Predicted seconds are off by at most 20 %. Predicted bytes of a kind are off by at most 0 %."
        );
        let fits = conclusion(&rows, Some(2e9), Some("Other programs used the cores."));
        assert_eq!(
            fits,
            "Fastest that fits in 2.0 GB: ZeRO 3, 2.0 s and 1.0 GB. Least memory: ZeRO 3, 2.0 s and 1.0 GB. \
             Other programs used the cores. Predicted bytes of a kind are off by at most 0 %."
        );
        let none = conclusion(&rows[1..2], Some(1e9), None);
        assert!(none.starts_with("No plan that fits in 1.0 GB. Least memory: DDP,"), "{none}");
    }

    #[test]
    fn a_measured_step_is_below_its_prediction() {
        let rows = [row("DDP", 1.0, 3_000_000, Some(1.25)), row("ZeRO 3", 2.0, 1_000_000, None)];
        let text = table(&rows).text(80);
        let words: Vec<&str> = text.split_whitespace().skip(12).collect();
        let expected =
            "DDP 3.0 0.0 0.0 0.0 3.0 1.0 measured (-20 %) 3.0 0.0 0.0 0.0 3.0 1.2 ZeRO 3 1.0";
        assert!(words.join(" ").starts_with(expected), "{text}");
        assert!(table(&rows).text(40).lines().all(|line| line.chars().count() <= 40), "{text}");
    }
}
