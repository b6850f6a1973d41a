//! Trains ResNet-18 or LeNet behind a wrapper, on one device and on several.

mod arguments;
mod plan;
mod report;

use std::process::ExitCode;

use arguments::{Arguments, Norm, WrapperKind};
use concise_wrapper::ddp::alike;
use concise_wrapper::launch::Launch;
use concise_wrapper::optimizer::{Extras, Sgd};
use concise_wrapper::recorder::record;
use concise_wrapper::slow_link::SlowNetwork;
use concise_wrapper::train::Trained;
use concise_wrapper::{DataParallel, Ddp, Error, Model, Store, replicas, train};
use harness::cli;
use harness::report::{Report, trace};
use model_state::weights_hash::WeightsHash;
use plan::{Prepared, Run};

fn main() -> ExitCode {
    cli::prepare();
    cli::conclude(run())
}

/// Prepares and makes all runs, and reports them. Only the process of rank 0 reports.
fn run() -> anyhow::Result<()> {
    let timeout = |flags: &Arguments| flags.launch.timeout();
    let (launch, mut prepared) = Launch::begin(timeout, Prepared::new)?;
    let mut outputs = std::mem::take(&mut prepared.setup.outputs);
    let (finished, made) = launch.make_runs(
        (&prepared.headline(), &prepared.notes),
        (&prepared.runs, &mut outputs),
        |run| (run.name, run.title()),
        |run, report| train_run(run, &prepared, &launch, report),
        |run, trained, _, outputs| report::finish(run, trained, &launch, &prepared, outputs),
    );
    // After a failure, the earlier runs are reported. The failure stays the error of the program.
    made.and(if launch.speaks() {
        report::report(&finished, &prepared, &mut outputs)
    } else {
        Ok(())
    })
}

/// Makes a run. Returns the result of rank 0, and a hash of the weights of every rank. Without ranks, there are no hashes.
fn train_run(
    run: &Run,
    prepared: &Prepared,
    launch: &Launch,
    mut report: Report<'_>,
) -> anyhow::Result<(Trained, Vec<WeightsHash>)> {
    let Prepared { flags, reduction, width, .. } = prepared;
    let (timeout, sync) = (flags.launch.timeout(), run.norm == Norm::Sync);
    let network = flags.network(*width, run.options.seed)?;
    match run.wrapper {
        WrapperKind::Single => {
            let device = run.devices.slots()[0].open()?;
            let trained = device.run(|| {
                let _rank = trace::rank(run.name, 0, &device);
                let model = network.replica(device.tensors())?;
                train_model(&model, run, prepared, &mut report)
            });
            Ok((trained?, Vec::new()))
        }
        WrapperKind::DataParallel => {
            // ANCHOR: data_parallel
            let model = DataParallel::new(network, &run.devices, timeout)?;
            // ANCHOR_END: data_parallel
            let model = if sync { model.synchronise_norms()? } else { model };
            Ok((train_model(&model, run, prepared, &mut report)?, Vec::new()))
        }
        WrapperKind::Ddp => {
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
                let trained = train_model(&model, run, prepared, &mut report)?;
                let hashes = replicas::hashes(&*rank, &trained.weights)?;
                Ok::<_, Error>((trained, hashes))
            });
            // Rank 0's, in the process of rank 0.
            Ok(of_ranks?.swap_remove(0))
        }
    }
}

/// Trains a model of any wrapper, and records the steps of the main run.
fn train_model(
    model: &impl Model,
    run: &Run,
    prepared: &Prepared,
    report: &mut Report<'_>,
) -> Result<Trained, Error> {
    let Prepared { flags, setup, recording, .. } = prepared;
    let checkpoints = prepared.checkpoints(run);
    let checkpoints = checkpoints.as_ref().map(|it| it as &dyn Store);
    let observe = record(model, (flags.record.is_some() && run.main).then_some(recording));
    let Extras { constants, warm_up } = flags.extras;
    let (sgd, options) = (&mut Sgd::new(constants), &run.options);
    train(model, &setup.data, options, (sgd, warm_up), checkpoints, report, observe)
}
