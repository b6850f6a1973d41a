//! LeNet trained on two devices by the learner's accumulation, beside stage 5's and beside one large batch.

use concise_wrapper::lenet::LeNet;

use super::prelude::*;
pub use crate::checks::ch05_accumulate::Answer;
use crate::classifier::{Classifier, worked};
use crate::micro_batches::by_ddp;

const UPDATES: usize = 8;
const PER_UPDATE: usize = 4;
/// The samples of a large batch.
const LARGE: usize = 448;
/// The samples of its micro-batches. The last one is shorter.
const MICRO: usize = 128;
const RATE: f64 = 0.2;

/// Shows memory, messages and weights. Fails with the answer.
pub fn run(answer: Answer) -> Run {
    let (micro, large) = (batches(MICRO)?, batches(LARGE)?);
    // The weights, the images that a rank computes at once, and the messages of an update.
    let by_answer = |rank: &Rank| {
        let model = Classifier::lenet(1, rank.device(), 1.0)?;
        let (first, others) = micro.split_at(PER_UPDATE);
        worked();
        answer(&Peer::new(rank), &model, first, PER_UPDATE, RATE)?;
        let messages = rank.traffic().messages;
        answer(&Peer::new(rank), &model, others, PER_UPDATE, RATE)?;
        let at_once = worked().into_iter().max().unwrap_or_default();
        Ok((model.parameters().snapshot()?, at_once, messages))
    };
    let ours = |rank: &Rank, batches: &[Batch], per_update| {
        let lenet = Network::new(1, DType::F32, rank.device(), |vb, _| LeNet::new(vb))?;
        let (weights, messages) = by_ddp(rank, lenet, batches, per_update, RATE)?;
        let largest = batches.iter().map(Batch::len).max().unwrap_or_default();
        Ok((weights, largest.div_ceil(2), messages))
    };
    type Work<'a> = &'a (dyn Fn(&Rank) -> Result<(Snapshot, usize, u64), ModelError> + Sync);
    let ways: [(&str, Work<'_>); 3] = [
        ("yours", &by_answer),
        ("ours, DDP", &|rank| ours(rank, &micro, PER_UPDATE)),
        ("one large batch", &|rank| ours(rank, &large, 1)),
    ];
    let (mut rows, mut all) = (Vec::new(), Vec::new());
    for (name, work) in ways {
        let (weights, at_once, messages) =
            run_ranks(&DevicePlan::slices(2)?, TIMEOUT, work)?.swap_remove(0);
        let hash = WeightsHash::new(&weights)?.to_string();
        rows.push(vec![name.to_owned(), at_once.to_string(), messages.to_string(), peak(), hash]);
        all.push(weights);
    }
    let columns = ["images at once", "messages an update", "peak memory", "weights"];
    table("LeNet on 2 devices", &columns, rows)?;
    let difference = difference(&all[0], &all[2], "the large batch's", ROUNDING);
    Ok(paragraph(format_args!("\nAfter {UPDATES} updates, {difference}"))?)
}

/// The images of all updates. A micro-batch does not reach into the next large batch.
fn batches(size: usize) -> candle_core::Result<Vec<Batch>> {
    let data = synthetic::dataset(Split::Train, UPDATES * LARGE);
    let all: Vec<u32> = (0..data.len() as u32).collect();
    let parts = all.chunks(LARGE).flat_map(|large| large.chunks(size));
    parts.map(|part| data.batch(part, DType::F32)).collect()
}

/// The most memory that this process has used so far, where the system says so.
fn peak() -> String {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes = peak.and_then(|peak| peak.split_whitespace().next()?.parse::<u64>().ok());
    kilobytes.map_or("–".to_owned(), |kilobytes| format!("{} MB", kilobytes / 1024))
}
