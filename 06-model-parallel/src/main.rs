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
use harness::report::Report;
use model_parallel::Timeline;
use model_parallel::execute::{Executor, Settings};
use model_parallel::mesh::Axis;
use model_parallel::runs::{Trained, write};
use params_and_allreduce::communicator::SharedCommunicator;
use plan::{Prepared, Run};

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
    let outputs = std::mem::take(&mut prepared.training.setup.outputs);
    let Prepared { flags, training, ways } = &prepared;
    // With batch norms, other micro-batches are another function.
    let is_comparable = |one: &Run, run: &Run| {
        one.is_alone() && (one.shards() == run.shards() || !flags.has_norms())
    };
    let made = training.make_runs(
        (&launch, ways, outputs),
        |device, all, run, report| train_rank(&prepared, device, all, run, report),
        (is_comparable, Timeline::bubble),
        (flags.common.gantt.as_deref(), |outcomes| report::conclude(outcomes, &prepared)),
    );
    let list = |way: &Run| way.checked.schedule().to_pytorch();
    let lists = || ways.iter().filter(|way| way.mesh.pipeline > 1).map(list).collect();
    // An error of one file does not prevent the next file.
    made.and(write("--export", flags.export.as_deref(), lists).map_err(Into::into))
}

/// Trains a stage, or a part of a stage, and returns the results on rank 0.
fn train_rank(
    Prepared { flags, training, .. }: &Prepared,
    device: &ComputeDevice,
    all: SharedCommunicator,
    run: &Run,
    report: Report<'_>,
) -> Result<Trained, Error> {
    let (checked, mesh) = (&run.checked, run.mesh);
    let group = mesh.along(&all, Axis::Tensor)?;
    let units = checked.schedule().units_of(mesh.coordinate(all.rank(), Axis::Pipeline));
    let units = units.map(|unit| training.build(&run.cut[unit], device, &group));
    let settings = Settings { by_shards: flags.shards.is_some(), ..Settings::of(&training.layers) };
    let units = units.collect::<Result<_, _>>()?;
    let executor = Executor::new(checked, units, all, mesh, training.sample(), settings)?;
    let mut optimizer = flags.optimizer();
    let update = (&mut *optimizer as _, flags.extras.warm_up);
    let parts = || Ok(executor.weights().snapshot()?);
    Trained::with((&executor, &group), training, update, None, (parts, || 0), report)
}
