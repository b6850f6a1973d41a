//! A run on one device or on several, and what several runs say together.

use candle_core::{Device, ModuleT};
use concise_wrapper::ddp::{Reduction, alike, broken};
use concise_wrapper::launch::{ForRank0, Launch, Rank};
use concise_wrapper::lenet::LeNet;
use concise_wrapper::model::Progress;
use concise_wrapper::recording::Recorder;
use concise_wrapper::resnet::ResNet18;
use concise_wrapper::train::Trained;
use concise_wrapper::{DataParallel, Ddp, Error, Model, Network, train};
use harness::cli::name_of;
use harness::report::Report;
use harness::report::line;
use harness::report::outputs::Outputs;
use harness::report::summary::Summary;
use harness::report::trace;
use ops::weights_hash::WeightsHash;
use scratch_data_parallel::breakage::Breakage;
use scratch_data_parallel::replicas::{self, verdict};

use crate::arguments::{ModelKind, Norm, Planned, Prepared, TestNorm, WrapperKind};

/// A finished run.
pub(crate) struct Run {
    pub(crate) summary: Summary,
    /// The weights that each rank ended with, as hashes; none where there is but one.
    replicas: Vec<WeightsHash>,
}

impl Run {
    /// Trains, and reports if this is the process that speaks.
    pub(crate) fn train(
        planned: &Planned,
        prepared: &Prepared,
        launch: &Launch,
        outputs: &mut Outputs,
    ) -> anyhow::Result<Self> {
        let mut report =
            if launch.speaks() { outputs.report(planned.name) } else { Report::silent() };
        let (trained, replicas) = match prepared.model {
            ModelKind::Resnet18 => {
                let width = prepared.width;
                let network = network(prepared, move |vb, norms| ResNet18::new(width, norms, vb))?;
                train_on(planned, prepared, launch, network, &mut report)?
            }
            ModelKind::Lenet => {
                let network = network(prepared, |vb, _| LeNet::new(vb))?;
                train_on(planned, prepared, launch, network, &mut report)?
            }
        };
        drop(report);
        let (setup, records) = (&prepared.setup, &trained.records);
        let hash = WeightsHash::new(&trained.weights)?;
        let mut summary = setup.summary(planned.name, &planned.plan, records, hash);
        if planned.world_size > planned.plan.len() {
            summary.devices.clone_from(&prepared.devices);
        }
        summary.options = planned.options;
        summary.dtype = prepared.precision.to_string();
        let tested = match prepared.test_norm {
            TestNorm::Running => "",
            TestNorm::Batch => ", tested by each batch's own statistics",
        };
        summary.method = Some(method(planned, prepared.model) + tested);
        outputs.run_ended(&summary, records)?;
        Ok(Self { summary, replicas })
    }
}

fn network<M: ModuleT>(
    prepared: &Prepared,
    build: impl Fn(
        &candle_nn::VarBuilder<'_>,
        &concise_wrapper::batch_norm::Norms,
    ) -> candle_core::Result<M>
    + Send
    + Sync
    + 'static,
) -> candle_core::Result<Network<M>> {
    let setup = &prepared.setup;
    let network = Network::new(setup.options.seed, prepared.precision, &Device::Cpu, build)?;
    if prepared.test_norm == TestNorm::Batch {
        network.norms().test_by_batch();
    }
    Ok(network)
}

/// Trains the network as planned; what comes back is the outcome, and with several ranks, on rank 0, the hash
/// of each one's weights.
fn train_on<M: ModuleT + Send + Sync + 'static>(
    planned: &Planned,
    prepared: &Prepared,
    launch: &Launch,
    network: Network<M>,
    report: &mut Report<'_>,
) -> anyhow::Result<(Trained, Vec<WeightsHash>)> {
    let plan = &planned.plan;
    match planned.wrapper {
        WrapperKind::Single => {
            let device = plan.slots()[0].open()?;
            device.run(|| {
                let _rank = trace::rank(planned.name, 0, &device);
                let network = network.replica(device.tensors())?;
                Ok((steps(&network, planned, prepared, report, |_| Ok(()))?, Vec::new()))
            })
        }
        WrapperKind::DataParallel => {
            // ANCHOR: data_parallel
            let model = DataParallel::new(network, plan, prepared.timeout)?;
            // ANCHOR_END: data_parallel
            let model = match planned.norm {
                Norm::Sync => model.synchronise_norms()?,
                Norm::Local => model,
            };
            Ok((steps(&model, planned, prepared, report, |_| Ok(()))?, Vec::new()))
        }
        WrapperKind::Ddp => {
            let report = ForRank0::new(report);
            let trained = launch.run(plan, |rank| {
                let Rank { number, device, lines } = rank;
                let lines = match planned.slowness {
                    Some(slowness) => &lines.clone().slowed(slowness),
                    None => lines,
                };
                let _rank = trace::rank(planned.name, *number, *device);
                let mut silent = Report::silent();
                let report = report.take(*number).unwrap_or(&mut silent);
                alike::compare(&lines.main, &planned.to_compare(prepared))?;
                let network = network.replica(device.tensors())?;
                // ANCHOR: ddp
                let model = Ddp::new(network, lines.clone(), planned.reduction)?;
                // ANCHOR_END: ddp
                let model = match planned.norm {
                    Norm::Sync => model.synchronise_norms()?,
                    Norm::Local => model,
                };
                let model = match planned.breakage {
                    Some(breakage) => model.broken(breakage),
                    None => model,
                };
                let trained = steps(&model, planned, prepared, report, |progress| {
                    broken::after_step(&model, progress)
                })?;
                let hashes = match planned.breakage {
                    // This rank has left the loop, and the other ranks are still in it.
                    Some(Breakage::LeaveEarly) => Vec::new(),
                    _ => replicas::hashes(&*lines.main, &trained.weights)?,
                };
                Ok::<_, Error>((trained, hashes))
            });
            // Rank 0's, where this process has it.
            Ok(trained.map_err(anyhow::Error::from)?.swap_remove(0))
        }
    }
}

