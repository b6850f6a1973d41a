//! The results of a way, in numbers.

use concise_wrapper::launch::Launch;
use harness::report::outputs::Outputs;
use itertools::Itertools as _;
use model_parallel::Timeline;
use model_parallel::execute::Held;
use model_parallel::runs::{self, Trained};
use serde_json::{Value, json};

use crate::plan::{Prepared, Way};

/// The results of a way.
pub(crate) type Outcome<'a> = runs::Outcome<'a, Way>;

/// Summarises the results of a way, and writes them to the files of the run. `before` has the earlier ways.
pub(crate) fn of_way<'a>(
    way: &'a Way,
    trained: Trained,
    before: &[Outcome<'a>],
    (launch, prepared): (&Launch, &Prepared),
    outputs: &mut Outputs,
) -> anyhow::Result<Outcome<'a>> {
    // With batch norms, other micro-batches are another function.
    let is_comparable = |it: &&Outcome<'_>| {
        it.run.is_alone() && (it.run.shards == way.shards || !prepared.flags.has_norms())
    };
    let outcome = Outcome::new(
        (way, &way.name, way.title(), prepared.training.plan(way.mesh.devices())),
        trained,
        before.iter().find(is_comparable),
        (way.predicted.as_ref(), Timeline::bubble),
        (launch, &prepared.training.setup),
        outputs,
    )?;
    if let Some(metrics) = &mut outputs.metrics {
        metrics.write_json("split", &line(&outcome))?;
    }
    Ok(outcome)
}

/// The line of the metrics.
fn line(Outcome { run: way, trained, seconds_per_step, steps, .. }: &Outcome<'_>) -> Value {
    let [predicted, measured] =
        steps.as_ref().map(|it| it.each_ref().map(Some)).unwrap_or_default();
    let peaks = |it: &Timeline| {
        let of_stage = |stage| json!({"peak": it.peak(stage), "total": it.peak_total(stage)});
        (0..it.stages).map(of_stage).collect_vec()
    };
    json!({
        "run": way.name,
        "cut": if way.has_stages() { &way.cut[..] } else { &[] },
        "seconds_per_step": seconds_per_step,
        "held": trained.held,
        "predicted": predicted,
        "predicted_bubble": predicted.map(Timeline::bubble),
        "measured": measured,
        "measured_bubble": measured.map(Timeline::bubble),
        "predicted_held": predicted.map(peaks),
    })
}

/// The name in a sentence.
pub(crate) fn name(it: &Outcome<'_>) -> String {
    let Way { label, shards, .. } = it.run;
    let several = *shards > 1 && it.run.is_alone();
    if several { format!("{label} on {shards} micro-batches") } else { label.clone() }
}

/// The predicted and the measured share of the time in which the devices of a pipeline are idle.
pub(crate) fn idle(it: &Outcome<'_>) -> Option<[f64; 2]> {
    let steps = it.steps.as_ref().filter(|_| it.run.has_stages())?;
    Some(steps.each_ref().map(Timeline::bubble))
}

/// The largest error of predicted bytes, as a share of the measured bytes.
pub(crate) fn error_of_bytes(it: &Outcome<'_>) -> Option<f64> {
    let error =
        |(device, held): (usize, &Held)| Some(it.run.held(device)?.peak.largest_error(held.peak));
    it.trained.held.iter().enumerate().filter_map(error).reduce(f64::max)
}

#[cfg(test)]
pub(crate) mod tests {
    use clap::Parser as _;
    use harness::report::summary::Summary;
    use model_parallel::Bytes;
    use model_parallel::instructions::{Action, Instruction};
    use model_parallel::layers::Layers;
    use model_parallel::mesh::Mesh;
    use model_parallel::simulate::Span;

    use super::*;
    use crate::arguments::Arguments;

    /// The ways of a program with such flags, on two devices.
    pub(crate) fn ways(flags: &str) -> Vec<Way> {
        let flags = ["model-parallel"].into_iter().chain(flags.split_whitespace());
        let (flags, mesh, layers) =
            (Arguments::parse_from(flags), Mesh::pipeline(2), Layers::lenet());
        flags.ways(mesh, &layers, &mut Vec::new()).expect("ways")
    }

    /// Results with these times of a step, in seconds. Everything else is the same for all ways.
    pub(crate) fn outcomes<'a>(ways: &'a [Way], times: &[f64]) -> Vec<Outcome<'a>> {
        let summary = Summary {
            dtype: "f32".to_owned(),
            epochs_trained: 1.0,
            seconds_per_epoch: 10.0,
            ..Summary::default()
        };
        let outcome = |(run, &seconds_per_step)| {
            let (trained, summary) = (Trained::default(), summary.clone());
            Outcome { run, trained, summary, seconds_per_step, errors: [None; 2], steps: None }
        };
        ways.iter().zip(times).map(outcome).collect()
    }

    /// One stage that is busy for a second, and done after so many.
    pub(crate) fn step(makespan: f64) -> Timeline {
        let span = |action, start, end| Span {
            stage: 0,
            instruction: Instruction { unit: 0, action },
            held: Bytes::default(),
            start,
            end,
        };
        let spans = vec![
            span(Action::Forward(0), 0.0, 1.0),
            span(Action::SendActivation(0), 1.0, makespan),
        ];
        Timeline { stages: 1, spans }
    }

    #[test]
    fn the_middle_step_is_shown_and_the_first_does_not_count() {
        let of = |makespans: &[f64]| {
            let steps: Vec<_> = makespans.iter().map(|&end| step(end)).collect();
            Timeline::median(&steps, Timeline::bubble).cloned()
        };
        assert_eq!(of(&[100.0, 4.0, 2.0, 50.0]), Some(step(4.0)));
        assert_eq!(step(4.0).bubble(), 0.75);
        // One step is better than none.
        assert_eq!(of(&[10.0]), Some(step(10.0)));
        assert_eq!(of(&[]), None);
    }
}
