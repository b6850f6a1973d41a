//! The learner's one all-reduce for all gradients: its messages, and chapter 4's training.

use super::data_parallel::{Sums, show_training};
use super::prelude::*;
pub use crate::checks::ch04_fused_allreduce::Answer;

/// Sums of all gradients that are timed.
const RUNS: usize = 200;

/// Shows what one all-reduce is worth beside one for each gradient. Fails with the answer.
pub fn run(fused: Answer) -> Run {
    let algorithm = Algorithm::default();
    let yours: Sums<'_> = &|rank, tensors| fused(rank, tensors, algorithm);
    let each: Sums<'_> =
        &|rank, tensors| tensors.iter().map(|tensor| rank.all_reduce(tensor, algorithm)).collect();
    // For each way, the messages of a rank and the seconds of each sum.
    let found = run_ranks(&DevicePlan::slices(2)?, TIMEOUT, |rank| {
        let tensors = Lenet::new(1, DType::F32, &Device::Cpu)?.parameters().snapshot()?;
        let tensors: Vec<Tensor> = tensors.into_iter().map(|(_, tensor)| tensor).collect();
        let mut found = [each, yours].map(|way| (way, 0, Vec::new()));
        for _ in 0..RUNS {
            for (way, messages, seconds) in &mut found {
                // All ranks begin together.
                rank.barrier()?;
                let (before, begin) = (rank.traffic().messages, Instant::now());
                way(&Peer::new(rank), &tensors)?;
                seconds.push(begin.elapsed().as_secs_f64());
                *messages = rank.traffic().messages - before;
            }
        }
        Ok::<_, CommError>(found.map(|(_, messages, seconds)| (messages, median(seconds))))
    })?;
    let names = ["one all-reduce for each", "your all-reduce"];
    let rows = names.into_iter().zip(&found[0]).map(|(name, (messages, seconds))| {
        vec![name.to_owned(), messages.to_string(), format!("{:.0}", seconds * 1e6)]
    });
    table("LeNet's gradients, 2 devices", &["messages", "µs"], rows)?;
    let [(each, _), (sent, _)] = found[0];
    paragraph(format_args!("Your sums take {sent} messages of a rank, in place of {each}.\n"))?;
    show_training(yours, algorithm)
}
