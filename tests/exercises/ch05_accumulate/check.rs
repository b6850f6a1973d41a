#[path = "exercise.rs"]
mod exercise;

// Each update against one device with one large batch: which samples, how much each counts, the result, what
// was sent. Then the weights against stage 5's DDP.

use std::iter;
use std::ops::Range;

use candle_core::{Device, Result, Tensor};
use concise_wrapper::ddp::{Ddp, Reduction};
use concise_wrapper::optimiser::{Momentum, Sgd};
use concise_wrapper::{Error, Model as _};
use exercises::classifier::Classifier;
use exercises::dense::Dense;
use exercises::marks::{self, counted, in_words, multiple, short, taking_part};
use exercises::mismatch::fail;
use exercises::ranks::{self, Sends};
use exercises::replicas::{self, Weights};
use params_and_allreduce::communicator::Communicator as _;
use params_and_allreduce::thread::{DEFAULT_TIMEOUT, Traffic, run_ranks};
use single_gpu::data::Batch;
use single_gpu::device::{DeviceKind, DevicePlan};
use single_gpu::ops::cross_entropy;
use single_gpu::sgd::sgd;
use split_batch::{shard_range, split_batch};

const SEED: u64 = 1;

/// Micro-batches that are to be trained on.
#[derive(Clone, Copy)]
struct Case {
    ranks: usize,
    /// The sizes of the micro-batches.
    sizes: &'static [usize],
    per_update: usize,
    rate: f64,
}

/// Micro-batches of these sizes, of samples 0, 1, 2 ….
fn micro_batches(sizes: &[usize]) -> Result<Vec<Batch>> {
    let all = marks::images(sizes.iter().sum())?;
    let mut start = 0;
    let mut next = |&size: &usize| {
        let cut = |tensor: &Tensor| tensor.narrow(0, start, size);
        let batch = Batch { images: cut(&all.images)?, labels: cut(&all.labels)? };
        start += size;
        Ok(batch)
    };
    sizes.iter().map(&mut next).collect()
}

/// An update, and the samples that belong to it.
struct Update {
    number: usize,
    /// The sizes of its micro-batches.
    sizes: &'static [usize],
    samples: Range<usize>,
}

