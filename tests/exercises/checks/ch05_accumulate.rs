//! Chapter 5, `book/src/ch05d-your-model.md`: gradient accumulation without synchronising.
//!
//! The check compares each update with an update of one device on one large batch: the samples, the weight of each sample and
//! the result. Then it compares the share and the messages of each rank.

use crate::micro_batches::{self, Found, trained};
use crate::prelude::*;

/// A rank, its model, the micro-batches, their number for each update, and the rate.
pub type Answer = fn(&Rank, &Classifier, &[Batch], usize, f64) -> Result<(), Error>;

pub const LAWS: &[Law<Answer>] = laws![
    micro_batches_on_ranks_equal_one_batch_on_one_device in cases(),
    errors_are_passed_on => (3, Sends::Buffered)
        |answer, rank| answer(rank, &Classifier::new(1, rank.device())?, &micro_batches::batches(&[4, 3])?, 2, 0.5),
];

const OWN: &str = "each rank computes the gradients of its own shard, and of no other";
const ONE_BY_ONE: &str = "micro-batches are processed one by one: all do not fit into memory";
const QUIET: &str = "ranks add up once for an update, after its last micro-batch";

#[derive(Clone, Copy)]
struct Case {
    ranks: usize,
    sizes: &'static [usize],
    per_update: usize,
    rate: f64,
}

fn cases() -> impl Iterator<Item = Case> {
    [2, 1, 3, 4].into_iter().flat_map(|ranks| {
        let case = |sizes, per_update| Case { ranks, sizes, per_update, rate: 0.5 };
        [
            // A last micro-batch that is smaller; a last group that is shorter.
            case(&[4, 4, 2], 3),
            case(&[5, 5, 3, 5, 1], 2),
            // Micro-batches with fewer samples than ranks; empty ones, first, in between and last.
            case(&[3, 1, 1, 2, 1, 1, 1], 3),
            case(&[0, 3, 0, 2, 3, 0], 3),
            // An update for each; one for all.
            case(&[4, 3], 1),
            Case { rate: 0.2, ..case(&[6, 5, 7], 5) },
        ]
    })
}

shown!(Case { ranks, sizes, per_update, .. } =>
    "{}, micro-batches of {sizes:?} samples, {per_update} for each update", counted(*ranks, "rank"));

impl Case {
    fn found(self, answer: Answer, sizes: &[usize]) -> Outcome<Vec<Found<()>>> {
        let (given, Self { ranks, per_update, rate, .. }) = (sizes.to_vec(), self);
        trained(ranks, sizes.iter().any(|&size| size < ranks), move |rank, model| {
            answer(rank, model, &micro_batches::batches(&given)?, per_update, rate)
        })
    }

    /// A rank may work on parts of a shard, but on no part that is larger than a shard.
    fn each_rank_has_its_shards(self, sizes: &[usize], found: &[Found<()>]) -> Outcome {
        for (rank, Found { worked, .. }) in found.iter().enumerate() {
            let shard = |size: &usize| shard_range(*size, self.ranks, rank).len();
            let shards: Vec<usize> = sizes.iter().map(shard).collect();
            let [all, own] = [worked, &shards].map(|each| each.iter().sum::<usize>());
            let got = format!("{all}: {worked:?}");
            let what = format!("rank {rank} computes the gradients of other samples");
            let shard = format!("{own}: {shards:?}, its shard of each micro-batch");
            expect(own == all, what, (shard, &got), OWN)?;
            let [largest, most] =
                [&shards, worked].map(|each| each.iter().max().copied().unwrap_or_default());
            let what = format!("rank {rank} takes {most} samples at once");
            let shard = format!("at most {largest}: {shards:?}, its shard of each");
            expect(most <= largest, what, (shard, got), ONE_BY_ONE)?;
        }
        Ok(())
    }
}

fn micro_batches_on_ranks_equal_one_batch_on_one_device(answer: Answer, case: &Case) -> Outcome {
    let Case { ranks, sizes, per_update, rate } = *case;
    // The model of one device makes the same updates.
    let alone = Classifier::new(1, &Device::Cpu)?;
    let updates = micro_batches::updates(sizes, per_update, ranks, rate);
    for (number, update) in updates.iter().enumerate() {
        let done = &sizes[..number * per_update + update.parts.len()];
        let found = case.found(answer, done)?;
        let weights: Vec<Weights> = found.iter().map(|found| found.weights.clone()).collect();
        update.is_made(&alone, &weights).map_err(|it| it.at(format!("update {number}")))?;
        case.each_rank_has_its_shards(done, &found)?;
    }
    // The first update sends as much as an update with a single micro-batch.
    let sizes = &updates[0].parts;
    let single = Case { per_update: 1, ..*case }.found(answer, &[updates[0].samples.len()])?;
    let found = case.found(answer, sizes)?;
    single.iter().zip(found).enumerate().try_for_each(|(rank, (single, found))| {
        let count = sizes.len();
        let what =
            format!("rank {rank} does not send the same for {count} micro-batches as for one");
        let [expected, got] = [single.sent, found.sent]
            .map(|sent| format!("{} messages, {} bytes", sent.messages, sent.bytes));
        same(what, expected, got, QUIET)
    })
}
