//! Makes one run, on one device or on several, and reports all runs.

use concise_wrapper::ddp::{Reduction, alike, broken};
use concise_wrapper::launch::Launch;
use concise_wrapper::model::Progress;
use concise_wrapper::recorder::Recorder;
use concise_wrapper::slow_link::SlowNetwork;
use concise_wrapper::train::Trained;
use concise_wrapper::{DataParallel, Ddp, Error, Model, train};
use harness::cli::name_of;
use harness::report::Report;
use harness::report::line;
use harness::report::outputs::Outputs;
use harness::report::summary::Summary;
use harness::report::trace;
use ops::weights_hash::WeightsHash;
use params_and_allreduce::Algorithm;
use scratch_data_parallel::breakage::Breakage;
use scratch_data_parallel::replicas::{self, verdict};

use crate::arguments::{ModelKind, Norm, TestNorm, WrapperKind};
use crate::plan::{Planned, Prepared};

/// A finished run.
pub(crate) struct Run {
    pub(crate) planned: Planned,
    pub(crate) summary: Summary,
    /// A hash of the weights of every rank. Empty without ranks.
    replicas: Vec<WeightsHash>,
}

/// Trains as planned. All ranks train, and the process of rank 0 reports.
pub(crate) fn train_run(
    planned: Planned,
    prepared: &Prepared,
    launch: &Launch,
    outputs: &mut Outputs,
) -> anyhow::Result<Run> {
    let network = prepared.network(&planned)?;
    let plan = &planned.plan;
    let mut report = if launch.speaks() { outputs.report(planned.name) } else { Report::silent() };
    let (trained, replicas) = match planned.wrapper {
        WrapperKind::Single => {
            let device = plan.slots()[0].open()?;
            let trained = device.run(|| {
                let _rank = trace::rank(planned.name, 0, &device);
                let network = network.replica(device.tensors())?;
                steps(&network, &planned, prepared, &mut report, |_| Ok(()))
            })?;
            (trained, Vec::new())
        }
        WrapperKind::DataParallel => {
            let timeout = prepared.flags.launch.timeout();
            // ANCHOR: data_parallel
            let model = DataParallel::new(network, plan, timeout)?;
            // ANCHOR_END: data_parallel
            let sync = planned.norm == Norm::Sync;
            let model = if sync { model.synchronise_norms()? } else { model };
            (steps(&model, &planned, prepared, &mut report, |_| Ok(()))?, Vec::new())
        }
        WrapperKind::Ddp => {
            let timeout = prepared.flags.launch.timeout();
            let slow = prepared.slowness.filter(|_| planned.main);
            let slow = slow.map(|slowness| SlowNetwork::new(slowness, timeout));
            let of_ranks =
                launch.run(plan, report.of_ranks(plan.len()), |device, rank, mut report| {
                    let _rank = trace::rank(planned.name, rank.rank(), device);
                    let rank = match (&slow, prepared.reduction) {
                        (Some(slow), _) => slow.slow_down(rank),
                        (None, Reduction::Buckets { algorithm: Algorithm::Native, .. }) => {
                            backends::native(rank, timeout)
                        }
                        (None, _) => rank,
                    };
                    alike::compare(&rank, &prepared.to_compare(&planned))?;
                    let network = network.replica(device.tensors())?;
                    // ANCHOR: ddp
                    let model = Ddp::new(network, rank.clone(), prepared.reduction)?;
                    // ANCHOR_END: ddp
                    let sync = planned.norm == Norm::Sync;
                    let model = if sync { model.synchronise_norms()? } else { model };
                    let breakage = prepared.breakage(&planned);
                    let model = match breakage {
                        Some(breakage) => model.broken(breakage),
                        None => model,
                    };
                    let trained = steps(&model, &planned, prepared, &mut report, |progress| {
                        broken::after_step(&model, progress)
                    })?;
                    let hashes = match breakage {
                        // This rank has left the loop, and the other ranks are still in it.
                        Some(Breakage::LeaveEarly) => Vec::new(),
                        _ => replicas::hashes(&*rank, &trained.weights)?,
                    };
                    Ok::<_, Error>((trained, hashes))
                });
            // Rank 0's, in the process of rank 0.
            of_ranks?.swap_remove(0)
        }
    };
    let hash = WeightsHash::new(&trained.weights)?;
    let mut summary = prepared.setup.summary(planned.name, plan, &trained.records, hash);
    summary.devices = launch.devices(plan)?;
    summary.options = planned.options;
    summary.dtype = prepared.precision.to_string();
    summary.method = Some(method(&planned, prepared));
    outputs.run_ended(&summary, &trained.records)?;
    Ok(Run { planned, summary, replicas })
}

