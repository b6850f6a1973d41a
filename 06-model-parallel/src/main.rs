//! Trains one model split in several ways, and shows the cost of each way.

mod arguments;
mod draw;
mod plan;
mod report;

use std::process::ExitCode;

use arguments::Arguments;
use concise_wrapper::launch::Launch;
use concise_wrapper::{Error, Model as _};
use devices::ComputeDevice;
use harness::cli;
use harness::report::{Report, trace};
use model_parallel::execute::{Executor, Settings};
use model_parallel::mesh::Axis;
use model_parallel::runs::{Trained, Training};
use params_and_allreduce::communicator::SharedCommunicator;
use plan::{Prepared, Way};

fn main() -> ExitCode {
    cli::prepare();
    cli::conclude(run())
}

/// Trains in all ways in turn. Several processes train together, and the process of rank 0 reports the results.
fn run() -> anyhow::Result<()> {
    let timeout = |flags: &Arguments| flags.common.launch.timeout();
    let (launch, prepared) = Launch::begin(timeout, Prepared::new)?;
    let Some(mut prepared) = prepared else { return Ok(()) };
    cli::before_a_run("measuring the layers", || prepared.cut_by_cost(&launch))??;
    let mut outputs = std::mem::take(&mut prepared.training.setup.outputs);
    let headline = prepared.training.headline();
    let (outcomes, made) = launch.make_runs(
        (&headline, &prepared.training.notes),
        (&prepared.ways, &mut outputs),
        |way| (&way.name, way.title()),
        |way, report| {
            let plan = prepared.training.plan(way.mesh.devices());
            let reports = report.of_ranks(plan.len()).into_iter();
            let tasks = reports.map(|report| (way, &prepared, report)).collect();
            Ok(launch.run(plan, tasks, train_rank)?.swap_remove(0))
        },
        |way, trained, before, outputs| {
            report::outcome(way, trained, before, (&launch, &prepared), outputs)
        },
    );
    // After a failure, the earlier ways are reported. The failure stays the error of the program.
    made.and(if launch.speaks() {
        report::report(&outcomes, &prepared, &headline, &outputs)
    } else {
        Ok(())
    })
}

/// Trains a stage, or a part of a stage, and returns the results on rank 0.
fn train_rank(
    device: &ComputeDevice,
    all: SharedCommunicator,
    (way, prepared, report): (&Way, &Prepared, Report<'_>),
) -> Result<Trained, Error> {
    let _rank = trace::rank(&way.name, all.rank(), device);
    let Prepared { flags, training, .. } = prepared;
    let Training { layers, setup, .. } = training;
    training.compare(&all, &way.name, format!("{:?}", way.cut))?;
    let Way { mesh, checked, .. } = way;
    let group = mesh.along(&all, Axis::Tensor)?;
    let build = |part: usize| {
        let range = way.cut[part].clone();
        layers.build_part(range, setup.options.seed, setup.dtype, device.tensors(), &group)
    };
    let units = checked.schedule().units_of(mesh.coordinate(all.rank(), Axis::Pipeline));
    let units = units.map(build).collect::<Result<_, _>>()?;
    let settings = Settings { by_shards: way.by_shards, ..Settings::of(layers) };
    let executor = Executor::new(checked, units, all.clone(), *mesh, training.sample(), settings)?;
    let (mut optimizer, warm_up) = (flags.optimizer(), flags.extras.warm_up);
    let whole = || executor.whole(layers.join(executor.weights().snapshot()?, &group)?);
    Trained::with(&executor, setup, (&mut *optimizer, warm_up), None, (whole, || 0), report)
}
