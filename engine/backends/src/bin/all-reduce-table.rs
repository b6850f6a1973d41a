//! Chapter 2's table of bandwidths, over MPI and NCCL.
//!
//! ```text
//! $ mpirun -n 2 all-reduce-table          # processes: the chapter's algorithms over MPI, and MPI's own
//! $ all-reduce-table --devices 2          # threads: with a GPU each, also NCCL's own all-reduce
//! ```

use std::process::ExitCode;

use backends::check;
use backends::launch::{Launch, LaunchArguments};
use clap::Parser;
use harness::cli::{self, whole};
use harness::load::Load;
use harness::report::{line, paragraph};
use params_and_allreduce::Algorithm;
use params_and_allreduce::bandwidth::{Table, caption};
use params_and_allreduce::communicator::Error;

/// Measure the all-reduce of MPI and NCCL, and chapter 2's algorithms.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    #[command(flatten)]
    launch: LaunchArguments,

    /// How often each number is measured [default: 15 to 500 times, small tensors more often]
    #[arg(long, value_name = "N", value_parser = whole::<u32>(1..=10_000))]
    runs: Option<u32>,
}

fn main() -> ExitCode {
    cli::conclude(run())
}

fn run() -> anyhow::Result<()> {
    let timeout = |flags: &Arguments| flags.launch.timeout();
    let (launch, (flags, plan)) = Launch::begin(timeout, |flags: Arguments, launch| {
        let plan = launch.plan(&flags.launch.each, flags.launch.devices)?.0;
        Ok((flags, plan))
    })?;
    let title = match launch.processes() {
        Some(it) => {
            let by = if launch.has_messages() { "MPI" } else { "NCCL" };
            format!("{} processes of {by}, here {plan}", it.comm.world_size())
        }
        None => plan.to_string(),
    };
    // If each rank has its own GPU, the native all-reduce is NCCL's, otherwise MPI's.
    let ours = if launch.has_messages() { &Algorithm::OURS[..] } else { &[] };
    let native_too = check(Algorithm::Native, &plan).is_ok().then_some(&Algorithm::Native);
    let rows: Vec<_> = ours.iter().chain(native_too).copied().collect();
    let load = Load::now();
    let tables = launch.run(&plan, vec![(); plan.len()], |_, comm, ()| {
        let table = Table::measure_rank(&*comm, title.clone(), &rows, flags.runs)?;
        comm.leave()?;
        Ok::<_, Error>(table)
    })?;
    if !launch.speaks() {
        return Ok(());
    }
    paragraph(caption(flags.runs))?;
    line(format_args!("\n{}", tables[0]))?;
    match plan.busy_since(&load).filter(|_| launch.processes().is_none()) {
        Some(note) => Ok(paragraph(format_args!("  note: {note}"))?),
        None => Ok(()),
    }
}
