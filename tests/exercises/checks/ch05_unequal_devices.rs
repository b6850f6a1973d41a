//! Chapter 5, `book/src/ch05d-your-model.md`: a fast device and a slow one.
//!
//! Shares are compared with the best possible step time, and a step with unequal shares with a step of one device.

use std::fmt;

use crate::prelude::*;
use crate::speed::{Speed, step_seconds};
use crate::tracer;
use datasets::Batch;
use harness::records::BatchSums;

/// The functions `shares` and `step`.
#[derive(Clone, Copy)]
#[expect(missing_docs, reason = "the exercise documents its functions")]
pub struct Answer {
    pub shares: fn(usize, &[Speed]) -> Result<Vec<usize>>,
    pub step: fn(&Rank, &Classifier, &Batch, &[usize], f64) -> Result<BatchSums, Error>,
}

/// The laws of an answer.
pub const LAWS: &[Law<Answer>] = laws![
    no_other_shares_make_the_step_shorter in devices(),
    what_is_no_speed_is_refused in no_speeds(),
    a_step_with_unequal_shares_is_that_of_one_device in SHARES,
    errors_are_passed_on
];

const SEED: u64 = 1;
const RATE: f64 = 0.5;

/// A batch, and devices of so many fixed seconds and seconds per sample.
struct Devices(usize, Vec<Speed>);

impl Devices {
    fn new(batch: usize, speeds: &[(f64, f64)]) -> Self {
        let speed = |&(fixed, per_sample)| Speed { fixed, per_sample };
        Self(batch, speeds.iter().map(speed).collect())
    }
}

impl fmt::Display for Devices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let device = |(device, &Speed { fixed, per_sample }): (usize, &Speed)| match fixed == 0.0 {
            true => format!("device {device} needs {per_sample} s per sample"),
            false => format!("device {device} needs {fixed} s and {per_sample} s per sample"),
        };
        let all: Vec<String> = self.1.iter().enumerate().map(device).collect();
        let all = if all.is_empty() { "no devices".to_owned() } else { all.join(", ") };
        write!(f, "a batch of {}; {all}", self.0)
    }
}

fn devices() -> Vec<Devices> {
    let mut all: Vec<Devices> = [
        // A fast one and a slow one; one that is too slow to help, all the time or for a small batch.
        (8, &[(0.0, 1.0), (0.0, 3.0)][..]),
        (9, &[(0.0, 3.0), (0.0, 1.0)]),
        (30, &[(0.0, 1.0), (0.0, 1e6)]),
        (10, &[(0.0, 1.0), (0.0, 2.0), (0.0, 10.0)]),
        (8, &[(0.0, 1.0), (20.0, 0.5)]),
        (40, &[(0.0, 1.0), (20.0, 0.5)]),
        (33, &[(0.5, 0.7), (0.0, 1.1), (2.0, 1.9)]),
        (256, &[(0.002, 0.0005), (0.004, 0.0015)]),
        // Equal ones, with a remainder and without; fewer samples than devices; none at all; one device.
        (7, &[(0.0, 1.0); 3]),
        (3, &[(1.0, 1.0); 3]),
        (1, &[(0.0, 3.0), (0.0, 1.0), (0.0, 2.0)]),
        (0, &[(0.0, 1.0), (0.0, 3.0)]),
        (5, &[(1.0, 2.0)]),
    ]
    .map(|(batch, speeds)| Devices::new(batch, speeds))
    .into();
    let times = [0.0, 2.0, 7.0].map(|fixed| [1.0, 1.5, 4.0].map(|per_sample| (fixed, per_sample)));
    let pairs = times.iter().flatten().zip(times.iter().flatten().cycle().skip(4));
    let pairs = pairs.map(|(&a, &b)| [a, b, (1.0, 2.0)]);
    all.extend(pairs.flat_map(|speeds| (0..20).map(move |batch| Devices::new(batch, &speeds))));
    // Times that have no exact binary numbers: (0.6 − 0.5) / 0.1 is below 1.
    let pairs = [0.0, 0.3, 0.5, 0.7].into_iter().flat_map(|fixed| {
        [(0.1, 0.3), (0.7, 0.1), (0.3, 1.1)].map(|(a, b)| [(fixed, a), (0.5, b)])
    });
    all.extend(pairs.flat_map(|speeds| (1..12).map(move |batch| Devices::new(batch, &speeds))));
    all
}

/// Shares of a batch with the shortest step, by dynamic programming over the devices.
fn best(Devices(batch, devices): &Devices) -> Vec<usize> {
    let mut best: Vec<Vec<usize>> = (0..=*batch).map(|samples| vec![samples]).collect();
    for device in 1..devices.len() {
        let with_it = |samples: usize| {
            let all = (0..=samples).map(|own| [&best[samples - own][..], &[own]].concat());
            let seconds = |shares: &Vec<usize>| step_seconds(&devices[..=device], shares);
            all.min_by(|a, b| seconds(a).total_cmp(&seconds(b))).unwrap_or_default()
        };
        best = (0..=*batch).map(with_it).collect();
    }
    best.swap_remove(*batch)
}

