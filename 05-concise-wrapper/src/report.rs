//! The results of the runs: each by itself, and together with the conclusion in plain sentences.

use concise_wrapper::ddp::Reduction;
use concise_wrapper::launch::Launch;
use concise_wrapper::train::Trained;
use harness::lock::locked;
use harness::report::file::{LazyFile, announce};
use harness::report::outputs::Outputs;
use harness::report::summary::Summary;
use harness::report::{counted, line, number, paragraph};
use harness::verdict::{accuracies, of_one, rounding_test, speed_up, times};
use itertools::Itertools as _;
use model_state::weights_hash::WeightsHash;
use scratch_data_parallel::replicas::verdict;

use crate::arguments::{Arguments, ModelKind, Norm, Scale, TestNorm, WrapperKind};
use crate::plan::{Prepared, Run};

/// A finished run, and a hash of the weights of every rank. Without ranks, there are no hashes.
pub(crate) type Finished = (Summary, Vec<WeightsHash>);

/// Summarises a run, and writes the summary to the metrics. All processes call this together.
pub(crate) fn finish(
    run: &Run,
    (trained, replicas): (Trained, Vec<WeightsHash>),
    launch: &Launch,
    prepared: &Prepared,
    outputs: &mut Outputs,
) -> anyhow::Result<Finished> {
    let hash = WeightsHash::new(&trained.weights)?;
    let summary = prepared.setup.summary(run.name, &run.devices, &trained.records, hash);
    let (options, method) = (run.options, method(run, prepared));
    let summary = Summary { devices: launch.devices(&run.devices)?, options, method, ..summary };
    outputs.run_ended(&summary, &trained.records)?;
    Ok((summary, replicas))
}

/// Describes how the gradients of several devices became one update. One device has no method.
fn method(run: &Run, Prepared { flags, reduction, .. }: &Prepared) -> Option<String> {
    let norms = match (flags.model, run.norm) {
        (ModelKind::Lenet, _) => "",
        (ModelKind::Resnet18, Norm::Local) => ", local batch norm",
        (ModelKind::Resnet18, Norm::Sync) => ", synchronised batch norm",
    };
    let sums = match (run.wrapper, reduction) {
        (WrapperKind::Single, _) => None,
        (WrapperKind::DataParallel, _) => Some(format!("data parallel{norms}")),
        (_, Reduction::Reproducible { shards }) => Some(format!("reproducible: {shards} shards")),
        (_, Reduction::Buckets { algorithm, overlap, .. }) => {
            let when = if *overlap { "during" } else { "after" };
            Some(format!("ddp: buckets {when} backward ({algorithm}){norms}"))
        }
    };
    let slow = flags.reduction.slow_link().filter(|_| run.main);
    let slow = slow.map(|it| format!("link slowed down to {} MB/s", number(it.megabytes())));
    let by_batch = (flags.test_norm == TestNorm::Batch)
        .then(|| "tested by each batch's own statistics".to_owned());
    let method = [sums, slow, by_batch].into_iter().flatten().join(", ");
    (!method.is_empty()).then_some(method)
}

/// Prints the results of the runs that have ended, and writes the files that show all of them.
pub(crate) fn report(
    runs: &[Finished],
    prepared: &Prepared,
    outputs: &mut Outputs,
) -> anyhow::Result<()> {
    if !runs.is_empty() {
        line("")?;
        runs.iter().try_for_each(|(summary, _)| line(summary))?;
        for (summary, replicas) in runs.iter().filter(|(_, replicas)| replicas.len() > 1) {
            line(format_args!("{}: {}", summary.run, verdict(replicas)))?;
        }
        let summaries: Vec<&Summary> = runs.iter().map(|(summary, _)| summary).collect();
        let conclusion = conclusion(&prepared.flags, prepared.runs.len(), &summaries);
        paragraph(format_args!("\n{conclusion}"))?;
    }
    outputs.write(&prepared.headline())?;
    locked(&prepared.recording).as_ref().map_or(Ok(()), LazyFile::announce)?;
    if let Some(checkpoints) = prepared.flags.checkpoints.as_ref().filter(|_| !runs.is_empty())
        && let Some(newest) = checkpoints.newest()?
    {
        announce("--checkpoint", &newest)?;
    }
    Ok(())
}

/// Returns the conclusion from the finished ones of `planned` runs: from one run, or from one device and several. Doubts come
/// first.
fn conclusion(flags: &Arguments, planned: usize, runs: &[&Summary]) -> String {
    let interrupted = runs.iter().any(|run| run.interrupted);
    let sentences = match runs {
        _ if interrupted || runs.len() < planned => {
            let resume = match flags.checkpoints.is_some() && interrupted {
                true => " The same command with --resume continues it.",
                false => "",
            };
            vec![format!("Not every run ended, so these results are not final.{resume}")]
        }
        [one, several] => {
            let equal = one.weights_hash == several.weights_hash;
            let results = match flags.reduction.shards {
                None => accuracies(one, several, cause(flags, &several.dtype)),
                Some(_) if equal => {
                    "All runs with these shards end with the same weights, to the last bit.".to_owned()
                }
                Some(_) => {
                    "The weights differ, and --shards promises the same bits: this is a mistake in the program.".to_owned()
                }
            };
            vec![speed(flags, runs), results]
        }
        _ => runs.iter().map(|run| of_one(run)).collect(),
    };
    sentences.join(" ").trim().to_owned()
}

/// Compares the times.
fn speed(flags: &Arguments, runs: &[&Summary]) -> String {
    let wrapper = flags.wrapper.title();
    times(runs, wrapper, |ratio| {
        let devices = format!("{} under {wrapper}", counted(runs[1].devices.len(), "device"));
        let one = match flags.reduction.slow_link() {
            Some(link) => format!("one over a link of {} MB/s", number(link.megabytes())),
            None => "one".to_owned(),
        };
        speed_up(&devices, &one, ratio)
    })
}

