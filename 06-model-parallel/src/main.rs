//! Trains one model split in several ways, and shows the cost of each way.

mod arguments;
mod draw;
mod outcome;
mod plan;
mod report;
mod train;

use std::process::ExitCode;

use arguments::Arguments;
use concise_wrapper::launch::Launch;
use harness::{cli, interrupt};
use plan::Prepared;
use train::train_rank;

fn main() -> ExitCode {
    cli::prepare();
    cli::conclude(run())
}

/// Trains in all ways in turn. Several processes train together, and the process of rank 0 reports the results.
fn run() -> anyhow::Result<()> {
    let timeout = |flags: &Arguments| flags.common.launch.timeout();
    let (launch, prepared) = Launch::begin(timeout, Prepared::new)?;
    let Some(mut prepared) = prepared else { return Ok(()) };
    interrupt::watch()?;
    prepared.cut_by_cost(&launch)?;
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
            outcome::of_way(way, trained, before, (&launch, &prepared), outputs)
        },
    );
    // After a failure, the earlier ways are reported. The failure stays the error of the program.
    made.and(if launch.speaks() {
        report::report(&outcomes, &prepared, &headline, &outputs)
    } else {
        Ok(())
    })
}