/// All steps of a rank, recorded if `--record` is about this run. `after_step` has the messages of a bug.
fn steps<M: Model>(
    model: &M,
    planned: &Planned,
    prepared: &Prepared,
    report: &mut Report<'_>,
    after_step: impl Fn(Progress<'_>) -> Result<(), Error>,
) -> Result<Trained, Error> {
    let (data, extras) = (&prepared.setup.data, &prepared.flags.extras);
    let (breakage, rank) = (prepared.breakage(planned), model.rank().map_or(0, |it| it.rank()));
    let options = match breakage {
        Some(breakage) => breakage.options(planned.options, rank, planned.world_size),
        None => planned.options,
    };
    let checkpoints = prepared.checkpoints(planned);
    let mut recorder = (prepared.records && planned.main)
        .then(|| Recorder::new(model, prepared.recording.as_ref()));
    let trained = train(model, data, &options, extras, checkpoints.as_ref(), report, |progress| {
        after_step(progress)?;
        recorder.as_mut().map_or(Ok(()), |recorder| recorder.step(progress))
    });
    let trained = trained.map_err(|error| match (&error, breakage) {
        (Error::Train(cause), Some(bug)) => bug.explains(cause).map_or(error, Error::from),
        _ => error,
    })?;
    recorder.map_or(Ok(()), Recorder::end)?;
    Ok(trained)
}

/// Describes how the gradients of several devices became one update.
fn method(planned: &Planned, prepared: &Prepared) -> String {
    let flags = &prepared.flags;
    let norms = match (flags.model, planned.norm) {
        (ModelKind::Lenet, _) => "",
        (ModelKind::Resnet18, Norm::Local) => ", local batch norm",
        (ModelKind::Resnet18, Norm::Sync) => ", synchronised batch norm",
    };
    let mut method = match (planned.wrapper, prepared.reduction) {
        (WrapperKind::Single, _) => "one device".to_owned(),
        (WrapperKind::DataParallel, _) => format!("data parallel{norms}"),
        (WrapperKind::Ddp, Reduction::Reproducible { shards }) => {
            format!("reproducible: {shards} shards")
        }
        (WrapperKind::Ddp, Reduction::Buckets { algorithm, overlap, .. }) => {
            let when = if overlap { "during" } else { "after" };
            format!("ddp: buckets {when} backward ({algorithm}){norms}")
        }
    };
    if planned.main && matches!(prepared.reduction, Reduction::Buckets { .. }) {
        if let Some(slowness) = prepared.slowness {
            method += &format!(", link slowed down to {} MB/s", slowness.megabytes());
        }
        if let Some(breakage) = flags.breakage {
            method += &format!(", broken on purpose: {}", name_of(&breakage));
        }
    }
    if flags.test_norm == TestNorm::Batch {
        method += ", tested by each batch's own statistics";
    }
    method
}

/// Prints the results of the runs, each and together.
pub(crate) fn report(runs: &[Run], outputs: &Outputs) -> anyhow::Result<()> {
    if runs.is_empty() {
        return Ok(());
    }
    outputs.print_sparklines()?;
    line("")?;
    for run in runs {
        line(&run.summary)?;
    }
    if let [one, .., several] = runs {
        let ratio = one.summary.seconds_per_epoch / several.summary.seconds_per_epoch;
        line(format_args!("speed-up: {ratio:.2}× over [{}]", one.summary.devices.join(", ")))?;
    }
    for Run { summary, replicas, .. } in runs.iter().filter(|run| run.replicas.len() > 1) {
        line(format_args!("{}: {}", summary.run, verdict(replicas)))?;
    }
    Ok(())
}