fn no_other_shares_make_the_step_shorter(answer: Answer, case: &Devices) -> Outcome {
    let (Devices(batch, devices), best) = (case, best(case));
    let shortest = step_seconds(devices, &best);
    let finding = |what: String, got: String, law: &str| {
        let wanted = format!("{} s, with shares {best:?} for instance", short(shortest));
        Finding::new(what).expected(wanted, got).law(law)
    };
    let shares = (answer.shares)(*batch, devices).map_err(|error| {
        finding("no shares".to_owned(), error.to_string(), "these devices have speeds")
    })?;
    let got = format!("shares {shares:?}");
    demand(shares.len() == devices.len(), || {
        let law = "every device has a share, be it 0";
        finding(format!("{} shares", shares.len()), got.clone(), law)
    })?;
    let samples: usize = shares.iter().sum();
    demand(samples == *batch, || {
        let law = "every sample of the batch is in exactly one shard";
        finding(format!("the shares hold {samples} samples"), got.clone(), law)
    })?;
    let seconds = step_seconds(devices, &shares);
    demand(seconds <= shortest * (1.0 + 1e-9), || {
        let what = "the step takes longer than it has to".to_owned();
        let got = format!("{} s, with {got}: {}", short(seconds), why(case, &shares));
        finding(what, got, "a step takes as long as its slowest device")
    })
}

/// The device that makes a step long, and a device that would be faster alone.
fn why(Devices(batch, devices): &Devices, shares: &[usize]) -> String {
    let seconds = |device: &usize| devices[*device].seconds(shares[*device]);
    let slowest = (0..devices.len()).max_by(|a, b| seconds(a).total_cmp(&seconds(b)));
    let slowest = slowest.unwrap_or_default();
    let alone = |device: usize| devices[device].seconds(*batch);
    let fast = (0..devices.len()).find(|&device| alone(device) < seconds(&slowest));
    let fast = fast.map(|it| format!("; device {it} alone needs {} s", short(alone(it))));
    format!("all wait for device {slowest}{}", fast.unwrap_or_default())
}

fn no_speeds() -> Vec<Devices> {
    let per_sample = [0.0, -1.0, f64::NAN, f64::INFINITY].map(|per_sample| (0.0, per_sample));
    let fixed = [-1.0, f64::NAN, f64::INFINITY].map(|fixed| (fixed, 1.0));
    let lists = per_sample.into_iter().chain(fixed).map(|speed| vec![(1.0, 1.0), speed]);
    let lists = lists.chain([vec![]]);
    lists.flat_map(|speeds| [8, 0].map(|batch| Devices::new(batch, &speeds))).collect()
}

fn what_is_no_speed_is_refused(answer: Answer, Devices(batch, devices): &Devices) -> Outcome {
    refused((answer.shares)(*batch, devices), |shares| format!("shares {shares:?}"))
}

/// The shares of a batch.
#[derive(Clone, Copy)]
struct Shares(&'static [usize]);

impl fmt::Display for Shares {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a batch of {}, shares {:?}", self.0.iter().sum::<usize>(), self.0)
    }
}

const SHARES: [Shares; 8] = [
    // Fast and slow, either way round; equal ones; three that differ, whose sum depends on the order.
    Shares(&[6, 2]),
    Shares(&[2, 6]),
    Shares(&[4, 4]),
    Shares(&[5, 3, 2]),
    // Devices that get nothing; one device.
    Shares(&[7, 3, 0]),
    Shares(&[0, 5]),
    Shares(&[0, 0, 1]),
    Shares(&[5]),
];