/// The cause of a difference in accuracy.
fn cause(flags: &Arguments, dtype: &str) -> &'static str {
    let local_norms = flags.model == ModelKind::Resnet18 && flags.bn == Norm::Local;
    match flags.scale {
        Scale::Linear if local_norms => {
            "A larger batch makes fewer steps, and each batch norm uses one device's images: --example compare separates the causes."
        }
        Scale::Linear => {
            "A larger batch makes fewer steps: --scale none keeps the batch and the rate."
        }
        Scale::None if local_norms => {
            "Each batch norm uses one device's images. With --bn sync both runs are equal up to rounding."
        }
        Scale::None => rounding_test(dtype).trim_start(),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use harness::verdict::Doubt;

    use super::*;

    /// A run on so many devices, with 2,000 test images.
    fn run(devices: usize, test_accuracy: f64, seconds_per_epoch: f64) -> Summary {
        Summary {
            images: (12_288, 2_000),
            dtype: "f32".to_owned(),
            devices: vec!["cpu".to_owned(); devices],
            epochs_trained: 5.0,
            test_accuracy,
            guessing: 0.1,
            seconds_per_epoch,
            weights_hash: "0".repeat(64),
            ..Summary::default()
        }
    }

    /// The conclusion of a program with such flags, from one device and several.
    fn said(flags: &str, one: &Summary, several: &Summary) -> String {
        let flags =
            Arguments::parse_from(["concise-wrapper"].into_iter().chain(flags.split_whitespace()));
        conclusion(&flags, 2, &[one, several])
    }

    #[test]
    fn one_device_and_several_are_compared() {
        let (one, two) = (|accuracy| run(1, accuracy, 2.0), |accuracy| run(2, accuracy, 1.0));
        let (long, four) = (|| run(1, 0.894, 36.0), |seconds| run(4, 0.893, seconds));
        let other = Summary { weights_hash: "1".repeat(64), ..two(0.5) };
        let faster = "^4 devices under DDP are 3.60 times as fast as one. Test accuracy is 0.893, and 0.894 on one device: 2,000 \
                      test images show no clear difference.$";
        let slower = "^4 devices under DataParallel are slower than one over a link of 10 MB/s: an epoch takes 2.00 times as long. Test";
        let both_causes = "Test accuracy is 0.280, lower than 0.620 on one device. A larger batch makes fewer steps, and each batch \
                           norm uses one device's images: --example compare separates the causes.$";
        let fewer_steps = "makes fewer steps: --scale none keeps the batch and the rate.$";
        let local_norms = "uses one device's images. With --bn sync both";
        let rounding = "0.700, higher than 0.620 on one device. --dtype f64 tests";
        let equal = "0.630, and 0.620 on one device: 2,000 test images show no";
        let same = "All runs with these shards end with the same weights, to the last bit.$";
        let mistake = "The weights differ, and --shards promises the same bits: this is a mistake";
        for (flags, one, several, expected) in [
            ("", long(), four(10.0), faster),
            ("--slow-link=10 --wrapper=data-parallel", long(), four(72.0), slower),
            ("", long(), four(f64::NAN), "^Test accuracy"),
            // A difference in accuracy has its cause.
            ("", one(0.62), two(0.28), both_causes),
            ("--bn=sync", one(0.62), two(0.28), fewer_steps),
            ("--model=lenet", one(0.62), two(0.28), fewer_steps),
            ("--scale=none", one(0.62), two(0.28), local_norms),
            ("--scale=none --bn=sync", one(0.62), two(0.7), rounding),
            ("--scale=none --bn=sync", one(0.62), two(0.63), equal),
            ("", one(0.11), two(0.09), "Neither run is clearly better than guessing"),
            ("", one(f64::NAN), two(0.5), "as fast as one.$"),
            // With shards, the weights are compared.
            ("--shards=8", one(0.5), two(0.5), same),
            ("--shards=8", one(0.5), other, mistake),
        ] {
            let text = format!("^{}$", said(flags, &one, &several));
            assert!(text.contains(expected), "{expected:?} is not in {text:?}");
        }
    }

    #[test]
    fn with_a_doubt_about_times_nothing_is_ranked() {
        let busy = Summary { busy: Some("busy".to_owned()), ..run(1, 0.894, 36.0) };
        let two = run(2, 0.893, 18.0);
        let text = said("", &busy, &two);
        assert!(text.starts_with(&format!("{} Test", Doubt::Busy)), "{text}");
        assert!(!text.contains("as fast"), "{text}");
        // Four devices are not ten times as fast as one.
        let text = said("", &run(1, 0.894, 36.0), &run(4, 0.893, 3.6));
        assert!(text.starts_with("The speed-up of DDP is 10.00, and 4 devices that"), "{text}");
    }

    #[test]
    fn runs_that_did_not_end_are_not_compared() {
        let whole = run(1, 0.5, 2.0);
        let cut = Summary { interrupted: true, ..run(2, 0.4, 1.0) };
        let flags = Arguments::parse_from(["concise-wrapper", "--checkpoint=folder"]);
        let said = |planned, runs: &[&Summary]| conclusion(&flags, planned, runs);
        let (no, resume) = (
            "Not every run ended, so these results are not final.",
            " The same command with --resume continues it.",
        );
        assert_eq!(said(2, &[&whole]), no);
        assert_eq!(said(2, &[&whole, &cut]), format!("{no}{resume}"));
        assert_eq!(said(1, &[&cut]), format!("{no}{resume}"));
        assert_eq!(said(1, &[&whole]), of_one(&whole));
    }
}
