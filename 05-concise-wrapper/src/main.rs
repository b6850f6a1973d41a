//! Trains ResNet-18 or LeNet behind a wrapper, on one device and on several.

mod arguments;
mod comparison;
mod conclusion;
mod plan;
mod report;

use std::process::ExitCode;

use arguments::{Arguments, Norm, WrapperKind};
use concise_wrapper::ddp::{alike, broken};
use concise_wrapper::launch::Launch;
use concise_wrapper::model::Progress;
use concise_wrapper::recorder::record;
use concise_wrapper::slow_link::SlowNetwork;
use concise_wrapper::train::Trained;
use concise_wrapper::{DataParallel, Ddp, Error, replicas, train};
use harness::report::{Report, trace};
use harness::{cli, interrupt};
use model_state::weights_hash::WeightsHash;
use plan::{Prepared, Run};
use report::Finished;
use scratch_data_parallel::breakage::Breakage;

fn main() -> ExitCode {
    cli::prepare();
    cli::conclude(run())
}

/// Prepares and makes all runs, and reports them. Only the process of rank 0 reports.
fn run() -> anyhow::Result<()> {
    let timeout = |flags: &Arguments| flags.launch.timeout();
    let (launch, mut prepared) = Launch::begin(timeout, Prepared::new)?;
    interrupt::watch()?;
    launch.say(prepared.headline())?;
    for note in &prepared.notes {
        launch.say(format_args!("note: {note}"))?;
    }
    let mut outputs = std::mem::take(&mut prepared.setup.outputs);
    let (mut finished, mut failed) = (Vec::new(), Ok(()));
    let runs = prepared.runs(&launch)?;
    let planned = runs.len();
    for run in runs {
        if !launch.announce(prepared.title(&run))? {
            break;
        }
        let report = if launch.speaks() { outputs.report(run.name) } else { Report::silent() };
        let trained = train_run(&run, &prepared, &launch, report);
        match trained.and_then(|it| Finished::new(run, it, &launch, &prepared, &mut outputs)) {
            Ok(run) => finished.push(run),
            Err(error) => {
                failed = Err(error);
                break;
            }
        }
    }
    // After a failure, the earlier runs are reported. The failure stays the error of the program.
    if !launch.speaks() {
        return failed;
    }
    let mut compared = Ok(());
    if prepared.flags.compare.is_some() {
        compared = comparison::report(&finished, prepared.flags.test_norm, &mut outputs);
    }
    let reported = report::report(&finished, planned, &prepared, &mut outputs);
    failed.and(compared).and(reported)
}

/// Makes a run. Returns the result of rank 0, and a hash of the weights of every rank. Without ranks, there are no hashes.
fn train_run(
    run: &Run,
    prepared: &Prepared,
    launch: &Launch,
    mut report: Report<'_>,
) -> anyhow::Result<(Trained, Vec<WeightsHash>)> {
    let Prepared { flags, setup, reduction, width, .. } = prepared;
    let (data, extras, timeout) = (&setup.data, &flags.extras, flags.launch.timeout());
    let network = flags.network(*width, run.options.seed)?;
    let checkpoints = prepared.checkpoints(run);
    let checkpoints = checkpoints.as_ref();
    let sync = run.norm == Norm::Sync;
    let recording = (flags.record.is_some() && run.main).then_some(&prepared.recording);
    match run.wrapper {
        WrapperKind::Single => {
            let device = run.devices.slots()[0].open()?;
            let trained = device.run(|| {
                let _rank = trace::rank(run.name, 0, &device);
                let model = network.replica(device.tensors())?;
                let observe = record(&model, recording);
                train(&model, data, &run.options, extras, checkpoints, &mut report, observe)
            });
            Ok((trained?, Vec::new()))
        }
        WrapperKind::DataParallel => {
            // ANCHOR: data_parallel
            let model = DataParallel::new(network, &run.devices, timeout)?;
            // ANCHOR_END: data_parallel
            let model = if sync { model.synchronise_norms()? } else { model };
            let observe = record(&model, recording);
            let trained =
                train(&model, data, &run.options, extras, checkpoints, &mut report, observe);
            Ok((trained?, Vec::new()))
        }
        WrapperKind::Ddp => {
            let breakage = flags.breakage.filter(|_| run.main);
            let slow = flags.reduction.slow_link().filter(|_| run.main);
            let slow = slow.map(|slowness| SlowNetwork::new(slowness, timeout));
            let reports = report.of_ranks(run.devices.len());
            let of_ranks = launch.run(&run.devices, reports, |device, rank, mut report| {
                let _rank = trace::rank(run.name, rank.rank(), device);
                let rank = match &slow {
                    Some(slow) => slow.slow_down(rank),
                    None => rank,
                };
                alike::compare(&rank, &prepared.to_compare(run))?;
                let network = network.replica(device.tensors())?;
                // ANCHOR: ddp
                let model = Ddp::new(network, rank.clone(), *reduction)?;
                // ANCHOR_END: ddp
                let model = if sync { model.synchronise_norms()? } else { model };
                let model = model.broken(breakage);
                let options = breakage.map_or(run.options, |bug| {
                    bug.options(run.options, rank.rank(), run.world_size)
                });
                let mut record = record(&model, recording);
                let observe = |progress: Progress<'_>| {
                    broken::after_step(&model, progress)?;
                    record(progress)
                };
                let mut trained =
                    train(&model, data, &options, extras, checkpoints, &mut report, observe);
                if let (Err(Error::Train(error)), Some(bug)) = (&mut trained, breakage) {
                    bug.explain(error);
                }
                let trained = trained?;
                let hashes = match breakage {
                    // This rank has left the loop, and the other ranks are still in it.
                    Some(Breakage::LeaveEarly) => Vec::new(),
                    _ => replicas::hashes(&*rank, &trained.weights)?,
                };
                Ok::<_, Error>((trained, hashes))
            });
            // Rank 0's, in the process of rank 0.
            Ok(of_ranks?.swap_remove(0))
        }
    }
}
