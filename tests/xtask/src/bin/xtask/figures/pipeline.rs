//! One step of each pipeline of stage 6: what was predicted, and below it what was measured.

use anyhow::{Context as _, ensure};
use harness::report::chart::ticks;
use model_parallel::pipeline::Timeline;
use model_parallel::pipeline::schedule::Action;
use model_parallel::pipeline::timeline::Span;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use xtask::html::escaped;

use super::Figure;
use super::drawing::{Anchor, Drawing, WIDTH, series_class};
use super::measurement::{Recorded, lines_of};

/// What a stage does, in the order of the series that give it its colour.
const ACTIONS: [&str; 3] = ["forward", "backward", "update"];

const LEFT: f64 = 58.0;
const RIGHT: f64 = 8.0;
const HEADING: f64 = 22.0;
/// Predicted, then measured; what is between two stages.
const LANE: f64 = 17.0;
const BAR: f64 = 15.0;
const STAGE_GAP: f64 = 6.0;
const GAP: f64 = 8.0;
const AXIS: f64 = 30.0;

/// A digit of a label is no wider.
const DIGIT: f64 = 7.3;

/// A pipeline as stage 6's `--metrics` tells it.
#[derive(Deserialize)]
struct Split {
    run: String,
    predicted: Option<Timeline>,
    measured: Option<Timeline>,
}

#[derive(Debug, Deserialize, PartialEq, Serialize)]
struct Pipeline {
    kind: String,
    run: String,
    stages: usize,
    /// Parts of all devices' time.
    predicted_bubble: f64,
    measured_bubble: f64,
    predicted: Vec<Work>,
    measured: Vec<Work>,
}

/// What a stage computes, in milliseconds from the beginning of the step.
#[derive(Debug, Deserialize, PartialEq, Serialize)]
struct Work {
    stage: usize,
    r#do: String,
    micro_batch: Option<usize>,
    start: f64,
    end: f64,
}

/// Takes the pipelines out of what `--metrics` wrote, as lines of kind `pipeline`: what they compute, without
/// messages.
pub(super) fn pipelines_of(metrics: &str) -> anyhow::Result<Vec<Value>> {
    let lines = lines_of(metrics)?;
    let splits = lines.iter().filter(|line| line["kind"] == "split" && !line["measured"].is_null());
    splits.map(|line| Ok(serde_json::to_value(stored(Split::deserialize(line)?)?)?)).collect()
}

fn stored(split: Split) -> anyhow::Result<Pipeline> {
    let Split { run, predicted, measured } = split;
    let predicted = predicted.context("no prediction")?;
    let measured = measured.context("no measurement")?;
    let rounded = |bubble: f64| (bubble * 1e3).round() / 1e3;
    Ok(Pipeline {
        kind: "pipeline".to_owned(),
        run,
        stages: predicted.stages,
        predicted_bubble: rounded(predicted.bubble()),
        measured_bubble: rounded(measured.bubble()),
        predicted: work(&predicted),
        measured: work(&measured),
    })
}

