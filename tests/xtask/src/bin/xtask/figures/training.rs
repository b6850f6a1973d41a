//! Test accuracy by epoch of the runs of stage 4, and the loss by epoch of its runs with a bug.

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
    train_loss: f64,
}

#[derive(Deserialize)]
struct Summary {
    run: String,
    data: String,
    devices: Vec<String>,
}

impl Summary {
    fn with_devices(&self) -> String {
        format!("{} [{}]", self.run, self.devices.join(", "))
    }
}

pub(super) fn accuracies(texts: &[String]) -> anyhow::Result<Figure> {
    let axis = Axis::linear("test accuracy", 0.0, 1.0, 5);
    draw(texts, "Test accuracy", axis, |epoch| epoch.test_accuracy, Summary::with_devices)
}

pub(super) fn losses(texts: &[String]) -> anyhow::Result<Figure> {
    let axis = Axis::linear("training loss", 1.6, 2.4, 4);
    draw(texts, "Training loss", axis, |epoch| epoch.train_loss, |run| run.run.clone())
}

fn draw(
    texts: &[String],
    what: &str,
    y: Axis,
    value: fn(&Epoch) -> f64,
    name: fn(&Summary) -> String,
) -> anyhow::Result<Figure> {
    let recorded = Recorded::parse(texts)?;
    let epochs: Vec<Epoch> = recorded.lines("epoch")?;
    let summaries: Vec<Summary> = recorded.lines("summary")?;
    let last = epochs.iter().map(|epoch| epoch.epoch).max().unwrap_or_default();
    ensure!(last > 1, "a curve needs two epochs");
    let point = |it: &Epoch| {
        let (Epoch { run, epoch, .. }, value) = (it, value(it));
        (*epoch as f64, value, format!("{run}, epoch {epoch}: {value:.3}"))
    };
    let curve = |(series, summary): (usize, &Summary)| Curve {
        name: name(summary),
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
    let title = format!("{what} by epoch on {data}; at the end {}", ends.join("; "));
    let x = Axis::counting("epoch", last as f64, 10);
    let panel = Panel { title: format!("LeNet on {data}"), x, y, curves };
    let chart = Chart { heading: Heading { title, ..Heading::default() }, rows: vec![vec![panel]] };
    Ok(Figure { svg: chart.svg(Place::Page), caption: recorded.caption() })
}
