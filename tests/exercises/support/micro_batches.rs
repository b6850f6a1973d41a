//! Updates of [`tracer`]'s samples in parts, such as micro-batches, and the names of wrong updates.

use std::ops::Range;

use candle_core::{ModuleT, Result};
use concise_wrapper::ddp::{Ddp, Reduction};
use concise_wrapper::optimizer::{Momentum, Optimizer as _, Sgd};
use concise_wrapper::{Model as _, Network};
use datasets::Batch;
use ops::cross_entropy;
use params_and_allreduce::communicator::{Communicator as _, Error};
use params_and_allreduce::thread::{Rank, Traffic};
use single_gpu::sgd::sgd;
use split_batch::split_batch;

use crate::classifier::{Classifier, worked};
use crate::outcome::{Finding, Outcome, demand, short};
use crate::ranks::{self, Sends};
use crate::replicas::{self, Weights};
use crate::tracer::{self, in_words, multiple, taking_part};

const SAMPLES: &str = "every sample since the last update counts once, and no other sample";
const ALL: &str = "all ranks take part in every all-reduce, even a rank with an empty shard";
const ONCE: &str = "sum over all parts and ranks, each gradient once; then divide once, by all samples of the update";
const ONE_DEVICE: &str = "k ranks equal one device with all samples in one batch";

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

/// The results of an answer on a rank.
#[derive(Clone, Debug)]
pub struct Found<R> {
    /// Its result.
    pub result: R,
    /// The weights.
    pub weights: Weights,
    /// The samples of each call of [`Classifier::gradients`].
    pub worked: Vec<usize>,
    /// The messages.
    pub sent: Traffic,
}

/// Calls an answer on ranks, each with a fresh replica. Some rank may be without samples.
pub fn trained<R: Send + 'static>(
    ranks: usize,
    empty: bool,
    answer: impl Fn(&ranks::Rank, &Classifier) -> std::result::Result<R, Error> + Send + Sync + 'static,
) -> Outcome<Vec<Found<R>>> {
    let found = ranks::run(ranks, Sends::Buffered, move |rank| {
        let model = Classifier::new(1, rank.device())?;
        worked();
        let result = answer(rank, &model)?;
        let (worked, sent) = (worked(), rank.traffic());
        Ok(Found { result, weights: model.parameters().snapshot()?, worked, sent })
    });
    found.map_err(ranks::all_take_part(ALL, empty))
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
    /// The sizes of the parts that the samples come in, one behind the other.
    pub parts: Vec<usize>,
    /// The name of such parts.
    pub are: &'static str,
    /// The number of ranks.
    pub ranks: usize,
    /// The learning rate.
    pub rate: f64,
    /// The factor of one device's rate.
    pub times: usize,
    /// The samples of an update that is not short.
    pub full: usize,
}

/// The updates from micro-batches of these sizes.
pub fn updates(sizes: &[usize], per_update: usize, ranks: usize, rate: f64) -> Vec<Update> {
    let groups: Vec<Vec<usize>> = sizes.chunks(per_update).map(<[usize]>::to_vec).collect();
    let samples: Vec<usize> = groups.iter().map(|group| group.iter().sum()).collect();
    let are = "micro-batches";
    let update = |(parts, samples)| Update::of(samples, parts, are, ranks, rate);
    groups.into_iter().zip(ranges(0, &samples)).map(update).collect()
}

impl Update {
    /// An update of `samples` that come in `parts`.
    pub fn of(
        samples: Range<usize>,
        parts: Vec<usize>,
        are: &'static str,
        ranks: usize,
        rate: f64,
    ) -> Self {
        let full = samples.len();
        Self { samples, parts, are, ranks, rate, times: 1, full }
    }

