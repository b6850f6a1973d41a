//! The learner's prediction of a step, printed before stage 7 measures the step.

use std::error::Error;
use std::time::Duration;

use concise_wrapper::ddp::bucket::BucketCaps;
use concise_wrapper::slow_link::Slowness;
use cost_model::all_reduce::Way;
use cost_model::hosts::Hosts;
use cost_model::link::Link;
use cost_model::measure::{self, Together};
use datasets::{Split, synthetic};
use devices::DevicePlan;
use harness::load::Load;
use harness::machine::available_cores;
use harness::report::{Table, columns, line, paragraph};
use harness::statistics::median;
use model_parallel::layers::Layers;
use params_and_allreduce::Algorithm;

/// The seconds of a step on one device, the cores, the devices, the bytes of the gradients, and the link; the seconds of a step.
pub type Answer = fn(f64, usize, usize, f64, &Link) -> f64;

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
pub fn run(predict: Answer) -> Result<(), Box<dyn Error>> {
    let (layers, data) = (Layers::lenet(), synthetic::dataset(Split::Train, BATCH * STEPS));
    let step = |plan: &DevicePlan| {
        let together = Together {
            algorithm: Algorithm::Ring,
            overlap: false,
            caps: BucketCaps::default(),
            slowness: Some(SLOW),
        };
        let times = (0..3).map(|_| measure::training(plan, &layers, &data, BATCH, &together));
        Ok::<_, Box<dyn Error>>(median(times.collect::<Result<Vec<_>, _>>()?))
    };
    let (load, cores) = (Load::now(), available_cores());
    let alone = step(&DevicePlan::slices(1)?)?;
    let link = Link::new(SLOW.latency.as_secs_f64(), SLOW.bandwidth);
    let yours = |alone, devices| predict(alone, cores, devices, BYTES, &link);
    line(format_args!("LeNet, {BATCH} images a step; one device takes {}", shown(alone)))?;
    for devices in DEVICES {
        let (all, messages) = (yours(alone, devices), yours(0.0, devices));
        line(format_args!(
            "you predict {} on {devices} devices; the messages take {}",
            shown(all),
            shown(messages)
        ))?;
    }
    let mut table =
        Table::new("\na step").column("\nyours", 0).column("\nours", 0).column("\nmeasured", 0);
    table = table.column("your\nerror, %", 0).column("our\nerror, %", 0);
    let mut errors_of_yours = Vec::new();
    for devices in DEVICES {
        let plan = DevicePlan::slices(devices)?;
        let measured = step(&plan)?;
        let compute = measure::compute(&plan, &layers, &data, BATCH / devices, STEPS)?;
        let hosts = Hosts::one(measure::links(&plan, BYTES as usize, SLOW)?.slow);
        let messages = Way::Ring.cost(devices, BYTES, &hosts).seconds;
        let (yours, ours) = (yours(alone, devices), compute.passes + compute.update + messages);
        let error = |predicted: f64| predicted / measured - 1.0;
        errors_of_yours.push(100.0 * error(yours));
        let cells = [yours, ours, measured].map(shown).into_iter();
        let errors = [yours, ours].map(|it| format!("{:+.0}", 100.0 * error(it)));
        table.row([format!("{devices} devices")].into_iter().chain(cells).chain(errors));
    }
    line(table.text(columns()))?;
    paragraph(
        "Ours: a measured step without messages beside the other devices, and a measured link.",
    )?;
    let busy = DevicePlan::slices(cores)?.busy_since(&load);
    Ok(paragraph(conclusion(&errors_of_yours, busy))?)
}

fn shown(seconds: f64) -> String {
    format!("{:.1} ms", 1e3 * seconds)
}

/// The verdict on the learner's errors in percent. Unreliable times say nothing about a prediction.
fn conclusion(errors: &[f64], busy: Option<String>) -> String {
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
        assert!(conclusion(&[-20.0, 3.0], None).contains("holds: it is at most 25 % off"));
        assert!(conclusion(&[3.0, 90.0], None).contains("more than 25 % off"));
        assert!(conclusion(&[f64::NAN], None).contains("more than 25 % off"));
        let busy = conclusion(&[90.0], Some("other programs used the cores".to_owned()));
        assert!(
            busy.contains("say nothing about your prediction") && !busy.contains('%'),
            "{busy}"
        );
    }
}