/// Compares with a step of one device on the whole batch.
fn a_step_with_unequal_shares_is_that_of_one_device(answer: Answer, case: &Shares) -> Outcome {
    let shares = case.0;
    let samples: usize = shares.iter().sum();
    let found = ranks::run(shares.len(), Sends::Buffered, move |rank| {
        let (model, batch) = (Classifier::new(SEED, rank.device())?, tracer::batch(0..samples)?);
        let sums = (answer.step)(rank, &model, &batch, shares, RATE)?;
        Ok((model.parameters().snapshot()?, sums))
    });
    let law = "every rank takes part, and one without samples adds zeros";
    let found = found.map_err(ranks::all_take_part(law, shares.contains(&0)))?;
    let (weights, sums): (Vec<Weights>, Vec<BatchSums>) = found.into_iter().unzip();
    for (rank, (sums, &share)) in sums.iter().zip(shares).enumerate() {
        let what = format!("rank {rank} works on another number of samples");
        same(
            what,
            share as u64,
            sums.samples,
            "a rank works on its own share, and returns its sums",
        )?;
    }
    let alone = Classifier::new(SEED, &Device::Cpu)?;
    let counts = tracer::counted(&alone, &weights[0], samples)?;
    every_sample_counts_once(&counts, shares)?;
    replicas::agree("after the step", &weights)?;
    let batch = tracer::batch(0..samples)?;
    let mut start = 0;
    let expected = shares.iter().map(|share| {
        let shard = start..start + share;
        start += share;
        Ok(alone.gradients(&tracer::batch(shard)?)?.sums)
    });
    let expected: Vec<BatchSums> = expected.collect::<Result<_>>()?;
    sgd(alone.parameters(), &alone.gradients(&batch)?.gradients, RATE, samples)?;
    let law = "k devices equal one, whatever their shares";
    let what = "other weights than on one device";
    replicas::equal(what, &alone.parameters().snapshot()?, &weights[0], law)?;
    expected.iter().zip(&sums).enumerate().try_for_each(|(rank, (expected, got))| {
        let equal = (got.loss - expected.loss).abs() <= 1e-9 * expected.loss;
        demand(equal && got.correct == expected.correct, || {
            let told = |sums: &BatchSums| {
                format!("loss {}, {} correct answers", short(sums.loss), sums.correct)
            };
            let what = "returns another loss or another number of correct answers";
            Finding::new(format!("rank {rank} {what}"))
                .expected(told(expected), told(got))
                .law("a rank returns the sums of its own shard, with the weights before the update")
        })
    })
}

fn every_sample_counts_once(counts: &[f64], shares: &[usize]) -> Outcome {
    let samples = counts.len();
    let (all, found): (Vec<usize>, _) = ((0..samples).collect(), taking_part(counts));
    demand(found == all, || {
        let got = format!("{}{}", in_words(&found), missing(counts, &found, shares));
        Finding::new("the wrong samples take part")
            .expected(in_words(&all), got)
            .law("every sample of the batch is in exactly one shard, and all shards in the update")
    })?;
    let equal = |count: &&f64| (RATE / **count / samples as f64 - 1.0).abs() <= 1e-9;
    let wrong = counts.iter().position(|count| !equal(&count));
    wrong.map_or(Ok(()), |sample| {
        let divisor = RATE / counts[sample];
        let owner = owners(shares).nth(sample).map_or(0, |(rank, _)| rank);
        let times = multiple(samples as f64 / divisor);
        let what = format!("sample {sample}, rank {owner}'s, counts {times} what it should");
        let got = format!("divided by {}{}", short(divisor), guess(counts, shares));
        Err(Finding::new(what)
            .expected(format!("its gradient divided by {samples}"), got)
            .law("sum, then divide once, by the whole batch: every sample counts the same"))
    })
}

/// The rank and the share of each sample's owner.
fn owners(shares: &[usize]) -> impl Iterator<Item = (usize, usize)> {
    shares.iter().enumerate().flat_map(|(rank, &share)| vec![(rank, share); share])
}

/// A guess at the reason why only these samples take part; may be empty.
fn missing(counts: &[f64], found: &[usize], shares: &[usize]) -> String {
    let once = RATE / counts.len() as f64;
    let often = found.iter().copied().filter(|&sample| counts[sample] > 1.5 * once);
    let often: Vec<usize> = often.collect();
    match found {
        [] => ": there was no update".to_owned(),
        _ if !often.is_empty() => {
            let often = in_words(&often);
            format!("; {often} in more than one rank's shard: where does a shard begin?")
        }
        _ if found.iter().copied().eq(0..shares[0]) => ": only those of rank 0".to_owned(),
        _ => String::new(),
    }
}

/// The name of a wrong divisor, if it is that of every sample.
fn guess(counts: &[f64], shares: &[usize]) -> &'static str {
    let (samples, ranks) = (counts.len(), shares.len());
    let all = |divisor: &dyn Fn(usize) -> usize| {
        let is = |(count, (_, share)): (&f64, (usize, usize))| {
            (RATE / count / divisor(share) as f64 - 1.0).abs() < 1e-9
        };
        counts.iter().zip(owners(shares)).all(is)
    };
    match () {
        () if all(&|share| share * ranks) => ": the mean of the shards' means",
        () if all(&|share| share) => ": the size of one shard",
        () if all(&|_| samples * ranks) => ": and by the number of ranks",
        () if all(&|_| samples * samples) => ": twice by the size of the batch",
        () => "",
    }
}

fn errors_are_passed_on(answer: Answer) -> Outcome {
    ranks::errors_are_passed_on(3, Sends::Buffered, move |rank| {
        let model = Classifier::new(SEED, rank.device())?;
        (answer.step)(rank, &model, &tracer::batch(0..6)?, &[3, 2, 1], RATE)
    })
}
