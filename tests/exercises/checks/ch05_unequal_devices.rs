//! Chapter 5, `book/src/ch05d-your-model.md`: a fast device and a slow one.
//!
//! Shares are compared with the best possible step time, and a step with unequal shares with a step of one device.

use crate::panicking;
use crate::prelude::*;
use crate::speed::{Speed, step_seconds};
use crate::tracer::counted;
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
    no_other_shares_make_the_step_shorter,
    what_is_no_speed_is_refused,
    a_step_with_unequal_shares_is_that_of_one_device,
    errors_are_passed_on
];

const SEED: u64 = 1;
const RATE: f64 = 0.5;

/// Devices of so many fixed seconds and seconds per sample.
fn devices(speeds: &[(f64, f64)]) -> Vec<Speed> {
    speeds.iter().map(|&(fixed, per_sample)| Speed { fixed, per_sample }).collect()
}

fn described(batch: usize, devices: &[Speed]) -> String {
    let device = |(device, &Speed { fixed, per_sample }): (usize, &Speed)| match fixed == 0.0 {
        true => format!("device {device} needs {per_sample} s per sample"),
        false => format!("device {device} needs {fixed} s and {per_sample} s per sample"),
    };
    let mut all: Vec<String> = devices.iter().enumerate().map(device).collect();
    if all.is_empty() {
        all.push("no devices".to_owned());
    }
    format!("a batch of {batch}; {}", all.join(", "))
}

/// Shares of a batch with the shortest step, by dynamic programming over the devices.
fn best(batch: usize, devices: &[Speed]) -> Vec<usize> {
    let mut best: Vec<Vec<usize>> = (0..=batch).map(|samples| vec![samples]).collect();
    for device in 1..devices.len() {
        let with_it = |samples: usize| {
            let all = (0..=samples).map(|own| [&best[samples - own][..], &[own]].concat());
            let seconds = |shares: &Vec<usize>| step_seconds(&devices[..=device], shares);
            all.min_by(|a, b| seconds(a).total_cmp(&seconds(b))).unwrap_or_default()
        };
        best = (0..=batch).map(with_it).collect();
    }
    best.swap_remove(batch)
}

fn check(answer: Answer, batch: usize, speeds: &[(f64, f64)]) {
    let devices = devices(speeds);
    let best = best(batch, &devices);
    let shortest = step_seconds(&devices, &best);
    let wanted = format!("{} s, with shares {best:?} for instance", short(shortest));
    let given = described(batch, &devices);
    crate::call::given(given.clone());
    let shares = match (answer.shares)(batch, &devices) {
        Ok(shares) => shares,
        Err(error) => fail(&given, &wanted, &error.to_string(), "these devices have speeds"),
    };
    let got = format!("shares {shares:?}");
    if shares.len() != devices.len() {
        let law = "every device has a share, be it 0";
        fail(&format!("{given}: {} shares", shares.len()), &wanted, &got, law);
    }
    let samples: usize = shares.iter().sum();
    if samples != batch {
        let law = "every sample of the batch is in exactly one shard";
        fail(&format!("{given}: the shares hold {samples} samples"), &wanted, &got, law);
    }
    let seconds = step_seconds(&devices, &shares);
    if seconds > shortest * (1.0 + 1e-9) {
        let what = format!("{given}: the step takes longer than it has to");
        let got = format!("{} s, with {got}: {}", short(seconds), why(batch, &devices, &shares));
        fail(&what, &wanted, &got, "a step takes as long as its slowest device");
    }
}

/// The device that makes a step long, and a device that would be faster alone.
fn why(batch: usize, devices: &[Speed], shares: &[usize]) -> String {
    let seconds = |device: usize| devices[device].seconds(shares[device]);
    let slowest = (0..devices.len()).max_by(|&a, &b| seconds(a).total_cmp(&seconds(b)));
    let slowest = slowest.unwrap_or_default();
    let alone = |device: usize| devices[device].seconds(batch);
    match (0..devices.len()).find(|&device| alone(device) < seconds(slowest)) {
        Some(fast) => {
            let alone = short(alone(fast));
            format!("all wait for device {slowest}; device {fast} alone needs {alone} s")
        }
        None => format!("all wait for device {slowest}"),
    }
}

