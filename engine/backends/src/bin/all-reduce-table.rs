//! Chapter 2's table of bandwidths, over MPI and NCCL.
//!
//! ```text
//! $ mpirun -n 2 all-reduce-table          # processes: the chapter's algorithms over MPI, and MPI's own
//! $ all-reduce-table --devices 2          # threads: with a GPU each, also NCCL's own all-reduce
//! ```

use std::process::ExitCode;

use backends::check;
use clap::Parser;
use devices::{DevicePlan, SeveralDevices};
use harness::cli::{self, UsageError, whole};
use harness::launcher;
use harness::load::Load;
use harness::report::{line, paragraph};
use params_and_allreduce::Algorithm;
use params_and_allreduce::bandwidth::{Table, caption};
use params_and_allreduce::communicator::{Error, SharedCommunicator};
use params_and_allreduce::thread::{DEFAULT_TIMEOUT, run_ranks};

/// Measure the all-reduce of MPI and NCCL, and chapter 2's algorithms.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    #[command(flatten)]
    devices: SeveralDevices,

    /// How often each number is measured [default: 15 to 500 times, small tensors more often]
    #[arg(long, value_name = "N", value_parser = whole::<u32>(1..=10_000))]
    runs: Option<u32>,
}

fn main() -> ExitCode {
    cli::conclude(cli::arguments().and_then(run))
}

fn run(arguments: Arguments) -> anyhow::Result<()> {
    launcher::check(cfg!(feature = "mpi")).map_err(UsageError::new)?;
    let runs = arguments.runs;
    let print = |table: &Table| {
        paragraph(caption(runs))?;
        line(format_args!("\n{table}"))
    };
    #[cfg(feature = "mpi")]
    if launcher::started().is_some_and(|started| started.processes > 1) {
        let world = backends::mpi::World::connect(DEFAULT_TIMEOUT)?;
        let plan = arguments.devices.each.or_threads(Some(world.cores)).plan(world.local_size)?;
        let all = SharedCommunicator::from(&world.rank);
        let title = format!("{} processes of MPI, here {plan}", all.world_size());
        let table = world.run(&plan, |rank| measure(rank.into(), title, &plan, runs));
        return if all.rank() == 0 { Ok(print(&table)?) } else { Ok(()) };
    }
    let plan = arguments.devices.plan()?;
    let load = Load::now();
    let tables = run_ranks(&plan, DEFAULT_TIMEOUT, |rank| {
        measure(rank.into(), plan.to_string(), &plan, runs)
    })?;
    print(&tables[0])?;
    match plan.busy_since(&load) {
        Some(note) => Ok(paragraph(format_args!("  note: {note}"))?),
        None => Ok(()),
    }
}

/// Measures on one rank. If each rank has its own GPU, the native all-reduce is NCCL's, otherwise MPI's.
fn measure(
    rank: SharedCommunicator,
    title: String,
    plan: &DevicePlan,
    runs: Option<u32>,
) -> Result<Table, Error> {
    let native = check(Algorithm::Native, plan).is_ok().then_some(Algorithm::Native);
    let algorithms: Vec<Algorithm> = Algorithm::OURS.into_iter().chain(native).collect();
    let rank = if plan.has_a_gpu_each() { backends::native(rank, DEFAULT_TIMEOUT) } else { rank };
    let table = Table::measure_rank(&*rank, title, &algorithms, runs)?;
    rank.barrier()?;
    Ok(table)
}
