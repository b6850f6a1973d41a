//! Micro-batches of [`tracer`]'s samples, the right updates from them, and the names of wrong ones.

use std::iter;
use std::ops::Range;

use candle_core::{ModuleT, Result};
use concise_wrapper::ddp::{Ddp, Reduction};
use concise_wrapper::optimizer::{Momentum, Sgd};
use concise_wrapper::{Model as _, Network};
use datasets::Batch;
use ops::cross_entropy;
use params_and_allreduce::communicator::Communicator as _;
use params_and_allreduce::thread::Rank;
use split_batch::{shard_range, split_batch};

use crate::replicas::Weights;
use crate::tracer;

/// Micro-batches of these sizes: the first has samples 0, 1, 2 …, the next those behind them.
/// Fails when an image has fewer pixels than there are samples.
pub fn batches(sizes: &[usize]) -> Result<Vec<Batch>> {
    ranges(0, sizes).map(tracer::batch).collect()
}

/// The weights of a network after `Ddp::accumulate` and `Ddp::gradients` of the micro-batches, and the messages of an update.
/// All ranks call this together.
pub fn by_ddp<M: ModuleT>(
    rank: &Rank,
    network: Network<M>,
    micro_batches: &[Batch],
    per_update: usize,
    rate: f64,
) -> std::result::Result<(Weights, u64), concise_wrapper::Error> {
    let (ddp, mut sgd) =
        (Ddp::new(network, rank, Reduction::default())?, Sgd::new(Momentum::default()));
    let mut messages = 0;
    for group in micro_batches.chunks(per_update) {
        let before = rank.traffic().messages;
        let loss = |batch: &Batch| {
            let shards = split_batch(&batch.images, &batch.labels, rank.world_size())?;
            let (images, labels) = &shards[rank.rank()];
            ddp.loss(images, |logits| cross_entropy(logits, labels))
        };
        let (last, others) = group.split_last().expect("a chunk has an element");
        others.iter().try_for_each(|batch| ddp.accumulate(&loss(batch)?))?;
        let gradients = ddp.gradients(&loss(last)?)?;
        sgd.step(ddp.weights(), &gradients, rate, group.iter().map(Batch::len).sum())?;
        messages = rank.traffic().messages - before;
    }
    Ok((ddp.weights().snapshot()?, messages))
}

fn ranges(mut start: usize, sizes: &[usize]) -> impl Iterator<Item = Range<usize>> {
    sizes.iter().map(move |size| {
        let range = start..start + size;
        start = range.end;
        range
    })
}

/// An update that all ranks make together.
#[derive(Clone, Debug)]
pub struct Update {
    /// The samples of the update.
    pub samples: Range<usize>,
    /// The sizes of its micro-batches.
    pub sizes: Vec<usize>,
    /// Micro-batches in every update but perhaps the last.
    pub per_update: usize,
    /// The number of ranks.
    pub ranks: usize,
    /// The learning rate.
    pub rate: f64,
}

/// The updates from micro-batches of these sizes.
pub fn updates(sizes: &[usize], per_update: usize, ranks: usize, rate: f64) -> Vec<Update> {
    let groups: Vec<Vec<usize>> = sizes.chunks(per_update).map(<[usize]>::to_vec).collect();
    let samples: Vec<usize> = groups.iter().map(|group| group.iter().sum()).collect();
    let update = |(sizes, samples)| Update { samples, sizes, per_update, ranks, rate };
    groups.into_iter().zip(ranges(0, &samples)).map(update).collect()
}

impl Update {
    /// The factor of each sample's gradient in the update.
    pub fn count(&self) -> f64 {
        self.rate / self.samples.len() as f64
    }

    fn micro_batches(&self) -> impl Iterator<Item = Range<usize>> {
        ranges(self.samples.start, &self.sizes)
    }