fn no_other_shares_make_the_step_shorter(answer: Answer) {
    within("sharing out", move || {
        // A fast one and a slow one; one that is too slow to help, all the time or for a small batch.
        check(answer, 8, &[(0.0, 1.0), (0.0, 3.0)]);
        check(answer, 9, &[(0.0, 3.0), (0.0, 1.0)]);
        check(answer, 30, &[(0.0, 1.0), (0.0, 1e6)]);
        check(answer, 10, &[(0.0, 1.0), (0.0, 2.0), (0.0, 10.0)]);
        check(answer, 8, &[(0.0, 1.0), (20.0, 0.5)]);
        check(answer, 40, &[(0.0, 1.0), (20.0, 0.5)]);
        check(answer, 33, &[(0.5, 0.7), (0.0, 1.1), (2.0, 1.9)]);
        check(answer, 256, &[(0.002, 0.0005), (0.004, 0.0015)]);
        // Equal ones, with a remainder and without; fewer samples than devices; none at all; one device.
        check(answer, 7, &[(0.0, 1.0), (0.0, 1.0), (0.0, 1.0)]);
        check(answer, 3, &[(1.0, 1.0), (1.0, 1.0), (1.0, 1.0)]);
        check(answer, 1, &[(0.0, 3.0), (0.0, 1.0), (0.0, 2.0)]);
        check(answer, 0, &[(0.0, 1.0), (0.0, 3.0)]);
        check(answer, 5, &[(1.0, 2.0)]);
        let times =
            [0.0, 2.0, 7.0].map(|fixed| [1.0, 1.5, 4.0].map(|per_sample| (fixed, per_sample)));
        for (a, b) in times.iter().flatten().zip(times.iter().flatten().cycle().skip(4)) {
            (0..20).for_each(|batch| check(answer, batch, &[*a, *b, (1.0, 2.0)]));
        }
    });
}

fn what_is_no_speed_is_refused(answer: Answer) -> Outcome {
    let nan = f64::NAN;
    let one = |fixed, per_sample| vec![(1.0, 1.0), (fixed, per_sample)];
    let per_sample = [0.0, -1.0, nan, f64::INFINITY].map(|per_sample| one(0.0, per_sample));
    let fixed = [-1.0, nan, f64::INFINITY].map(|fixed| one(fixed, 1.0));
    for speeds in per_sample.into_iter().chain(fixed).chain([vec![]]) {
        for batch in [8, 0] {
            let devices = devices(&speeds);
            let given = described(batch, &devices);
            let shares = crate::call::within(&given, move || (answer.shares)(batch, &devices))?;
            refused(shares, |shares| format!("shares {shares:?}")).map_err(|it| it.at(given))?;
        }
    }
    Ok(())
}

struct Found {
    weights: Weights,
    sums: BatchSums,
}

/// A guess at the reason why only these samples take part; may be empty.
fn missing(counted: &[f64], found: &[usize], shares: &[usize]) -> String {
    let own: Vec<usize> = (0..shares[0]).collect();
    let once = RATE / counted.len() as f64;
    let often = found.iter().copied().filter(|&sample| counted[sample] > 1.5 * once);
    let often: Vec<usize> = often.collect();
    match found {
        [] => ": there was no update".to_owned(),
        _ if !often.is_empty() => {
            let often = in_words(&often);
            format!("; {often} in more than one rank's shard: where does a shard begin?")
        }
        _ if found == own => ": only those of rank 0".to_owned(),
        _ => String::new(),
    }
}

/// The name of a wrong divisor, for a sample in a shard of `share` samples.
fn guess(divisor: f64, share: usize, shares: &[usize]) -> &'static str {
    let is = |number: usize| (divisor - number as f64).abs() < 1e-6;
    let (samples, ranks) = (shares.iter().sum::<usize>(), shares.len());
    match () {
        () if is(share * ranks) => ": the mean of the shards' means",
        () if is(share) => ": the size of one shard",
        () if is(samples * ranks) => ": and by the number of ranks",
        () => "",
    }
}

