//! Test accuracy by epoch of the runs of stage 4.

use anyhow::ensure;
use serde::Deserialize;

use super::Figure;
use super::chart::{Curve, PANEL, Panel, Tick, legend, legend_height, panel};
use super::drawing::Drawing;
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

pub(super) fn draw(text: &str) -> anyhow::Result<Figure> {
    let recorded = Recorded::parse(text)?;
    let epochs: Vec<Epoch> = recorded.lines("epoch")?;
    let summaries: Vec<Summary> = recorded.lines("summary")?;
    let last = epochs.iter().map(|epoch| epoch.epoch).max().unwrap_or_default();
    ensure!(last > 1, "a curve needs two epochs");
    let along = |epoch: usize| 0.03 + 0.94 * (epoch - 1) as f64 / (last - 1) as f64;
    let curves: Vec<Curve> = summaries
        .iter()
        .enumerate()
        .map(|(series, summary)| Curve {
            name: format!("{} [{}]", summary.run, summary.devices.join(", ")),
            // What lies below stays visible.
            width: [6.0, 3.5, 1.5][series.min(2)],
            points: epochs
                .iter()
                .filter(|epoch| epoch.run == summary.run && epoch.epoch > 0)
                .map(|epoch| (along(epoch.epoch), epoch.test_accuracy))
                .collect(),
        })
        .collect();
    let names: Vec<String> = curves.iter().map(|curve| curve.name.clone()).collect();
    let height = legend_height(&names) + PANEL;
    let ends: Vec<String> = curves
        .iter()
        .filter_map(|curve| Some(format!("{}: {:.3}", curve.name, curve.points.last()?.1)))
        .collect();
    let data = summaries.first().map_or("", |summary| summary.data.as_str());
    let mut drawing = Drawing::new(
        height,
        format_args!("Test accuracy by epoch on {data}; at the end {}", ends.join("; ")),
    );
    let top = legend(&mut drawing, &names);
    let up: Vec<Tick> =
        (0..=4).map(|quarter| f64::from(quarter) / 4.0).map(|at| (at, at.to_string())).collect();
    let step = last.div_ceil(10);
    let ticks = (1..=last).step_by(step).map(|epoch| (along(epoch), epoch.to_string()));
    panel(
        &mut drawing,
        top,
        &Panel {
            title: format!("LeNet on {data}"),
            along: (ticks.collect(), "epoch"),
            up: (up, "test accuracy"),
            curves,
        },
    );
    Ok(Figure { svg: drawing.finish(), caption: recorded.caption() })
}
