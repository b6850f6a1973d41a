//! A step of each pipeline of stage 6, measured below predicted. `--gantt` draws the same picture.

use drawing::Place;
use drawing::svg::escaped;
use model_parallel::Timeline;
use model_parallel::gantt::chart;
use serde::Deserialize;
use serde_json::Value;

use super::Figure;
use super::measurement::{Recorded, here, lines_of};

/// A pipeline in a line of stage 6's `--metrics`.
#[derive(Deserialize)]
struct Split {
    run: String,
    predicted: Timeline,
    measured: Timeline,
}

/// Takes the lines of the pipelines.
pub(super) fn data(command: &str, metrics: &str) -> anyhow::Result<String> {
    let is_pipeline = |line: &Value| line["kind"] == "split" && !line["measured"].is_null();
    here(command, lines_of(metrics)?.into_iter().filter(is_pipeline).collect())
}

pub(super) fn draw(texts: &[String]) -> anyhow::Result<Figure> {
    let recorded = Recorded::parse(texts)?;
    let splits: Vec<Split> = recorded.lines("split")?;
    let named: Vec<_> =
        splits.iter().map(|it| (it.run.as_str(), [&it.predicted, &it.measured])).collect();
    let svg = chart("A step of each pipeline", None, &named).svg(Place::Page);
    let percent = |timeline: &Timeline| format!("{:.0} %", timeline.bubble() * 100.0);
    let bubble = |Split { run, predicted, measured }: &Split| {
        format!("{} {} and {}", escaped(run), percent(predicted), percent(measured))
    };
    let bubbles: Vec<String> = splits.iter().map(bubble).collect();
    let caption = recorded.caption();
    let caption = format!("Bubble, predicted and measured: {}. {caption}", bubbles.join("; "));
    Ok(Figure { svg, caption })
}