impl Update {
    /// Each sample, and the size of its micro-batch.
    fn own_sizes(&self) -> Vec<(usize, usize)> {
        let sizes = self.sizes.iter().flat_map(|&size| iter::repeat_n(size, size));
        self.samples.clone().zip(sizes).collect()
    }
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
        let mut start = 0;
        let groups = self.sizes.chunks(self.per_update).enumerate();
        let update = |(number, sizes): (usize, &'static [usize])| {
            let samples = start..start + sizes.iter().sum::<usize>();
            start = samples.end;
            Update { number, sizes, samples }
        };
        groups.map(update).collect()
    }

    /// What the answer makes of micro-batches of these sizes: every rank's weights, and what it sent.
    fn found(self, sizes: &[usize]) -> (Vec<Weights>, Vec<Traffic>) {
        let sizes = sizes.to_vec();
        let outcomes = ranks::attempt(self.ranks, Sends::Buffered, move |rank| {
            let model = Classifier::new(SEED, rank.device())?;
            let batches = micro_batches(&sizes)?;
            exercise::train(rank, &model, &batches, self.per_update, self.rate)?;
            Ok((model.parameters().snapshot()?, rank.traffic()))
        });
        let outcomes = outcomes.unwrap_or_else(|failure| {
            let law = "all ranks meet in every all-reduce, even one whose shard is empty";
            self.fail("there are no weights", "an update on every rank", &failure, law)
        });
        outcomes.into_iter().unzip()
    }

    /// Holds each update against each law in turn.
    fn check(self) -> Result<()> {
        // One device, which goes on as long as the answer does the same.
        let alone = Classifier::new(SEED, &Device::Cpu)?;
        let all = marks::images(self.sizes.iter().sum())?;
        for update in self.updates() {
            let begun = update.number * self.per_update;
            let (found, _) = self.found(&self.sizes[..begun + update.sizes.len()]);
            let counted = counted(&alone, &found[0], all.len())?;
            self.its_samples_took_part(&update, &counted);
            self.each_counts_as_it_should(&update, &counted);
            let number = update.number;
            replicas::agree(&self.told(&format!("after update {number}")), &found)?;
            let Range { start, end } = update.samples;
            let cut = |tensor: &Tensor| tensor.narrow(0, start, end - start);
            let batch = Batch { images: cut(&all.images)?, labels: cut(&all.labels)? };
            let gradients = alone.gradients(&batch)?.gradients;
            sgd(alone.parameters(), &gradients, self.rate, batch.len())?;
            let what = self.told(&format!("update {number} has another result than on one device"));
            let law = "micro-batches on k ranks equal one batch on one device";
            replicas::equal(&what, &alone.parameters().snapshot()?, &found[0], law)?;
        }
        self.micro_batches_cost_no_messages();
        Ok(())
    }

    /// The samples of an update that are on rank 0.
    fn on_rank_0(self, update: &Update) -> Vec<usize> {
        let mut start = update.samples.start;
        let own = |&size: &usize| {
            let Range { end, .. } = shard_range(size, self.ranks, 0);
            let own = start..start + end;
            start += size;
            own
        };
        update.sizes.iter().flat_map(own).collect()
    }

    fn its_samples_took_part(self, update: &Update, counted: &[f64]) {
        let found = taking_part(counted);
        let expected: Vec<usize> = update.samples.clone().collect();
        if found == expected {
            return;
        }
        let last = update.samples.end - update.sizes.last().copied().unwrap_or_default();
        let guess = if found.iter().any(|sample| *sample < update.samples.start) {
            ": samples of an earlier update count once more"
        } else if found.is_empty() {
            ": there was no update"
        } else if found == self.on_rank_0(update) {
            ": only those of rank 0"
        } else if found.iter().all(|&sample| sample >= last) {
            ": only the last micro-batch; were the gradients before it overwritten?"
        } else {
            ""
        };
        let what = format!("in update {} the wrong samples take part", update.number);
        let law = "an update is made of all micro-batches since the one before it, and of no other";
        let got = format!("{}{guess}", in_words(&found));
        self.fail(&what, &in_words(&expected), &got, law);
    }

    fn each_counts_as_it_should(self, update: &Update, counted: &[f64]) {
        let (rate, samples) = (self.rate, update.samples.len());
        let expected = rate / samples as f64;
        // Written so that NaN counts as a difference.
        let right = |sample: usize| (counted[sample] / expected - 1.0).abs() <= 1e-9;
        let Some(sample) = update.samples.clone().find(|&sample| !right(sample)) else { return };
        let times = multiple(counted[sample] / expected);
        self.fail(
            &format!("update {} is {times} what it should be", update.number),
            &format!("{} times each sample's gradient: rate {rate} / {samples} samples", short(expected)),
            &format!(
                "{} times the gradient of sample {sample}{}",
                short(counted[sample]),
                self.guess(update, sample, counted)
            ),
            "sum over all micro-batches and ranks, each gradient once; then divide once, by all their \
             samples",
        );
    }

    /// What wrong counts look like.
    fn guess(self, update: &Update, wrong: usize, counted: &[f64]) -> String {
        let is = |sample: usize, divisor: usize| {
            (counted[sample] * divisor as f64 / self.rate - 1.0).abs() < 1e-9
        };
        let all = |divisor: usize| update.samples.clone().all(|sample| is(sample, divisor));
        let sizes = update.sizes;
        let (count, first, last) = (sizes.len(), sizes[0], sizes[sizes.len() - 1]);
        let on_rank_0 = self.on_rank_0(update).len();
        let own = update.own_sizes();
        let means = || own.iter().all(|&(sample, size)| is(sample, size * count));
        let of_wrong = own.iter().find(|(sample, _)| *sample == wrong).map_or(0, |(_, size)| *size);
        let ratio = counted[wrong] * update.samples.len() as f64 / self.rate;
        let reduced = (2..=count).find(|&times| {
            self.ranks > 1 && (ratio - self.ranks.pow(times as u32 - 1) as f64).abs() < 1e-9
        });
        let guesses = [
            (all(1), "not divided at all".to_owned()),
            (all(last), format!("divided by {last}, the samples of the last micro-batch")),
            (all(count), format!("divided by {count}, the number of micro-batches")),
            (all(on_rank_0), format!("divided by {on_rank_0}, the samples of rank 0 alone")),
            (
                all(update.samples.len() * self.ranks),
                format!("divided by the {} ranks as well", self.ranks),
            ),
            (
                all(first * self.per_update),
                format!("divided by {first} · {}, as if all were like the first", self.per_update),
            ),
            (means(), "the mean of the micro-batches' means".to_owned()),
            (
                is(wrong, of_wrong),
                format!("divided by {of_wrong}, as in an update with its micro-batch alone"),
            ),
            (
                reduced.is_some(),
                format!("added up over the ranks {} times", reduced.unwrap_or_default()),
            ),
        ];
        let guess = guesses.into_iter().find(|(fits, _)| *fits);
        guess.map(|(_, what)| format!(": {what}")).unwrap_or_default()
    }

    /// The first update, against one that has all its samples in a single micro-batch.
    fn micro_batches_cost_no_messages(self) {
        let Some(update) = self.updates().into_iter().next() else { return };
        let (_, expected) = Self { per_update: 1, ..self }.found(&[update.samples.len()]);
        let (_, found) = self.found(update.sizes);
        for (rank, (expected, found)) in expected.into_iter().zip(found).enumerate() {
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

/// What `Ddp::accumulate` and `Ddp::gradients` make of the micro-batches, on rank 0.
fn by_ddp(case: Case) -> Weights {
    let devices = DevicePlan::new(DeviceKind::Cpu, case.ranks, None).expect("slices of the CPU");
    let outcomes = run_ranks(&devices, DEFAULT_TIMEOUT, |rank| {
        let network = Dense::network(SEED, rank.device())?;
        let ddp = Ddp::new(network, rank, Reduction::default())?;
        let mut sgd = Sgd::new(Momentum::default());
        for group in micro_batches(case.sizes)?.chunks(case.per_update) {
            let loss = |batch: &Batch| {
                let shards = split_batch(&batch.images, &batch.labels, rank.world_size())?;
                let (images, labels) = &shards[rank.rank()];
                Ok::<_, Error>(cross_entropy(&ddp.forward(images)?, labels)?)
            };
            let (last, others) = group.split_last().expect("a chunk has an element");
            others.iter().try_for_each(|batch| ddp.accumulate(&loss(batch)?))?;
            let gradients = ddp.gradients(&loss(last)?)?;
            let samples = group.iter().map(Batch::len).sum();
            sgd.step(ddp.weights(), &gradients, case.rate, samples)?;
        }
        Ok::<_, Error>(ddp.weights().snapshot()?)
    });
    outcomes.expect("stage 5 trains").swap_remove(0)
}

#[test]
fn micro_batches_on_ranks_equal_one_batch_on_one_device() -> Result<()> {
    for ranks in [2, 1, 3, 4] {
        let case = |sizes, per_update| Case { ranks, sizes, per_update, rate: 0.5 };
        // A last micro-batch that is smaller; a last group that is shorter; micro-batches with fewer samples
        // than ranks; empty ones, first, in between and last; an update for each; one for all.
        case(&[4, 4, 2], 3).check()?;
        case(&[5, 5, 3, 5, 1], 2).check()?;
        case(&[3, 1, 1, 2, 1, 1, 1], 3).check()?;
        case(&[0, 3, 0, 2, 3, 0], 3).check()?;
        case(&[4, 3], 1).check()?;
        Case { rate: 0.2, ..case(&[6, 5, 7], 5) }.check()?;
    }
    let case = Case { ranks: 2, sizes: &[6, 5, 7, 4, 3], per_update: 2, rate: 0.5 };
    let law = "it is what concise_wrapper::ddp::Ddp::accumulate does";
    replicas::equal(
        &case.told("not what DDP accumulates"),
        &by_ddp(case),
        &case.found(case.sizes).0[0],
        law,
    )
}
