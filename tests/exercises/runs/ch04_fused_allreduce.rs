//! The learner's one all-reduce for all gradients: its messages, and chapter 4's training.

use std::error::Error;
use std::time::Instant;

use candle_core::{DType, Device, Tensor};
use devices::DevicePlan;
use harness::report::{Table, columns, line, paragraph};
use harness::statistics::median;
use params_and_allreduce::communicator::Communicator as _;
use params_and_allreduce::thread::run_ranks;
use params_and_allreduce::{Algorithm, communicator};
use single_gpu::lenet::Lenet;

use super::Peer;
use super::data_parallel::{Sums, TIMEOUT, show_training};

/// A rank, its tensors and the algorithm; the sums over all ranks.
pub type Answer = fn(&Peer, &[Tensor], Algorithm) -> Result<Vec<Tensor>, communicator::Error>;

/// Sums of all gradients that are timed.
const RUNS: usize = 200;

/// Shows what one all-reduce is worth beside one for each gradient. Fails when the answer does.
pub fn run(fused: Answer) -> Result<(), Box<dyn Error>> {
    let algorithm = Algorithm::default();
    let yours: Sums<'_> = &|rank, tensors| fused(rank, tensors, algorithm);
    let each: Sums<'_> =
        &|rank, tensors| tensors.iter().map(|tensor| rank.all_reduce(tensor, algorithm)).collect();
    let ways = [each, yours];
    // For each way, the messages of a rank and the seconds of each sum.
    let found = run_ranks(&DevicePlan::slices(2)?, TIMEOUT, |rank| {
        let lenet = Lenet::new(1, DType::F32, &Device::Cpu)?;
        let tensors: Vec<Tensor> =
            lenet.parameters().iter().map(|it| it.value.as_detached_tensor()).collect();
        let peer = Peer(rank.into());
        let mut found = ways.map(|_| (0, Vec::new()));
        for _ in 0..RUNS {
            for (way, (messages, seconds)) in ways.iter().zip(&mut found) {
                // All ranks begin together.
                rank.all_reduce(&Tensor::zeros(1, DType::F32, rank.device())?, algorithm)?;
                let (before, begin) = (rank.traffic().messages, Instant::now());
                way(&peer, &tensors)?;
                seconds.push(begin.elapsed().as_secs_f64());
                *messages = rank.traffic().messages - before;
            }
        }
        Ok::<_, communicator::Error>(found)
    })?;
    let mut table = Table::new("LeNet's gradients, 2 devices").column("messages", 0);
    table = table.column("µs", 0);
    for ((messages, seconds), name) in
        found[0].iter().zip(["one all-reduce for each", "your all-reduce"])
    {
        let us = format!("{:.0}", median(seconds.iter().copied()) * 1e6);
        table.row([name.to_owned(), messages.to_string(), us]);
    }
    line(table.text(columns()))?;
    let [(each, _), (yours_sent, _)] = &found[0];
    paragraph(format_args!(
        "Your sums take {yours_sent} messages of a rank, in place of {each}.\n"
    ))?;
    show_training(yours, algorithm)
}
