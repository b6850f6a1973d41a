//! Chapter 5, `book/src/ch05d-your-model.md`: gradient accumulation without synchronising.
//!
//! Each update is compared with one device and one large batch: the samples, the weight of each sample, the result, the share
//! of each rank, the messages. Then the weights are compared with those of stage 5's DDP.

use crate::dense::Dense;
use crate::micro_batches::{self, Update};
use crate::panicking;
use crate::prelude::*;
use crate::tracer::counted;
use concise_wrapper::Model as _;
use concise_wrapper::ddp::{Ddp, Reduction};
use concise_wrapper::optimizer::{Momentum, Sgd};
use datasets::Batch;
use devices::{DeviceKind, DevicePlan};
use ops::cross_entropy;
use params_and_allreduce::thread::{DEFAULT_TIMEOUT, run_ranks};
use split_batch::{shard_range, split_batch};

/// A rank, its model, the micro-batches, their number for each update, and the rate.
pub type Answer = fn(&Rank, &Classifier, &[Batch], usize, f64) -> Result<(), Error>;

/// The laws of an answer.
pub const LAWS: &[Law<Answer>] =
    laws![micro_batches_on_ranks_equal_one_batch_on_one_device, errors_are_passed_on];

const SEED: u64 = 1;

struct Found {
    weights: Weights,
    sent: Traffic,
    worked: Vec<usize>,
}

#[derive(Clone, Copy)]
struct Case {
    ranks: usize,
    sizes: &'static [usize],
    per_update: usize,
    rate: f64,
}

impl Case {
    fn told(self, what: &str) -> String {
        let Self { ranks, sizes, per_update, .. } = self;
        format!(
            "{ranks} ranks, micro-batches of {sizes:?} samples, {per_update} for each update: {what}"
        )
    }

    fn fail(self, what: &str, expected: &str, got: &str, law: &str) -> ! {
        fail(&self.told(what), expected, got, law)
    }

    fn updates(self) -> Vec<Update> {
        micro_batches::updates(self.sizes, self.per_update, self.ranks, self.rate)
    }

    fn found(self, answer: Answer, sizes: &[usize]) -> Vec<Found> {
        let sizes = sizes.to_vec();
        let outcomes = panicking::attempt(self.ranks, Sends::Buffered, move |rank| {
            let model = Classifier::new(SEED, rank.device())?;
            let batches = micro_batches::batches(&sizes)?;
            worked();
            answer(rank, &model, &batches, self.per_update, self.rate)?;
            let (worked, sent) = (worked(), rank.traffic());
            Ok(Found { weights: model.parameters().snapshot()?, sent, worked })
        });
        outcomes.unwrap_or_else(|failure| {
            let law = "all ranks take part in every all-reduce, even a rank with an empty shard";
            let what = self.told("there are no weights");
            let empty = self.sizes.iter().any(|&size| size < self.ranks);
            panicking::fail_on_ranks(&what, "an update on every rank", &failure, law, empty)
        })
    }

    fn check(self, answer: Answer) -> Outcome {
        // The model of one device makes the same updates.
        let alone = Classifier::new(SEED, &Device::Cpu)?;
        for (number, update) in self.updates().iter().enumerate() {
            let begun = number * self.per_update;
            let done = &self.sizes[..begun + update.sizes.len()];
            let outcomes = self.found(answer, done);
            let found: Vec<Weights> =
                outcomes.iter().map(|outcome| outcome.weights.clone()).collect();
            let counted = counted(&alone, &found[0], self.sizes.iter().sum())?;
            self.its_samples_took_part(number, update, &counted);
            self.each_counts_as_it_should(number, update, &counted);
            replicas::agree(&self.told(&format!("after update {number}")), &found)?;
            let batch = tracer::batch(update.samples.clone())?;
            let gradients = alone.gradients(&batch)?.gradients;
            sgd(alone.parameters(), &gradients, self.rate, batch.len())?;
            let what = self.told(&format!("update {number} has another result than on one device"));
            let law = "micro-batches on k ranks equal one batch on one device";
            replicas::equal(&what, &alone.parameters().snapshot()?, &found[0], law)?;
            self.each_rank_has_its_shards(done, &outcomes);
        }
        self.micro_batches_cost_no_messages(answer);
        Ok(())
    }

    fn its_samples_took_part(self, number: usize, update: &Update, counted: &[f64]) {
        let found = taking_part(counted);
        let expected: Vec<usize> = update.samples.clone().collect();
        if found != expected {
            let what = format!("in update {number} the wrong samples take part");
            let got = format!("{}{}", in_words(&found), update.wrong_samples(&found));
            let law = "an update is made of all micro-batches since the one before it, on all ranks, and \
                       of no other";
            self.fail(&what, &in_words(&expected), &got, law);
        }
    }

    fn each_counts_as_it_should(self, number: usize, update: &Update, counted: &[f64]) {
        // NaN counts as a difference.
        let right = |sample: usize| (counted[sample] / update.count() - 1.0).abs() <= 1e-9;
        let Some(sample) = update.samples.clone().find(|&sample| !right(sample)) else { return };
        let times = multiple(counted[sample] / update.count());
        self.fail(
            &format!("sample {sample}'s part of update {number} is {times} what it should be"),
            &format!(
                "{} times each sample's gradient: rate {} / {} samples",
                short(update.count()),
                self.rate,
                update.samples.len()
            ),
            &format!(
                "{} times the gradient of sample {sample}{}",
                short(counted[sample]),
                update.wrong_counts(counted, sample)
            ),
            "sum over all micro-batches and ranks, each gradient once; then divide once, by all their \
             samples",
        );
    }

