//! Chapter 4, `book/src/ch04-data-parallel.md`: accuracy against learning rate and number of devices.
//!
//! A small experiment, compared with the same training on one device without ranks.

use std::sync::Arc;

use crate::experiment::{Experiment, Row, Run};
use crate::prelude::*;
use datasets::{Batch, Split, synthetic};
use harness::lock::locked;
use params_and_allreduce::thread::RankFailure;
use split_batch::split_batch;

/// An experiment, rates and numbers of devices; a row for each pair.
pub type Answer = fn(&Experiment, &[f64], &[usize]) -> Result<Vec<Row>, RankFailure<Error>>;

/// The laws of an answer.
pub const LAWS: &[Law<Answer>] = laws![
    there_is_a_row_for_every_rate_on_every_number_of_devices,
    a_row_does_not_depend_on_the_number_of_devices,
    a_row_does_not_depend_on_the_rows_before_it,
    errors_are_passed_on
];

const RATES: [f64; 3] = [0.01, 0.2, 0.5];
const DEVICES: [usize; 3] = [1, 2, 3];

/// Garments, in batches that three devices cannot share equally; the last of an epoch is shorter.
fn experiment() -> Result<Experiment> {
    let test = synthetic::dataset(Split::Test, 100);
    let all: Vec<u32> = (0..100).collect();
    Ok(Experiment {
        train: synthetic::dataset(Split::Train, 180),
        test: test.batch(&all, DType::F64)?,
        global_batch: 50,
        epochs: 4,
        seed: 7,
        runs: Arc::default(),
        fails: None,
        went_on: Arc::default(),
    })
}

/// The answer's table and the runs that it made.
fn table(answer: Answer, rates: &[f64], devices: &[usize]) -> Result<(Vec<Row>, Vec<Run>)> {
    let experiment = experiment()?;
    let runs = Arc::clone(&experiment.runs);
    let samples = experiment.epochs * experiment.train.len();
    let asked = (rates.to_vec(), devices.to_vec());
    let rows = within("the experiment", move || {
        answer(&experiment, &asked.0, &asked.1).map_err(|failure| failure.to_string())
    });
    let rows =
        rows.unwrap_or_else(|failure| panic!("rates {rates:?} on {devices:?} devices: {failure}"));
    let runs = locked(&runs).clone();
    let in_words = |mut devices: Vec<usize>| {
        if devices.is_empty() {
            return "no run".to_owned();
        }
        devices.sort_unstable();
        let devices: Vec<String> = devices.iter().map(usize::to_string).collect();
        format!("runs on {} devices", devices.join(", "))
    };
    let expected = in_words(rates.iter().flat_map(|_| devices).copied().collect());
    let got = in_words(runs.iter().map(|run| run.devices).collect());
    if got != expected {
        let law = "one run for each row, on as many devices as the row says";
        fail("other runs than asked for", &expected, &got, law);
    }
    if let Some(run) = runs.iter().find(|run| run.devices > 1 && run.messages == 0) {
        let what = format!("{} devices send each other no message", run.devices);
        let law = "each device works on its shard, and an all-reduce adds up the gradients";
        fail(&what, "an all-reduce in every step", "0 messages", law);
    }
    if let Some(run) = runs.iter().find(|run| run.samples != samples) {
        let what = format!(
            "k = {}: gradients of {} samples, added up over the devices",
            run.devices, run.samples
        );
        let expected = format!("{samples}: every training image in every epoch, on one device");
        let law = "each rank computes the gradients of its own shard, and of no other";
        fail(&what, &expected, &run.samples.to_string(), law);
    }
    Ok((rows, runs))
}

fn on_one_device(experiment: &Experiment, learning_rate: f64) -> Result<Row> {
    in_epochs(experiment, learning_rate, 0..experiment.epochs)
}

/// Trains on one device in the given epochs.
fn in_epochs(
    experiment: &Experiment,
    learning_rate: f64,
    epochs: impl IntoIterator<Item = usize>,
) -> Result<Row> {
    on_replicas(experiment, learning_rate, &[experiment.seed], epochs)
}

/// The measurement of the first of several replicas that start from these seeds, computed in one thread.
fn on_replicas(
    experiment: &Experiment,
    learning_rate: f64,
    seeds: &[u64],
    epochs: impl IntoIterator<Item = usize>,
) -> Result<Row> {
    let devices = seeds.len();
    let replicas = seeds.iter().map(|&seed| Classifier::new(seed, &Device::Cpu));
    let replicas = replicas.collect::<Result<Vec<_>>>()?;
    for epoch in epochs {
        for batch in experiment.batches(epoch)? {
            let shards = split_batch(&batch.images, &batch.labels, devices)?;
            let local = replicas.iter().zip(shards).map(|(model, (images, labels))| {
                Ok(model.gradients(&Batch { images, labels })?.gradients)
            });
            let local = local.collect::<Result<Vec<_>>>()?;
            let mut sum = local[0].clone();
            for gradients in &local[1..] {
                for (sum, gradient) in sum.iter_mut().zip(gradients) {
                    *sum = (&*sum + gradient)?;
                }
            }
            for model in &replicas {
                sgd(model.parameters(), &sum, learning_rate, batch.len())?;
            }
        }
    }
    let sums = replicas[0].evaluate(&experiment.test)?;
    Ok(Row { learning_rate, devices, loss: sums.mean_loss(), accuracy: sums.accuracy() })
}

fn same(a: &Row, b: &Row) -> bool {
    (a.loss - b.loss).abs() <= 1e-9 * b.loss && (a.accuracy - b.accuracy).abs() <= 1e-9
}

