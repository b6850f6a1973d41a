//! The results of the runs: each by itself, and together with the conclusion.

use concise_wrapper::ddp::Reduction;
use concise_wrapper::launch::Launch;
use concise_wrapper::train::Trained;
use harness::cli::name_of;
use harness::lock::locked;
use harness::report::file::{LazyFile, announce};
use harness::report::outputs::Outputs;
use harness::report::summary::Summary;
use harness::report::{line, number, paragraph};
use model_state::weights_hash::WeightsHash;
use scratch_data_parallel::replicas::verdict;

use crate::arguments::{ModelKind, TestNorm, WrapperKind};
use crate::conclusion::conclusion;
use crate::plan::{Prepared, Run};

/// A finished run.
pub(crate) struct Finished {
    pub(crate) run: Run,
    pub(crate) summary: Summary,
    /// A hash of the weights of every rank. Empty without ranks.
    replicas: Vec<WeightsHash>,
}

impl Finished {
    /// Summarises a run, and writes the summary to the metrics. All processes call this together.
    pub(crate) fn new(
        run: Run,
        (trained, replicas): (Trained, Vec<WeightsHash>),
        launch: &Launch,
        prepared: &Prepared,
        outputs: &mut Outputs,
    ) -> anyhow::Result<Self> {
        let hash = WeightsHash::new(&trained.weights)?;
        let summary = prepared.setup.summary(run.name, &run.devices, &trained.records, hash);
        let (options, method) = (run.options, method(&run, prepared));
        let devices = launch.devices(&run.devices)?;
        let summary = Summary { devices, options, method, ..summary };
        outputs.run_ended(&summary, &trained.records)?;
        Ok(Self { run, summary, replicas })
    }
}

/// Describes how the gradients of several devices became one update. One device has no method.
fn method(run: &Run, Prepared { flags, reduction, .. }: &Prepared) -> Option<String> {
    let norms = match flags.model {
        ModelKind::Lenet => String::new(),
        ModelKind::Resnet18 => format!(", {} batch norm", run.norm.name()),
    };
    let mut method = Vec::new();
    match (run.wrapper, reduction) {
        (WrapperKind::Single, _) => {}
        (WrapperKind::DataParallel, _) => method.push(format!("data parallel{norms}")),
        (_, Reduction::Reproducible { shards }) => {
            method.push(format!("reproducible: {shards} shards"));
        }
        (_, Reduction::Buckets { algorithm, overlap, .. }) => {
            let when = if *overlap { "during" } else { "after" };
            method.push(format!("ddp: buckets {when} backward ({algorithm}){norms}"));
        }
    }
    if let Some(slowness) = flags.reduction.slow_link().filter(|_| run.main) {
        method.push(format!("link slowed down to {} MB/s", number(slowness.megabytes())));
    }
    if let Some(bug) = flags.breakage.filter(|_| run.main) {
        method.push(format!("broken on purpose: {}", name_of(&bug)));
    }
    if flags.test_norm == TestNorm::Batch {
        method.push("tested by each batch's own statistics".to_owned());
    }
    Some(method.join(", ")).filter(|method| !method.is_empty())
}

/// Prints the results of the runs that have ended, and writes the files that show all of them. `planned` counts all runs.
pub(crate) fn report(
    runs: &[Finished],
    planned: usize,
    prepared: &Prepared,
    outputs: &mut Outputs,
) -> anyhow::Result<()> {
    let flags = &prepared.flags;
    if flags.compare.is_none() && !runs.is_empty() {
        outputs.print_sparklines()?;
        line("")?;
        runs.iter().try_for_each(|run| line(&run.summary))?;
        for Finished { summary, replicas, .. } in runs.iter().filter(|it| it.replicas.len() > 1) {
            line(format_args!("{}: {}", summary.run, verdict(replicas)))?;
        }
        let summaries: Vec<&Summary> = runs.iter().map(|run| &run.summary).collect();
        let conclusion = conclusion(flags, planned, &summaries);
        paragraph(format_args!("\n{conclusion}"))?;
    }
    outputs.write(&prepared.headline())?;
    locked(&prepared.recording).as_ref().map_or(Ok(()), LazyFile::announce)?;
    if let Some(checkpoints) = flags.checkpoints.as_ref().filter(|_| !runs.is_empty())
        && let Some(newest) = checkpoints.newest()?
    {
        announce("--checkpoint", &newest)?;
    }
    Ok(())
}
