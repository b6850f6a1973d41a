//! The learner's prediction of a step, printed before stage 8 measures the step.

use concise_wrapper::ddp::bucket::BucketCaps;
use concise_wrapper::slow_link::Slowness;
use cost_model::all_reduce::Way;
use cost_model::hosts::Hosts;
use cost_model::link::Link;
use cost_model::measure::{self, Together};
use harness::machine::available_cores;
use model_parallel::layers::Layers;

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

/// Measures one device, predicts several, and measures them. Fails when the answer panics.
pub fn run(predict: Answer) -> Run {
    let (layers, data) = (Layers::lenet(), synthetic::dataset(Split::Train, BATCH * STEPS));
    let (algorithm, caps, slowness) = (Algorithm::Ring, BucketCaps::default(), Some(SLOW));
    let together = Together { algorithm, overlap: false, caps, slowness };
    let step = |plan: &DevicePlan| {
        let times = (0..3).map(|_| measure::training(plan, &layers, &data, BATCH, &together));
        Run::Ok(median(times.collect::<Result<Vec<_>, _>>()?))
    };
    let (alone, cores) = (step(&DevicePlan::slices(1)?)?, available_cores());
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
        let plan = DevicePlan::slices(devices)?;
        let measured = step(&plan)?;
        let compute = measure::compute(&plan, &layers, &data, BATCH / devices, STEPS)?;
        let hosts = Hosts::one(measure::links(&plan, BYTES as usize, SLOW)?.slow);
        let messages = Way::Ring.cost(devices, BYTES, &hosts).seconds;
        let both = [yours(alone, devices), compute.passes + compute.update + messages];
        let off = both.map(|predicted| 100.0 * (predicted / measured - 1.0));
        let times = [both[0], both[1], measured].map(milliseconds);
        let off_told = off.map(|percent| format!("{percent:+.0}"));
        rows.push([&[format!("{devices} devices")][..], &times, &off_told].concat());
        errors.push(off[0]);
    }
    let columns = ["\nyours", "\nours", "\nmeasured", "your\nerror, %", "our\nerror, %"];
    table("\na step", &columns, rows)?;
    paragraph(
        "Ours: a measured step without messages beside the other devices, and a measured link.",
    )?;
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