/// All steps of a rank, recorded if this is the run to record. `after_step` has the messages of a bug.
fn steps<M: Model>(
    model: &M,
    planned: &Planned,
    prepared: &Prepared,
    report: &mut Report<'_>,
    after_step: impl Fn(Progress<'_>) -> Result<(), Error>,
) -> Result<Trained, Error> {
    let Prepared { setup, extras, .. } = prepared;
    let data = &setup.data;
    let options = &match planned.breakage {
        Some(breakage) => {
            let rank = model.rank().map_or(0, |rank| rank.rank());
            breakage.options(planned.options, rank, planned.world_size)
        }
        None => planned.options,
    };
    let checkpoints = prepared.checkpoints(planned);
    let checkpoints = checkpoints.as_ref();
    let mut recorder = (prepared.records && planned.recorded)
        .then(|| Recorder::new(model, prepared.recording.as_ref()));
    let trained = train(model, data, options, extras, checkpoints, report, |progress| {
        after_step(progress)?;
        recorder.as_mut().map_or(Ok(()), |recorder| recorder.step(progress))
    });
    let trained = trained.and_then(|trained| {
        recorder.map_or(Ok(()), Recorder::end)?;
        Ok(trained)
    });
    trained.map_err(|error| match (&error, planned.breakage) {
        (Error::Train(told), Some(breakage)) => breakage.explains(told).map_or(error, Error::from),
        _ => error,
    })
}

/// How several devices' gradients became one update, in words.
fn method(planned: &Planned, model: ModelKind) -> String {
    let norms = match (model, planned.norm) {
        (ModelKind::Lenet, _) => "",
        (ModelKind::Resnet18, Norm::Local) => ", local batch norm",
        (ModelKind::Resnet18, Norm::Sync) => ", synchronised batch norm",
    };
    match (planned.wrapper, planned.reduction) {
        (WrapperKind::Single, _) => "one device".to_owned(),
        (WrapperKind::DataParallel, _) => format!("data parallel{norms}"),
        (WrapperKind::Ddp, Reduction::Reproducible { shards }) => {
            format!("reproducible: {shards} shards")
        }
        (WrapperKind::Ddp, Reduction::Buckets { algorithm, overlap, .. }) => {
            let when = if overlap { "during" } else { "after" };
            let broken = planned.breakage.map_or_else(String::new, |breakage| {
                format!(", broken on purpose: {}", name_of(&breakage))
            });
            let slow = planned.slowness.map_or_else(String::new, |slowness| {
                format!(", link slowed down to {} MB/s", slowness.megabytes())
            });
            format!("ddp: buckets {when} backward ({algorithm}){norms}{slow}{broken}")
        }
    }
}

/// All runs of a call.
#[derive(Default)]
pub(crate) struct Runs(Vec<Run>);

impl Runs {
    pub(crate) fn push(&mut self, run: Run) {
        self.0.push(run);
    }

    /// Tells what came out of the runs, each and together.
    pub(crate) fn tell(&self, outputs: &mut Outputs) -> anyhow::Result<()> {
        if self.0.is_empty() {
            return Ok(());
        }
        outputs.print_sparklines()?;
        line("")?;
        for run in &self.0 {
            line(&run.summary)?;
        }
        if let [one, .., several] = self.0.as_slice() {
            let ratio = one.summary.seconds_per_epoch / several.summary.seconds_per_epoch;
            line(format_args!("speed-up: {ratio:.2}× over [{}]", one.summary.devices.join(", ")))?;
        }
        for Run { summary, replicas } in &self.0 {
            if replicas.len() > 1 {
                line(format_args!("{}: {}", summary.run, verdict(replicas)))?;
            }
        }
        Ok(())
    }
}
