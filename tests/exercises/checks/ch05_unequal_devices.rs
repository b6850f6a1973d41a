//! Chapter 5, `book/src/ch05d-your-model.md`: a fast device and a slow one.
//!
//! The check compares the time of the shares with the best possible time, and a step with unequal shares with a step of one
//! device.

use crate::micro_batches::{Update, trained};
use crate::prelude::*;
use crate::speed::{Speed, step_seconds};

/// The functions `shares` and `step`.
#[derive(Clone, Copy)]
pub struct Answer {
    pub shares: fn(usize, &[Speed]) -> Result<Vec<usize>>,
    pub step: fn(&Rank, &Classifier, &Batch, &[usize], f64) -> Result<BatchSums, Error>,
}

pub const LAWS: &[Law<Answer>] = laws![
    no_other_shares_make_the_step_shorter in devices(),
    what_is_no_speed_is_refused in no_speeds(),
    a_step_with_unequal_shares_is_that_of_one_device in SHARES,
    errors_are_passed_on => (3, Sends::Buffered)
        |answer, rank| (answer.step)(rank, &Classifier::new(1, rank.device())?, &tracer::batch(0..6)?, &[3, 2, 1], RATE),
];

const RATE: f64 = 0.5;

/// A batch, and devices of so many fixed seconds and seconds per sample.
struct Devices(usize, Vec<Speed>);

impl Devices {
    fn new(batch: usize, speeds: &[(f64, f64)]) -> Self {
        let speed = |&(fixed, per_sample)| Speed { fixed, per_sample };
        Self(batch, speeds.iter().map(speed).collect())
    }
}

shown!(Devices(batch, speeds) => "a batch of {batch}; {}", match speeds.len() {
    0 => "no devices".to_owned(),
    _ => (0..).zip(speeds).map(|(device, Speed { fixed, per_sample }): (usize, &Speed)| match *fixed {
        0.0 => format!("device {device} needs {per_sample} s per sample"),
        _ => format!("device {device} needs {fixed} s and {per_sample} s per sample"),
    }).collect::<Vec<_>>().join(", "),
});

fn devices() -> Vec<Devices> {
    let mut all: Vec<Devices> = [
        // A fast one and a slow one; one that is too slow to help, all the time or for a small batch.
        (8, &[(0.0, 1.0), (0.0, 3.0)][..]),
        (9, &[(0.0, 3.0), (0.0, 1.0)]),
        (10, &[(0.0, 1.0), (0.0, 2.0), (0.0, 10.0)]),
        (8, &[(0.0, 1.0), (20.0, 0.5)]),
        // f32 has no room for the seconds of a sample.
        (8, &[(1e8, 0.25), (1e8, 0.75)]),
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

/// The seconds of the shortest step: the smallest limit within which all devices together have time for the batch.
fn shortest(Devices(batch, devices): &Devices) -> f64 {
    let all = || 0..=*batch;
    let limits =
        devices.iter().flat_map(|device| all().map(move |samples| device.seconds(samples)));
    let most = |device: &Speed, limit: f64| {
        all().rev().find(|&samples| device.seconds(samples) <= limit).unwrap_or_default()
    };
    let enough =
        |limit: &f64| devices.iter().map(|device| most(device, *limit)).sum::<usize>() >= *batch;
    limits.filter(enough).fold(f64::INFINITY, f64::min)
}

fn no_other_shares_make_the_step_shorter(answer: Answer, case: &Devices) -> Outcome {
    let (Devices(batch, devices), shortest) = (case, shortest(case));
    let shares = (answer.shares)(*batch, devices)
        .map_err(|error| Finding::new("no shares").expected("shares", error))?;
    let all = format!("shares {shares:?}");
    let law = "every device has a share, be it 0";
    same(format!("the number of {all}"), devices.len(), shares.len(), law)?;
    let (samples, law) = (shares.iter().sum::<usize>(), "every sample is in exactly one shard");
    same(format!("the shares hold {samples} samples"), *batch, samples, law)?;
    let seconds = step_seconds(devices, &shares);
    let got = format!("{} s, with {all}: {}", short(seconds), why(case, &shares));
    let (sides, law) =
        ((format!("{} s", short(shortest)), got), "a step takes as long as its slowest device");
    let right = seconds <= shortest * (1.0 + 1e-9);
    expect(right, "the step takes longer than it has to", sides, law)
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

shown!(Shares(shares) => "a batch of {}, shares {shares:?}", shares.iter().sum::<usize>());

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
    let found = trained(shares.len(), shares.contains(&0), move |rank, model| {
        (answer.step)(rank, model, &tracer::batch(0..samples)?, shares, RATE)
    })?;
    let (weights, sums): (Vec<Weights>, Vec<BatchSums>) =
        found.into_iter().map(|it| (it.weights, it.result)).unzip();
    let law = "a rank works on its own share, and returns its sums before the update";
    for (rank, (sums, &share)) in sums.iter().zip(shares).enumerate() {
        let what = format!("rank {rank} works on another number of samples");
        same(what, share as u64, sums.samples, law)?;
    }
    let (alone, mut start, mut right) = (Classifier::new(1, &Device::Cpu)?, 0, Vec::new());
    for share in shares {
        right.push(alone.gradients(&tracer::batch(start..start + share)?)?.sums);
        start += share;
    }
    let update = Update::of(0..samples, shares.to_vec(), "shards", shares.len(), RATE);
    update.is_made(&alone, &weights)?;
    right.iter().zip(&sums).enumerate().try_for_each(|(rank, (right, got))| {
        let equal = (got.loss - right.loss).abs() <= 1e-9 * right.loss;
        let told =
            |it: &BatchSums| format!("loss {}, {} correct answers", short(it.loss), it.correct);
        let what = format!("rank {rank} returns another loss or another number of correct answers");
        expect(equal && got.correct == right.correct, what, (told(right), told(got)), law)
    })
}