    /// Demands this update of the ranks: the samples, the weight of each sample, and one result on all ranks, to the last bit.
    /// `alone` has the weights before the update. One device makes the update there.
    pub fn is_made(&self, alone: &Classifier, weights: &[Weights]) -> Outcome {
        let counts = tracer::counted(alone, &weights[0], self.samples.end)?;
        self.samples_count_once(&counts)?;
        replicas::agree("after the update", weights)?;
        let batch = tracer::batch(self.samples.clone())?;
        sgd(alone.parameters(), &alone.gradients(&batch)?.gradients, self.rate, batch.len())?;
        let right = alone.parameters().snapshot()?;
        replicas::equal("another result than on one device", &right, &weights[0], ONE_DEVICE)
    }

    fn samples_count_once(&self, counts: &[f64]) -> Outcome {
        let (right, found): (Vec<usize>, _) = (self.samples.clone().collect(), taking_part(counts));
        let times = |sample: usize| counts[sample] * right.len() as f64 / self.rate;
        demand(found == right, || {
            let often: Vec<usize> = found.iter().copied().filter(|&at| times(at) > 1.5).collect();
            let guess = match (&found[..], &often[..]) {
                ([], _) => ": there was no update".to_owned(),
                _ if found[0] < right[0] && found.ends_with(&right) => {
                    ": samples of an earlier update count once more".to_owned()
                }
                _ if found == self.without_remainders() => {
                    format!(": the remainders of the {} are missing", self.are)
                }
                (_, []) => String::new(),
                _ => format!("; {} more than once: where does a shard begin?", in_words(&often)),
            };
            Finding::new("the wrong samples take part")
                .expected(in_words(&right), format!("{}{guess}", in_words(&found)))
                .law(SAMPLES)
        })?;
        // NaN counts as a difference.
        let is_right = |&sample: &usize| (times(sample) - 1.0).abs() <= 1e-9;
        let wrong = right.iter().find(|&sample| !is_right(sample));
        wrong.map_or(Ok(()), |&sample| {
            let (rate, samples, divisor) = (self.rate, right.len(), self.rate / counts[sample]);
            let told = multiple(times(sample));
            Err(Finding::new(format!("sample {sample}'s part is {told} what it should be"))
                .expected(
                    format!("rate {rate} times its gradient, divided by {samples}"),
                    format!("as if divided by {}{}", short(divisor), self.divided_by(counts)),
                )
                .law(ONCE))
        })
    }

    /// The samples of equal shards, without the remainders of the parts.
    fn without_remainders(&self) -> Vec<usize> {
        let whole =
            |part: Range<usize>| part.start..part.start + part.len() / self.ranks * self.ranks;
        ranges(self.samples.start, &self.parts).flat_map(whole).collect()
    }

    /// The name of a wrong divisor, if every sample was divided by it; may be empty.
    fn divided_by(&self, counts: &[f64]) -> String {
        let Self { ranks, parts, are, times, full, .. } = self;
        let (samples, count) = (self.samples.len(), parts.len());
        let all = |divisor: &dyn Fn(usize) -> usize| {
            let mut own = ranges(self.samples.start, parts).zip(parts);
            own.all(|(mut part, &size)| {
                part.all(|at| (counts[at] * divisor(size) as f64 / self.rate - 1.0).abs() < 1e-9)
            })
        };
        match () {
            () if all(&|_| 1) => ": not divided at all".to_owned(),
            () if *times > 1 && all(&|_| samples * times) => ": the rate of one device".to_owned(),
            () if *full > samples && all(&|_| *full) => {
                ": by a full batch's samples, or with a rate in proportion to the short one"
                    .to_owned()
            }
            () if all(&|_| samples * ranks) => format!(": also by the {ranks} ranks"),
            () if all(&|_| samples * samples) => format!(": twice by the {samples} samples"),
            () if all(&|_| parts[count - 1]) => format!(": by the last of the {are} alone"),
            () if all(&|size| size * count) => format!(": the mean of the {are}' means"),
            () => String::new(),
        }
    }
}
