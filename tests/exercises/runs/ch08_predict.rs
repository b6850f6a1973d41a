//! The learner's prediction of a step, printed before stage 8 measures the step.

use concise_wrapper::slow_link::{SlowNetwork, Slowness};
use cost_model::compute::{measure, run as run_steps};
use cost_model::link::{self, Hosts, Link};
use cost_model::plan::{Plan, Predicted};
use datasets::SAMPLE;
use harness::machine::available_cores;
use model_parallel::Cost;
use model_parallel::layers::Layers;
use model_parallel::mesh::Mesh;
use params_and_allreduce::thread::DEFAULT_TIMEOUT;
use sharded_state::Sharing;

use super::prelude::*;
pub use crate::checks::ch08_predict::Answer;

const BATCH: usize = 256;
const STEPS: usize = 10;
/// The devices that are predicted.
const DEVICES: [usize; 2] = [2, 4];
/// A prediction holds if its error is at most so many percent.
const OFF: f64 = 25.0;
/// The bytes of LeNet's gradients.
const BYTES: f64 = 516_272.0;
/// The slow link.
const SLOW: Slowness = Slowness { latency: Duration::from_micros(200), bandwidth: 100e6 };

/// Stage 8's prediction of a step, and the measured step. LeNet is one unit, so nothing overlaps: a reduce-scatter and an
/// all-gather of all gradients are the two halves of a ring.
fn step(devices: usize) -> Run<[f64; 2]> {
    let (plan, layers, rows) = (DevicePlan::slices(devices)?, Layers::lenet(), BATCH / devices);
    let (model, mesh) = ((&layers, &SAMPLE[..]), Mesh { data: devices, ..Mesh::pipeline(1) });
    let sharing = if devices == 1 { Sharing::Ddp } else { Sharing::Zero1 };
    let lines = measure(&plan, model, [rows / 2, 3 * rows / 2], (false, None))?;
    let slow = SlowNetwork::new(SLOW, DEFAULT_TIMEOUT);
    let hosts = Hosts::one(link::measure(&plan, BYTES as usize / devices, Some(&slow))?);
    let of = Plan { strategy: sharing.plain(), mesh, micro_batches: 1 };
    let units: Vec<_> = std::iter::once(0..layers.len()).collect();
    let ours = of.predict(&Cost::of_parts(&lines.at(rows), &units), &hosts)?;
    let ours = Predicted { units, ..ours };
    let slow = (devices > 1).then_some(&slow);
    let measured = run_steps(&plan, model, &ours, (BATCH, STEPS), slow)?;
    Ok([ours.step.seconds, measured.seconds])
}

/// Measures one device, predicts several, and measures them. Fails when the answer panics.
pub fn run(predict: Answer) -> Run {
    let ([_, alone], cores) = (step(1)?, available_cores());
    let link = Link::new(SLOW.latency.as_secs_f64(), SLOW.bandwidth);
    let yours = |alone, devices| predict(alone, cores, devices, BYTES, &link);
    let told = milliseconds(alone);
    line(format_args!("LeNet, {BATCH} images a step; one device takes {told}"))?;
    for devices in DEVICES {
        let [all, messages] = [alone, 0.0].map(|alone| milliseconds(yours(alone, devices)));
        line(format_args!("you predict {all} on {devices} devices; the messages take {messages}"))?;
    }
    let (mut rows, mut errors) = (Vec::new(), Vec::new());
    for devices in DEVICES {
        let [ours, measured] = step(devices)?;
        let both = [yours(alone, devices), ours];
        let off = both.map(|predicted| 100.0 * (predicted / measured - 1.0));
        let times = [both[0], both[1], measured].map(milliseconds);
        let off_told = off.map(|percent| format!("{percent:+.0}"));
        rows.push([&[format!("{devices} devices")][..], &times, &off_told].concat());
        errors.push(off[0]);
    }
    let columns = ["\nyours", "\nours", "\nmeasured", "your\nerror, %", "our\nerror, %"];
    table("\na step", &columns, rows)?;
    paragraph("Ours: measured layers and a measured link, in stage 6's simulator.")?;
    Ok(paragraph(verdict(&errors, super::busy()))?)
}

/// The verdict on the learner's errors in percent. Unreliable times say nothing about a prediction.
fn verdict(errors: &[f64], busy: Option<String>) -> String {
    match busy {
        Some(note) => format!(
            "note: {note}. They say nothing about your prediction: repeat the run on a quiet machine."
        ),
        // Written so that NaN is off.
        None if errors.iter().all(|error| error.abs() <= OFF) => {
            format!("Your prediction holds: it is at most {OFF:.0} % off.")
        }
        None => format!("Your prediction is more than {OFF:.0} % off."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_machine_is_no_mistake_of_the_learner() {
        let [holds, off] = ["at most 25 % off", "more than 25 % off"];
        for (error, told) in [(-20.0, holds), (90.0, off), (f64::NAN, off)] {
            assert!(verdict(&[3.0, error], None).contains(told), "{error}");
        }
        let busy = verdict(&[90.0], Some("other programs used the cores".to_owned()));
        assert!(busy.contains("say nothing about your prediction"), "{busy}");
    }
}