/// A guess at the reason for a wrong row, and the law that it breaks.
fn guess(got: &Row) -> Result<(&'static str, &'static str)> {
    const EQUAL: &str = "at the same global batch and the same rate, k devices equal one";
    const EPOCHS: &str = "epoch 0 comes first, and every epoch has another order";
    let (experiment, rate, devices) = (experiment()?, got.learning_rate, got.devices);
    let (epochs, images) = (experiment.epochs, experiment.test.len() as f64);
    let right = on_one_device(&experiment, rate)?;
    let near = (got.loss - right.loss).abs() <= 1e-5 * right.loss;
    if near && (got.accuracy - right.accuracy).abs() < 0.1 {
        return Ok(("a sum in f32 gives: the loss is right to a few digits", EQUAL));
    }
    let summed = Row { loss: images * right.loss, ..right };
    let global_batch = experiment.global_batch * devices;
    let larger = Experiment { global_batch, ..experiment.clone() };
    let all: Vec<u32> = (0..experiment.train.len() as u32).collect();
    let seen = Experiment { test: experiment.train.batch(&all, DType::F64)?, ..experiment.clone() };
    let a_seed_each: Vec<u64> = (experiment.seed..).take(devices).collect();
    let guesses = [
        (on_one_device(&experiment, rate * devices as f64)?, ("k times the rate gives", EQUAL)),
        (on_one_device(&larger, rate)?, ("k times the batch gives", EQUAL)),
        (
            on_one_device(&seen, rate)?,
            (
                "is measured on the training images",
                "a model is judged by images that it has not seen",
            ),
        ),
        (
            on_replicas(&experiment, rate, &a_seed_each, 0..epochs)?,
            ("replicas give that start apart", "all replicas start from the weights of one seed"),
        ),
        (
            Row { accuracy: 100.0 * right.accuracy, ..right },
            ("a percentage gives", "an accuracy is a share of the images, 0 to 1"),
        ),
        (summed, ("the loss is as a sum over the test images", "a loss to compare is a mean")),
        (in_epochs(&experiment, rate, 1..=epochs)?, ("epochs 1, 2, … give", EPOCHS)),
        (in_epochs(&experiment, rate, vec![0; epochs])?, ("epoch 0, over and over, gives", EPOCHS)),
    ];
    let fits = guesses.iter().find(|(row, _)| same(got, row));
    let alone = "one device makes every step of every epoch, from fresh weights, and then measures";
    let law = if devices > 1 { EQUAL } else { alone };
    Ok(fits.map_or(("", law), |(_, guess)| *guess))
}

fn there_is_a_row_for_every_rate_on_every_number_of_devices(answer: Answer) -> Result<()> {
    let (rows, _) = table(answer, &RATES, &[1, 2])?;
    let settings = |row: &Row| format!("rate {}, k = {}", row.learning_rate, row.devices);
    let got: Vec<String> = rows.iter().map(settings).collect();
    let pairs =
        RATES.iter().flat_map(|rate| [1, 2].map(|devices| format!("rate {rate}, k = {devices}")));
    let expected: Vec<String> = pairs.collect();
    if got != expected {
        let law =
            "the rows are ordered by rate, and for each rate by the number of devices as asked for";
        fail("other rows than asked for", &expected.join("\n"), &got.join("\n"), law);
    }
    Ok(())
}

fn a_row_does_not_depend_on_the_rows_before_it(answer: Answer) -> Result<()> {
    let (together, _) = table(answer, &RATES[1..], &[1])?;
    let (alone, _) = table(answer, &RATES[2..], &[1])?;
    let (Some(together), Some(alone)) = (together.last(), alone.last()) else {
        panic!("a table without rows");
    };
    if !same(together, alone) {
        let what = format!("rate {} gives something else after other runs than alone", RATES[2]);
        let law = "every run starts from fresh weights";
        fail(&what, &alone.to_string(), &together.to_string(), law);
    }
    Ok(())
}

fn a_row_does_not_depend_on_the_number_of_devices(answer: Answer) -> Result<()> {
    let experiment = experiment()?;
    for learning_rate in RATES {
        let expected = on_one_device(&experiment, learning_rate)?;
        for devices in DEVICES {
            let (rows, runs) = table(answer, &[learning_rate], &[devices])?;
            for row in rows {
                if !same(&row, &expected) {
                    let what = format!("rate {learning_rate}, k = {devices}: another result");
                    let (guess, law) = guess(&row)?;
                    let got = match guess {
                        "" => row.to_string(),
                        what => format!("{row}\nthis is what {what}"),
                    };
                    fail(&what, &expected.to_string(), &got, law);
                }
            }
            if runs.iter().any(|run| !run.replicas_agree) {
                let what = format!("rate {learning_rate}, k = {devices}: replicas part");
                let law = "all make the same update: their sums are the same, to the last bit";
                let got = "weights that differ, if only by rounding";
                fail(&what, "equal weights on all devices, before every step", got, law);
            }
        }
    }
    Ok(())
}

fn errors_are_passed_on(answer: Answer) -> Result<()> {
    let law = "a run that fails is an error, on each of its ranks: not a row less, and not a row of the other ranks";
    let experiment = Experiment { fails: Some(1), epochs: 1, ..experiment()? };
    let went_on = Arc::clone(&experiment.went_on);
    let rows = within("the experiment, on a device that fails", move || {
        answer(&experiment, &RATES[..1], &[1, 3]).map_err(|failure| failure.to_string())
    });
    let what = "3 devices, of which device 1 fails";
    if let Ok(rows) = rows {
        fail(what, "an error", &format!("{} rows", rows.len()), law);
    }
    if let Some(rank) = locked(&went_on).first() {
        let what = format!("{what}: rank {rank} trains without it");
        fail(&what, "an error", "a result", law);
    }
    Ok(())
}