    /// The samples on rank 0.
    fn on_rank_0(&self) -> Vec<usize> {
        let own = |batch: Range<usize>| {
            let shard = shard_range(batch.len(), self.ranks, 0);
            batch.start + shard.start..batch.start + shard.end
        };
        self.micro_batches().flat_map(own).collect()
    }

    /// The samples of equal shards, without the remainders of the micro-batches.
    fn without_remainders(&self) -> Vec<usize> {
        let whole =
            |batch: Range<usize>| batch.start..batch.start + batch.len() / self.ranks * self.ranks;
        self.micro_batches().flat_map(whole).collect()
    }

    /// A guess at the reason why these wrong samples take part; may be empty.
    pub fn wrong_samples(&self, found: &[usize]) -> &'static str {
        let last = self.micro_batches().last().unwrap_or_default();
        if found == self.without_remainders() && self.micro_batches().any(|it| !it.is_empty()) {
            match found {
                [] => ": no update, or shards without the remainder of a micro-batch",
                _ => ": the remainders of the micro-batches are missing",
            }
        } else if found.is_empty() {
            ": there was no update"
        } else if found.iter().any(|sample| *sample < self.samples.start) {
            ": samples of an earlier update count once more"
        } else if found == self.on_rank_0() {
            ": only those of rank 0"
        } else if found.iter().copied().eq(last) {
            ": only the last micro-batch; were the gradients before it overwritten?"
        } else {
            ""
        }
    }

    /// A guess at the mistake, from the factors of all samples and a sample whose factor is wrong; may be empty.
    pub fn wrong_counts(&self, counted: &[f64], wrong: usize) -> String {
        let Self { ranks, per_update, .. } = *self;
        let is = |sample: usize, divisor: usize| {
            (counted[sample] * divisor as f64 / self.rate - 1.0).abs() < 1e-9
        };
        let all = |divisor: usize| self.samples.clone().all(|sample| is(sample, divisor));
        let (all_samples, on_rank_0) = (self.samples.len(), self.on_rank_0().len());
        let batches = self.sizes.len();
        let (first, last) = (self.sizes[0], self.sizes[batches - 1]);
        // Each sample, and the size of its micro-batch.
        let own: Vec<(usize, usize)> = self
            .micro_batches()
            .flat_map(|batch| iter::zip(batch.clone(), iter::repeat(batch.len())))
            .collect();
        let own_size = own.iter().find(|(sample, _)| *sample == wrong).map_or(0, |(_, size)| *size);
        let too_often = counted[wrong] / self.count();
        let reduced = (2..=batches).find(|&times| {
            ranks > 1 && (too_often - ranks.pow(times as u32 - 1) as f64).abs() < 1e-9
        });
        let guesses = [
            (all(1), "not divided at all".to_owned()),
            (all(last), format!("divided by {last}, the samples of the last micro-batch")),
            (all(batches), format!("divided by {batches}, the number of micro-batches")),
            (all(on_rank_0), format!("divided by {on_rank_0}, the samples of rank 0 alone")),
            (all(all_samples * ranks), format!("also divided by the {ranks} ranks")),
            (all(all_samples * all_samples), format!("divided twice by the {all_samples} samples")),
            (all(all_samples * batches), format!("also divided by the {batches} micro-batches")),
            (
                all(first * per_update),
                format!("divided by {first} · {per_update}, as if all were like the first"),
            ),
            (
                own.iter().all(|&(sample, size)| is(sample, size * batches)),
                "the mean of the micro-batches' means".to_owned(),
            ),
            (
                own.iter().all(|&(sample, size)| is(sample, size)),
                format!("divided by {own_size}, as in an update with its micro-batch alone"),
            ),
            (
                reduced.is_some(),
                format!("added up over the ranks {} times", reduced.unwrap_or_default()),
            ),
        ];
        let guess = guesses.into_iter().find(|(fits, _)| *fits);
        guess.map(|(_, what)| format!(": {what}")).unwrap_or_default()
    }
}