fn work(timeline: &Timeline) -> Vec<Work> {
    // A stage that waits for its first message has begun.
    let since = |seconds: f64| ((seconds - timeline.start()) * 1e5).round() / 1e2;
    let work = |&Span { stage, instruction, start, end }: &Span| {
        let action = instruction.action;
        let (r#do, micro_batch) = (ACTIONS[series(action)?].to_owned(), action.micro_batch());
        Some(Work { stage, r#do, micro_batch, start: since(start), end: since(end) })
    };
    timeline.spans.iter().filter_map(work).collect()
}

/// The place in [`ACTIONS`] of what a stage computes; `None` of a message.
fn series(action: Action) -> Option<usize> {
    match action {
        Action::Forward(_) => Some(0),
        Action::Backward(_) | Action::BackwardInput(_) | Action::BackwardWeight(_) => Some(1),
        Action::Update => Some(2),
        Action::RecvActivation(_)
        | Action::SendActivation(_)
        | Action::RecvGradient(_)
        | Action::SendGradient(_) => None,
    }
}

/// Draws two lanes for each stage of each pipeline, all along one axis of time.
pub(super) fn draw(text: &str) -> anyhow::Result<Figure> {
    let recorded = Recorded::parse(text)?;
    let pipelines: Vec<Pipeline> = recorded.lines("pipeline")?;
    let ends = pipelines.iter().flat_map(|p| p.predicted.iter().chain(&p.measured));
    let length = ends.map(|work| work.end).fold(0.0, f64::max);
    ensure!(length > 0.0, "a step takes time");
    let of_stage = 2.0 * LANE + STAGE_GAP;
    let height = |pipeline: &Pipeline| HEADING + pipeline.stages as f64 * of_stage + GAP;
    let bottom: f64 = pipelines.iter().map(height).sum();
    let x = |milliseconds: f64| LEFT + milliseconds / length * (WIDTH - LEFT - RIGHT);
    let names: Vec<&str> = pipelines.iter().map(|pipeline| pipeline.run.as_str()).collect();
    let title =
        format!("What each stage did in a step, predicted and measured: {}", names.join("; "));
    let mut drawing = Drawing::new(bottom + AXIS, title);
    for at in ticks(length, 8) {
        drawing.line("grid", (x(at), HEADING), (x(at), bottom));
        let unit = if at == 0.0 { " ms" } else { "" };
        drawing.text("label", (x(at), bottom + 18.0), Anchor::Middle, format_args!("{at}{unit}"));
    }
    let mut top = 0.0;
    for pipeline in &pipelines {
        drawing.text("label strong", (LEFT, top + HEADING - 7.0), Anchor::Start, &pipeline.run);
        for stage in 0..pipeline.stages {
            let lane = top + HEADING + stage as f64 * of_stage;
            let middle = (LEFT - 6.0, lane + LANE + 3.5);
            drawing.text("label", middle, Anchor::End, format_args!("stage {stage}"));
            for (works, lane, pale) in
                [(&pipeline.predicted, lane, true), (&pipeline.measured, lane + LANE, false)]
            {
                for work in works.iter().filter(|work| work.stage == stage) {
                    bar(&mut drawing, work, (x(work.start), x(work.end)), lane, pale);
                }
            }
        }
        top += height(pipeline);
    }
    Ok(Figure { svg: drawing.finish(), caption: caption(&pipelines, &recorded) })
}

fn bar(drawing: &mut Drawing, work: &Work, (left, right): (f64, f64), top: f64, pale: bool) {
    let Some(series) = ACTIONS.iter().position(|action| *action == work.r#do) else { return };
    let (class, size) = (series_class(series), (right - left, BAR));
    // What takes no time is not drawn.
    if right - left < 0.05 {
        return;
    }
    let micro_batch = work.micro_batch.map(|number| number.to_string());
    let of = micro_batch.as_ref().map_or(String::new(), |number| format!(", micro-batch {number}"));
    let (kind, Work { stage, r#do: action, start, end, .. }) =
        (if pale { "predicted" } else { "measured" }, work);
    let tooltip =
        format!("stage {stage}, {kind}: {action}{of}, {:.2} ms, from {start} ms", end - start);
    if pale {
        drawing.pale_bar(&class, (left, top), size, &tooltip);
    } else {
        drawing.bar(&class, (left, top), size, &tooltip);
    }
    let Some(micro_batch) = micro_batch else { return };
    if micro_batch.len() as f64 * DIGIT <= right - left {
        let middle = ((left + right) / 2.0, top + BAR / 2.0 + 4.5);
        drawing.text("label on-bar", middle, Anchor::Middle, micro_batch);
    }
}

fn caption(pipelines: &[Pipeline], recorded: &Recorded) -> String {
    let percent = |bubble: f64| format!("{:.0} %", bubble * 100.0);
    let bubble = |pipeline: &Pipeline| {
        let Pipeline { run, predicted_bubble, measured_bubble, .. } = pipeline;
        let (predicted, measured) = (percent(*predicted_bubble), percent(*measured_bubble));
        format!("{} {predicted} and {measured}", escaped(run))
    };
    let bubbles: Vec<String> = pipelines.iter().map(bubble).collect();
    format!("Bubble, predicted and measured: {}. {}", bubbles.join("; "), recorded.caption())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_stages_compute_is_stored_from_the_beginning_of_the_step() {
        let span = |stage: usize, action: &str, start: f64, end: f64| {
            json!({"stage": stage, "chunk": 0, "do": action, "micro_batch": 0,
                   "start": start, "end": end})
        };
        let predicted = json!({"stages": 2, "spans": [span(0, "forward", 0.0, 0.25)]});
        let update = json!({"stage": 0, "chunk": 0, "do": "update", "start": 9.5, "end": 9.75});
        let spans = [span(1, "recv_activation", 9.0, 9.25), span(1, "backward", 9.25, 9.5), update];
        let split = json!({
            "kind": "split", "run": "GPipe", "predicted": predicted,
            "measured": {"stages": 2, "spans": spans},
        });
        let alone = json!({"kind": "split", "run": "one device", "cut": []});
        let lines = pipelines_of(&format!("{alone}\n{split}\n")).unwrap();
        let [line] = lines.as_slice() else { panic!("{lines:?}") };
        let pipeline = Pipeline::deserialize(line).unwrap();
        let work = |stage, action: &str, micro_batch, start, end| Work {
            stage,
            r#do: action.to_owned(),
            micro_batch,
            start,
            end,
        };
        assert_eq!(pipeline.predicted, [work(0, "forward", Some(0), 0.0, 250.0)]);
        assert_eq!(
            pipeline.measured,
            [work(1, "backward", Some(0), 250.0, 500.0), work(0, "update", None, 500.0, 750.0)]
        );
        assert_eq!((pipeline.predicted_bubble, pipeline.measured_bubble), (0.5, 0.667));
    }
}
