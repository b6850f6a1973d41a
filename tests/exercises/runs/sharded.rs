//! Stage 7's training in chunks, by a list of the learner's.

use concise_wrapper::slow_link::{SlowNetwork, Slowness};
use datasets::SAMPLE;
use model_parallel::bytes::megabytes;
use model_parallel::execute::Settings;
use model_parallel::layers::Layers;
use model_parallel::mesh::Mesh;
use model_parallel::{Bytes, Checked, Executor, UNBOUNDED, check};
use sharded_state::Sharded;
use sharded_state::strategies::List;

use super::prelude::*;
use crate::sharded::{RANKS, schedule};

/// The outputs of the layers. Each layer is a unit.
pub(super) const WIDTHS: [usize; 9] = [784, 512, 512, 512, 512, 512, 512, 512, 10];
pub(super) const UNITS: usize = WIDTHS.len() - 1;
const OPTIONS: TrainOptions = options(2, 256, 0.1);

/// A list of one micro-batch for the network, or the sentence of the law that it breaks.
pub(super) fn list_of(list: &List) -> Result<Checked, String> {
    check(schedule(list, UNITS, 1), UNBOUNDED).map_err(|law| {
        format!("The checker refuses your list for {UNITS} units: {law}. So no device runs it.")
    })
}

/// Trains on two devices. The link between them has so many MB/s, or is memory.
fn train(name: &str, checked: &Checked, link: Option<f64>) -> Run<(Training, Bytes)> {
    let (layers, data) = (Layers::dense(&WIDTHS)?, images(4096));
    let slow = link.map(|it| SlowNetwork::new(Slowness::of_megabytes(it, Duration::ZERO), TIMEOUT));
    let of_ranks = run_ranks(&DevicePlan::slices(RANKS)?, TIMEOUT, |rank| {
        let comm: SharedCommunicator = rank.into();
        let comm =
            slow.as_ref().map_or_else(|| Arc::clone(&comm), |it| it.slow_down(Arc::clone(&comm)));
        let mesh = Mesh { data: RANKS, ..Mesh::pipeline(1) };
        let unit = |unit, replicas: &_| {
            let network = layers.build(unit..unit + 1, OPTIONS.seed, DType::F32, rank.device())?;
            Sharded::new(unit, network, replicas)
        };
        let executor = Executor::of_units(checked, comm, mesh, &SAMPLE, Settings::IMAGES, unit)?;
        let part = Training::of(name, &executor, (&data, &OPTIONS))?;
        let mut whole = Snapshot::new();
        for unit in executor.units() {
            whole.extend(unit.whole()?);
        }
        let held = executor.measured().held.peak;
        Ok::<_, ModelError>((Training::new(name, part.records, [whole.clone(), whole])?, held))
    })?;
    Ok(of_ranks.into_iter().next().ok_or("there is a rank")?)
}

/// Trains by these lists, the learner's first and ours last. Prints a table and the conclusion.
pub(super) fn compare(lists: &[(&str, &Checked)], link: Option<f64>) -> Run {
    let mut trained = Vec::new();
    for (name, checked) in lists {
        match train(name, checked, link) {
            Err(failure) if trained.is_empty() => {
                let what = "The devices cannot train with your list";
                return Ok(paragraph(format_args!("{what}: {failure}"))?);
            }
            it => {
                let (mut training, held) = it?;
                let kinds = [held.parameters, held.gradients, held.activations];
                training.more.extend(kinds.map(megabytes));
                trained.push(training);
            }
        }
    }
    let link = link.map_or_else(String::new, |it| format!(", a link of {it} MB/s"));
    paragraph(format_args!("a dense stack of {UNITS} units on {RANKS} devices{link}; MB at most"))?;
    show("", &trained, &["para-\nmeters", "gradi-\nents", "activa-\ntions"])?;
    Ok(paragraph(conclusion(&trained[0], &[("ours", &trained[trained.len() - 1])]))?)
}
