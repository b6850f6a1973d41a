//! Test accuracy by epoch of the runs of stage 4.

use anyhow::ensure;
use drawing::chart::{Chart, Curve, Panel, stroke};
use drawing::{Axis, Heading, Place};
use serde::Deserialize;

use super::Figure;
use super::measurement::Recorded;

#[derive(Deserialize)]
struct Epoch {
    run: String,
    epoch: usize,
    test_accuracy: f64,
}

#[derive(Deserialize)]
struct Summary {
    run: String,
    data: String,
    devices: Vec<String>,
}

pub(super) fn draw(texts: &[String]) -> anyhow::Result<Figure> {
    let recorded = Recorded::parse(texts)?;
    let epochs: Vec<Epoch> = recorded.lines("epoch")?;
    let summaries: Vec<Summary> = recorded.lines("summary")?;
    let last = epochs.iter().map(|epoch| epoch.epoch).max().unwrap_or_default();
    ensure!(last > 1, "a curve needs two epochs");
    let point = |Epoch { run, epoch, test_accuracy }: &Epoch| {
        (*epoch as f64, *test_accuracy, format!("{run}, epoch {epoch}: {test_accuracy:.3}"))
    };
    let curve = |(series, summary): (usize, &Summary)| Curve {
        name: format!("{} [{}]", summary.run, summary.devices.join(", ")),
        series: Some(series),
        width: stroke(series, summaries.len()),
        points: (epochs.iter().filter(|it| it.run == summary.run && it.epoch > 0))
            .map(point)
            .collect(),
    };
    let curves: Vec<Curve> = summaries.iter().enumerate().map(curve).collect();
    let end = |curve: &Curve| Some(format!("{}: {:.3}", curve.name, curve.points.last()?.1));
    let ends: Vec<String> = curves.iter().filter_map(end).collect();
    let data = &summaries[0].data;
    let title = format!("Test accuracy by epoch on {data}; at the end {}", ends.join("; "));
    let panel = Panel {
        title: format!("LeNet on {data}"),
        x: Axis::counting("epoch", last as f64, 10),
        y: Axis::linear("test accuracy", 0.0, 1.0, 5),
        curves,
    };
    let chart = Chart { heading: Heading { title, ..Heading::default() }, rows: vec![vec![panel]] };
    Ok(Figure { svg: chart.svg(Place::Page), caption: recorded.caption() })
}