    /// A rank may work on parts of a shard, but on no part that is larger than a shard.
    fn each_rank_has_its_shards(self, sizes: &[usize], outcomes: &[Found]) {
        for (rank, Found { worked, .. }) in outcomes.iter().enumerate() {
            let shard = |size: &usize| shard_range(*size, self.ranks, rank).len();
            let shards: Vec<usize> = sizes.iter().map(shard).collect();
            let [expected, got] =
                [&shards, worked].map(|each| format!("{}: {each:?}", each.iter().sum::<usize>()));
            if shards.iter().sum::<usize>() != worked.iter().sum::<usize>() {
                let what = format!("rank {rank} computes the gradients of other samples");
                let expected = format!("{expected}, its shard of each micro-batch");
                let law = "each rank computes the gradients of its own shard, and of no other";
                self.fail(&what, &expected, &got, law);
            }
            let largest = shards.iter().max().copied().unwrap_or_default();
            if let Some(together) = worked.iter().find(|&&together| together > largest) {
                let what = format!("rank {rank} takes {together} samples at once");
                let expected = format!("at most {largest}: {shards:?}, its shard of each");
                let law =
                    "micro-batches are processed one by one: together they do not fit into memory";
                self.fail(&what, &expected, &got, law);
            }
        }
    }

    /// The first update sends as much as an update with a single micro-batch.
    fn micro_batches_cost_no_messages(self, answer: Answer) {
        let Some(update) = self.updates().into_iter().next() else { return };
        let expected = Self { per_update: 1, ..self }.found(answer, &[update.samples.len()]);
        let found = self.found(answer, &update.sizes);
        for (rank, (expected, found)) in expected.into_iter().zip(found).enumerate() {
            let [expected, found] = [expected.sent, found.sent];
            if expected != found {
                let count = update.sizes.len();
                let what = format!(
                    "rank {rank} does not send the same for {count} micro-batches as for one"
                );
                let told =
                    |sent: Traffic| format!("{} messages, {} bytes", sent.messages, sent.bytes);
                let law = "no synchronisation between micro-batches: ranks add up once, after the last \
                           one of an update";
                self.fail(&what, &told(expected), &told(found), law);
            }
        }
    }
}

/// The weights of rank 0 after `Ddp::accumulate` and `Ddp::gradients` of the micro-batches.
fn by_ddp(case: Case) -> Weights {
    let devices = DevicePlan::new(DeviceKind::Cpu, case.ranks, None).expect("slices of the CPU");
    let outcomes = run_ranks(&devices, DEFAULT_TIMEOUT, |rank| {
        let network = Dense::network(SEED, rank.device())?;
        let ddp = Ddp::new(network, rank, Reduction::default())?;
        let mut sgd = Sgd::new(Momentum::default());
        for group in micro_batches::batches(case.sizes)?.chunks(case.per_update) {
            let loss = |batch: &Batch| {
                let shards = split_batch(&batch.images, &batch.labels, rank.world_size())?;
                let (images, labels) = &shards[rank.rank()];
                Ok::<_, concise_wrapper::Error>(cross_entropy(&ddp.forward(images)?, labels)?)
            };
            let (last, others) = group.split_last().expect("a chunk has an element");
            others.iter().try_for_each(|batch| ddp.accumulate(&loss(batch)?))?;
            let gradients = ddp.gradients(&loss(last)?)?;
            let samples = group.iter().map(Batch::len).sum();
            sgd.step(ddp.weights(), &gradients, case.rate, samples)?;
        }
        Ok::<_, concise_wrapper::Error>(ddp.weights().snapshot()?)
    });
    outcomes.expect("stage 5 trains").swap_remove(0)
}

fn micro_batches_on_ranks_equal_one_batch_on_one_device(answer: Answer) -> Outcome {
    for ranks in [2, 1, 3, 4] {
        let case = |sizes, per_update| Case { ranks, sizes, per_update, rate: 0.5 };
        // A last micro-batch that is smaller; a last group that is shorter; micro-batches with fewer samples
        // than ranks; empty ones, first, in between and last; an update for each; one for all.
        case(&[4, 4, 2], 3).check(answer)?;
        case(&[5, 5, 3, 5, 1], 2).check(answer)?;
        case(&[3, 1, 1, 2, 1, 1, 1], 3).check(answer)?;
        case(&[0, 3, 0, 2, 3, 0], 3).check(answer)?;
        case(&[4, 3], 1).check(answer)?;
        Case { rate: 0.2, ..case(&[6, 5, 7], 5) }.check(answer)?;
    }
    let case = Case { ranks: 2, sizes: &[6, 5, 7, 4, 3], per_update: 2, rate: 0.5 };
    let law = "it is what concise_wrapper::ddp::Ddp::accumulate does";
    replicas::equal(
        &case.told("not what DDP accumulates"),
        &by_ddp(case),
        &case.found(answer, case.sizes)[0].weights,
        law,
    )
}

fn errors_are_passed_on(answer: Answer) -> Outcome {
    let case = Case { ranks: 3, sizes: &[4, 3], per_update: 2, rate: 0.5 };
    ranks::errors_are_passed_on(3, Sends::Buffered, move |rank| {
        let model = Classifier::new(SEED, rank.device())?;
        let batches = micro_batches::batches(case.sizes)?;
        answer(rank, &model, &batches, case.per_update, case.rate)
    })
}
