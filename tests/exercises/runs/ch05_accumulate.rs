//! LeNet trained on two devices by the learner's accumulation, beside stage 5's and beside one large batch.

use std::error::Error;
use std::fs;

use candle_core::DType;
use concise_wrapper::{Error as ModelError, Network, lenet::LeNet};
use datasets::{Batch, Split, synthetic};
use devices::DevicePlan;
use harness::report::{Table, columns, line, paragraph};
use model_state::weights_hash::WeightsHash;
use ops::difference::largest_difference;
use params_and_allreduce::communicator::{self, Communicator as _};
use params_and_allreduce::thread::{Rank, run_ranks};

use super::Peer;
use super::ddp::{TIMEOUT, distance};
use crate::classifier::{Classifier, worked};
use crate::micro_batches::by_ddp;
use crate::replicas::Weights;

/// A rank, its model, the micro-batches, their number for each update, and the rate.
pub type Answer = fn(&Peer, &Classifier, &[Batch], usize, f64) -> Result<(), communicator::Error>;

const UPDATES: usize = 8;
const PER_UPDATE: usize = 4;
/// The samples of a large batch.
const LARGE: u32 = 448;
/// The samples of its micro-batches. The last one is shorter.
const MICRO: u32 = 128;
const RATE: f64 = 0.2;

/// Weights whose difference after all updates is at most this are equal up to rounding in f32.
const ROUNDING: f64 = 1e-4;

/// The result of rank 0: the weights, the images that it computes at once, the messages of an update.
type Trained = (Weights, usize, u64);

/// Shows memory, messages and weights. Fails when the answer does.
pub fn run(answer: Answer) -> Result<(), Box<dyn Error>> {
    let micro = batches(MICRO)?;
    let large = batches(LARGE)?;
    let yours = on_ranks(|rank| {
        let model = Classifier::lenet(1, rank.device(), 1.0)?;
        let (first, others) = micro.split_at(PER_UPDATE);
        worked();
        answer(&Peer(rank.into()), &model, first, PER_UPDATE, RATE)?;
        let messages = rank.traffic().messages;
        answer(&Peer(rank.into()), &model, others, PER_UPDATE, RATE)?;
        let at_once = worked().into_iter().max().unwrap_or_default();
        Ok((model.parameters().snapshot()?, at_once, messages))
    })?;
    let yours = (yours, peak());
    let ours = |batches: &[Batch], per_update| {
        let trained = on_ranks(|rank| {
            let lenet = Network::new(1, DType::F32, rank.device(), |vb, _| LeNet::new(vb))?;
            let (weights, messages) = by_ddp(rank, lenet, batches, per_update, RATE)?;
            let largest = batches.iter().map(Batch::len).max().unwrap_or_default();
            Ok((weights, largest.div_ceil(2), messages))
        });
        Ok::<_, Box<dyn Error>>((trained?, peak()))
    };
    let (ours, large) = (ours(&micro, PER_UPDATE)?, ours(&large, 1)?);
    let mut table = Table::new("LeNet on 2 devices").column("images at once", 0);
    for name in ["messages an update", "peak memory", "weights"] {
        table = table.column(name, 0);
    }
    let named = [("yours", &yours), ("ours, DDP", &ours), ("one large batch", &large)];
    for (name, ((weights, at_once, messages), peak)) in named {
        let hash = WeightsHash::new(weights)?.to_string();
        table.row([name.to_owned(), at_once.to_string(), messages.to_string(), peak.clone(), hash]);
    }
    line(table.text(columns()))?;
    let apart = largest_difference(&yours.0.0, &large.0.0)?;
    let equal = distance(apart, ROUNDING, "the weights of the large batch");
    Ok(paragraph(format_args!("\nAfter {UPDATES} updates, {equal}"))?)
}

/// The images of all updates. A micro-batch does not reach into the next large batch.
fn batches(size: u32) -> candle_core::Result<Vec<Batch>> {
    let data = synthetic::dataset(Split::Train, UPDATES * LARGE as usize);
    let all: Vec<u32> = (0..data.len() as u32).collect();
    let parts = all.chunks(LARGE as usize).flat_map(|large| large.chunks(size as usize));
    parts.map(|part| data.batch(part, DType::F32)).collect()
}

fn on_ranks(
    work: impl Fn(&Rank) -> Result<Trained, ModelError> + Sync,
) -> Result<Trained, Box<dyn Error>> {
    Ok(run_ranks(&DevicePlan::slices(2)?, TIMEOUT, work)?.swap_remove(0))
}

/// The most memory that this process has used so far, where the system says so.
fn peak() -> String {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes = peak.and_then(|peak| peak.split_whitespace().next()?.parse::<u64>().ok());
    kilobytes.map_or("–".to_owned(), |kilobytes| format!("{} MB", kilobytes / 1024))
}
