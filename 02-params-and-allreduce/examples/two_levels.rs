//! All-reduce on two hosts with two devices each, over a slow link between the hosts:
//! `cargo run --release -p params-and-allreduce --example two_levels`.

use candle_core::{DType, Tensor};
use devices::DevicePlan;
use harness::report::{Table, columns, line};
use params_and_allreduce::Algorithm;
use params_and_allreduce::all_reduce::two_levels;
use params_and_allreduce::bandwidth::{Sum, by, seconds};
use params_and_allreduce::communicator::SharedCommunicator;
use params_and_allreduce::host_link::HostLink;
use params_and_allreduce::thread::{DEFAULT_TIMEOUT, run_ranks};

/// A megabyte of f32.
const NUMBERS: usize = 250_000;
const RUNS: u32 = 15;

// ANCHOR: main
/// This chapter's algorithms, and two levels.
fn all_reduces(comm: &SharedCommunicator) -> Vec<Sum<'_>> {
    let mut sums = Vec::from(Algorithm::OURS.map(|it| by(&**comm, it)));
    sums.push(Box::new(|tensor| two_levels(comm, 2, tensor, Algorithm::Ring)));
    sums
}

fn main() -> anyhow::Result<()> {
    line("two hosts with two devices each; a host sends 100 MB/s to the other host\n")?;
    let (plan, new_link) = (DevicePlan::slices(4)?, || HostLink::new(2, 2, 100e6));
    let link = new_link();
    let times = run_ranks(&plan, DEFAULT_TIMEOUT, |rank| {
        let comm = link.connect(rank.into());
        seconds(&*comm, &all_reduces(&comm), 4 * NUMBERS, Some(RUNS))
    })?;
    let mut table = Table::new("all-reduce of 1 MB").column("MB from a host", 0).column("time", 0);
    let names = Algorithm::OURS.map(|it| it.to_string()).into_iter().chain(["two levels".into()]);
    for (row, (name, time)) in names.zip(&times[0]).enumerate() {
        let link = new_link();
        run_ranks(&plan, DEFAULT_TIMEOUT, |rank| {
            let comm = link.connect(rank.into());
            let tensor = Tensor::ones(NUMBERS, DType::F32, comm.device())?;
            all_reduces(&comm)[row](&tensor).map(drop)
        })?;
        let (sent, time) = (link.sent()[0] as f64 / 1e6, time.unwrap_or(f64::NAN) * 1e3);
        table.row([name, format!("{sent:.2}"), format!("{time:.1} ms")]);
    }
    Ok(line(table.text(columns()))?)
}
// ANCHOR_END: main