/// Compares a step with these shares with a step of one device on the whole batch.
fn check_step(answer: Answer, shares: &[usize]) -> Outcome {
    let samples: usize = shares.iter().sum();
    let model = || Classifier::new(SEED, &Device::Cpu);
    let batch = tracer::batch(0..samples)?;
    let given = format!("a batch of {samples}, shares {shares:?}");
    let on_ranks = shares.to_vec();
    let outcomes = panicking::attempt(shares.len(), Sends::Buffered, move |rank| {
        let (model, batch) = (Classifier::new(SEED, rank.device())?, tracer::batch(0..samples)?);
        let sums = (answer.step)(rank, &model, &batch, &on_ranks, RATE)?;
        Ok(Found { weights: model.parameters().snapshot()?, sums })
    });
    let outcomes = outcomes.unwrap_or_else(|failure| {
        let law = "every rank takes part, and one without samples adds zeros";
        let (what, empty) = (format!("{given}: no step"), shares.contains(&0));
        panicking::fail_on_ranks(&what, "an update on every rank", &failure, law, empty)
    });
    for (rank, (outcome, &share)) in outcomes.iter().zip(shares).enumerate() {
        if outcome.sums.samples != share as u64 {
            let what = format!("{given}: rank {rank} works on another number of samples");
            let law = "a rank works on its own share, and returns its sums";
            fail(&what, &share.to_string(), &outcome.sums.samples.to_string(), law);
        }
    }
    let owners = shares.iter().enumerate().flat_map(|(rank, &share)| vec![(rank, share); share]);
    let counted = counted(&model()?, &outcomes[0].weights, samples)?;
    let found = taking_part(&counted);
    let all: Vec<usize> = (0..samples).collect();
    if found != all {
        let got = format!("{}{}", in_words(&found), missing(&counted, &found, shares));
        let law = "every sample of the batch is in exactly one shard, and all shards in the update";
        fail(&format!("{given}: the wrong samples take part"), &in_words(&all), &got, law);
    }
    for (sample, (counts, (rank, share))) in counted.into_iter().zip(owners).enumerate() {
        let divisor = RATE / counts;
        let equal = (divisor / samples as f64 - 1.0).abs() <= 1e-9;
        if !equal {
            let times = multiple(samples as f64 / divisor);
            let what =
                format!("{given}: sample {sample}, rank {rank}'s, counts {times} what it should");
            let wanted = format!("its gradient divided by {samples}");
            let got = format!("divided by {}{}", short(divisor), guess(divisor, share, shares));
            let law = "sum, then divide once, by the whole batch: every sample counts the same";
            fail(&what, &wanted, &got, law);
        }
    }
    let weights: Vec<Weights> = outcomes.iter().map(|outcome| outcome.weights.clone()).collect();
    replicas::agree(&given, &weights)?;
    let alone = model()?;
    sgd(alone.parameters(), &alone.gradients(&batch)?.gradients, RATE, samples)?;
    let what = format!("{given}: other weights than on one device");
    let law = "k devices equal one, whatever their shares";
    replicas::equal(&what, &alone.parameters().snapshot()?, &weights[0], law)?;
    let mut start = 0;
    for (rank, (outcome, &share)) in outcomes.iter().zip(shares).enumerate() {
        let expected = model()?.gradients(&tracer::batch(start..start + share)?)?.sums;
        the_sums_are_those_of_the_shard(&format!("{given}: rank {rank}"), expected, outcome.sums);
        start += share;
    }
    Ok(())
}

fn the_sums_are_those_of_the_shard(rank: &str, expected: BatchSums, got: BatchSums) {
    let equal = (got.loss - expected.loss).abs() <= 1e-9 * expected.loss;
    if !equal || got.correct != expected.correct {
        let [expected, got] = [expected, got].map(|BatchSums { loss, correct, .. }| {
            format!("loss {}, {correct} correct answers", short(loss))
        });
        let law = "a rank returns the sums of its own shard, with the weights before the update";
        fail(
            &format!("{rank} returns another loss or another number of correct answers"),
            &expected,
            &got,
            law,
        );
    }
}

fn a_step_with_unequal_shares_is_that_of_one_device(answer: Answer) -> Outcome {
    // Fast and slow, either way round; equal ones; three that differ, whose sum depends on the order; devices that get
    // nothing; one device.
    [&[6, 2][..], &[2, 6], &[4, 4], &[5, 3, 2], &[7, 3, 0], &[0, 5], &[0, 0, 1], &[5]]
        .iter()
        .try_for_each(|shares| check_step(answer, shares))
}

fn errors_are_passed_on(answer: Answer) -> Outcome {
    ranks::errors_are_passed_on(3, Sends::Buffered, move |rank| {
        let model = Classifier::new(SEED, rank.device())?;
        (answer.step)(rank, &model, &tracer::batch(0..6)?, &[3, 2, 1], RATE)
    })
}
