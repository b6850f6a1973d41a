//! Stage 8's predictions: a large model on up to 1,024 devices on paper, and the plans on two devices of this machine
//! with their measurements.

use anyhow::{Context as _, ensure};
use cost_model::paper::{BATCH, Kind, LARGE, Ports};
use cost_model::plan::{Plan, Step};
use drawing::chart::{Chart, Curve, Panel};
use drawing::{Axis, Heading, Place};
use harness::machine::gigabytes;
use harness::report::thousands;
use itertools::Itertools as _;
use model_parallel::layers::Layers;
use serde::Deserialize;

use super::Figure;
use super::measurement::{self, Recorded, lines_of};

/// The plans on paper, by the beginnings of their names.
const PLANS: [&str; 5] = ["DDP", "ZeRO 2", "ZeRO 3 + prefetch", "1F1B 8", "tensor 8"];

/// A line that stage 8's `--metrics` writes.
#[derive(Clone, Deserialize)]
struct Line {
    model: String,
    plan: String,
    predicted: Step,
    measured: Option<Step>,
}

/// Makes the data of the figure: the lines of the program for both models.
pub(super) fn data(command: &str, dense: &str) -> anyhow::Result<String> {
    let gpt = measurement::written_by(&command.replace("--metrics", "--gpt --metrics"))?;
    measurement::here(command, [lines_of(dense)?, lines_of(&gpt)?].concat())
}

/// Draws a panel for each kind of ports, and a panel for each model that was measured.
pub(super) fn draw(texts: &[String]) -> anyhow::Result<Figure> {
    let recorded = Recorded::parse(texts)?;
    let lines: Vec<Line> = recorded.lines("plan")?;
    let on_paper = [(Ports::Gpu, "GPU"), (Ports::Host, "host")].map(|(ports, of)| paper(ports, of));
    let models = lines.iter().map(|line| line.model.clone()).unique();
    let measured = models.map(|model| {
        let of_model: Vec<&Line> = lines.iter().filter(|line| line.model == model).collect();
        here(&model, &of_model)
    });
    let title = format!(
        "Part of the ideal speed-up on up to {} devices on paper, and predicted and measured seconds on two devices",
        thousands(BATCH)
    );
    let rows = vec![
        on_paper.into_iter().collect::<anyhow::Result<_>>()?,
        measured.collect::<anyhow::Result<_>>()?,
    ];
    let chart = Chart { heading: Heading { title, ..Heading::default() }, rows };
    Ok(Figure { svg: chart.svg(Place::Page), caption: recorded.caption() })
}

/// The part of the ideal speed-up over one device, which on paper need not hold the model.
fn paper(ports: Ports, of: &str) -> anyhow::Result<Panel> {
    let machine = Kind::H100.machine(ports);
    let layers = Layers::gpt(&LARGE)?;
    let predict = |plan: Plan| {
        let plan = plan.with_micro_batches(BATCH, 1);
        anyhow::Ok(machine.predict(&LARGE, &plan, BATCH)?.step)
    };
    let one = predict(Plan::all(1, 1, &layers)[0])?.seconds;
    let mut curves: Vec<Curve> = Vec::new();
    for (series, begins) in PLANS.into_iter().enumerate() {
        let mut points = Vec::new();
        for devices in (3..=10).map(|power| 1 << power) {
            let plans = Plan::all(devices, machine.hosts.each, &layers);
            let named = |plan: &Plan| plan.to_string().starts_with(begins);
            let step = predict(plans.into_iter().find(named).context("a plan")?)?;
            let part = one / (devices as f64 * step.seconds);
            let bytes = gigabytes(step.total as f64);
            let text =
                format!("{begins} on {devices}: {part:.2} of the ideal, {bytes} on a device");
            points.push((devices as f64, part, text));
        }
        curves.push(Curve { name: begins.to_owned(), series: Some(series), width: 2.0, points });
    }
    let ticks = (3..=10).map(|power| (f64::from(1 << power), thousands(1 << power))).collect();
    Ok(Panel {
        title: format!("On paper: a network port for each {of}"),
        x: Axis::factors("devices", (8.0, BATCH as f64), ticks),
        y: Axis::linear("part of the ideal speed-up", 0.0, 1.0, 5),
        curves,
    })
}

/// A mark for each plan that was measured, and the line of exact predictions.
fn here(model: &str, lines: &[&Line]) -> anyhow::Result<Panel> {
    let seen = lines.iter().filter_map(|line| Some((&line.plan, line.predicted, line.measured?)));
    let marks = seen.map(|(plan, predicted, measured)| {
        let [x, y] = [predicted, measured].map(|step| 1e3 * step.seconds);
        (x, y, format!("{plan}: {x:.1} ms predicted, {y:.1} ms measured"))
    });
    let marks: Vec<_> = marks.collect();
    ensure!(!marks.is_empty(), "no plan of {model} was measured");
    let most = marks.iter().map(|(x, y, _)| x.max(*y)).fold(0.0, f64::max);
    let tick = drawing::axis::spacing(most, 4);
    let end = (most / tick).ceil() * tick;
    let ends = [0.0, end].map(|it| (it, it, String::new())).to_vec();
    let exact = Curve { name: "exact".to_owned(), series: None, width: 1.0, points: ends };
    let name = "a plan on two devices of this machine".to_owned();
    let mark =
        |point| Curve { name: name.clone(), series: Some(7), width: 1.0, points: vec![point] };
    Ok(Panel {
        title: format!("Here: {}", model.split(' ').next().unwrap_or(model)),
        x: Axis::linear("predicted ms", 0.0, end, 4),
        y: Axis::linear("measured ms", 0.0, end, 4),
        curves: [exact].into_iter().chain(marks.into_iter().map(mark)).collect(),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_plan_on_paper_has_a_curve_and_every_measured_plan_a_mark() {
        let step = |seconds: f64| {
            json!({"seconds": seconds, "total": 1, "peak": {"parameters": 1, "gradients": 0,
            "optimizer": 0, "activations": 0, "messages": 0}})
        };
        let line = |model: &str, plan: &str, measured: bool| {
            let measured = measured.then(|| step(0.008));
            json!({"kind": "plan", "model": model, "plan": plan, "predicted": step(0.01), "measured": measured})
        };
        let lines = [
            line("GPT of 4", "DDP", true),
            line("GPT of 4", "ZeRO 1", false),
            line("dense", "DDP", true),
        ];
        let mut data = json!({"command": "run & look", "date": "2026-11-22", "lines": lines,
            "machine": {"processor": "One", "cores": 2, "instruction_sets": [], "memory": null, "system": ""}});
        let Figure { svg, caption } = draw(&[data.to_string()]).unwrap();
        assert_eq!(svg.matches("10.0 ms predicted, 8.0 ms measured").count(), 2, "{svg}");
        for plan in PLANS {
            assert_eq!(svg.matches(&format!("{plan} on 1024: ")).count(), 2, "{plan}: {svg}");
        }
        assert!(caption.ends_with("by <code>run &amp; look</code>.\n"), "{caption}");
        data["lines"] = json!([line("dense", "DDP", false)]);
        assert!(draw(&[data.to_string()]).is_err());
    }
}
