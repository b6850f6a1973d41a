//! The capstone, `cargo course run mine`: the trainings of chapters 4, 5 and 6 with the learner's answers in place of our code.
//!
//! A row of `PIECES` names a part of a training, and the exercises whose answers can do this part. The first of them that has
//! passed its check does the part, and our code does all other parts.

use std::any::Any;
use std::process::ExitCode;

use concise_wrapper::ddp::bucket::buckets;
use harness::records::seconds_per_epoch;
use model_parallel::layers::Layers as Stack;
use model_parallel::partition::cut;
use model_parallel::{Cost, Kind, Schedule};
use single_gpu::lenet::{LayerFunctions, Layers};
use split_batch::loader::EpochShare;

use super::data_parallel::{StepOf, Sums, WithSums, our_step, setting, step_with};
use super::ddp::{CAPS, REDUCTION, network, train_on};
use super::layers::{with_cross_entropy, with_pool_gradient};
use super::pipeline::{DEVICES, MICRO_BATCHES, OURS, Pipeline, checked, measure};
use super::prelude::*;
use super::{ch02_allreduce, ch02_owners, ch02_ring};
use super::{ch04_accuracy, ch04_batch_scaling, ch04_fused_allreduce, ch04_train_batch};
use super::{ch05_buckets, ch05_overlap, ch06_1f1b, ch06_balance};
use crate::scaling::{RateRule, Tuned};

/// The answers by the names of their exercises. An answer that is left out has a reason.
pub type Answers<'a> = &'a [(&'a str, Result<&'a dyn Any, &'a str>)];

/// The parts of the trainings, each with the exercises whose answers can do it.
const PIECES: [(&str, &[&str]); 12] = [
    ("gradient of pooling", &["ch01_pool_gradient"]),
    ("loss", &["ch01_cross_entropy"]),
    ("all-reduce", &["ch02_ring", "ch02_owners", "ch02_allreduce"]),
    ("samples of a rank", &["ch03_sampler"]),
    ("training step", &["ch04_train_batch"]),
    ("one sum for all", &["ch04_fused_allreduce"]),
    ("batch for each", &["ch04_batch_scaling"]),
    ("test accuracy", &["ch04_accuracy"]),
    ("DDP's buckets", &["ch05_buckets"]),
    ("DDP's backward pass", &["ch05_overlap"]),
    ("stages", &["ch06_balance"]),
    ("order of a stage", &["ch06_1f1b"]),
];

/// The program of the answers that passed.
pub fn main(answers: Answers<'_>) -> ExitCode {
    super::main(|| run(answers))
}

fn run(answers: Answers<'_>) -> Run {
    let (layers, is_plain) = layers(answers)?;
    let (data, options) = setting();
    // With the loops of chapter 1, an epoch takes several times as long.
    let options = TrainOptions { epochs: if is_plain { 3 } else { options.epochs }, ..options };
    let (images, epochs) = (counted(data.train.len(), "image"), counted(options.epochs, "epoch"));
    let all: Vec<char> = PIECES.iter().flat_map(|it| it.1).map(|it| mark(answers, it)).collect();
    let solved = all.iter().filter(|mark| **mark == '✓').count();
    paragraph(format_args!(
        "LeNet on 2 devices, {images}, {epochs}. You have solved {solved} of the {} with a part in it. A part is our code without a ✓:",
        counted(all.len(), "exercise"),
    ))?;
    for (piece, exercises) in PIECES {
        let exercises = exercises.iter().map(|name| format!("  {} {name}", mark(answers, name)));
        line(format_args!("  {piece:19}{}", exercises.collect::<String>()))?;
    }

    let with = |layers: LayerFunctions, model: &Lenet| {
        Ok::<_, TrainError>(Lenet::with_parameters(model.parameters().clone())?.with_layers(layers))
    };
    let sums = sums(answers)?;
    let [algorithm, same] = match sums {
        Some((_, same)) => [Algorithm::Native, same],
        None => [Algorithm::default(); 2],
    };
    let connected = |comm: &SharedCommunicator| -> SharedCommunicator {
        let with = |(sums, _)| Arc::new(WithSums { comm: comm.clone(), sums }) as _;
        sums.map_or_else(|| comm.clone(), with)
    };
    let own_step: Option<ch04_train_batch::Answer> = answer(answers, "ch04_train_batch")?;
    let fused: Option<ch04_fused_allreduce::Answer> = answer(answers, "ch04_fused_allreduce")?;
    let scaled: Option<ch04_batch_scaling::Answer> = answer(answers, "ch04_batch_scaling")?;
    let each: StepOf<'_> = &|comm, model, batch, rate| {
        let step = own_step.unwrap_or(train_batch);
        step(&Peer::new(connected(comm)), &with(layers, model)?, batch, rate, algorithm)
    };
    // Chapter 1 is in the first training only.
    let fast = LayerFunctions::from(Layers::Fast);
    let of_fused = if own_step.is_some() { fast } else { layers };
    let at_once: StepOf<'_> = &|comm, model, batch, rate| {
        let Some(sums) = fused else { return each(comm, model, batch, rate) };
        let sums: Sums<'_> = &|rank, tensors| sums(rank, tensors, algorithm);
        step_with(sums)(&connected(comm), &with(of_fused, model)?, batch, rate)
    };
    let large: StepOf<'_> = &|comm, model, batch, learning_rate| {
        let Some(step) = scaled else { return each(comm, model, batch, learning_rate) };
        let tuned = Tuned { batch_size: options.batch_size / 2, learning_rate };
        let (comm, model) = (connected(comm), with(fast, model)?);
        ch04_batch_scaling::step(step, &comm, model, batch, (tuned, RateRule::Keep))
    };

    // Each way to train: whether there is an answer for it, its parts of a batch, and its step.
    type Parts = fn(usize, usize) -> Shards;
    let ways: [(&str, bool, Parts, StepOf<'_>); 3] = [
        ("yours", own_step.is_some() || fused.is_none(), Shards::of_rank, each),
        ("yours, one sum for all", fused.is_some(), Shards::of_rank, at_once),
        ("yours, a batch for each device", scaled.is_some(), |_, _| Shards::WHOLE, large),
    ];
    let sampler: Option<EpochShare> = answer(answers, "ch03_sampler")?;
    let accuracy: Option<ch04_accuracy::Answer> = answer(answers, "ch04_accuracy")?;
    let mut trained = Vec::new();
    for (name, _, shards, step) in ways.into_iter().filter(|(_, answered, ..)| *answered) {
        let shards = |rank, ranks| {
            let ours = shards(rank, ranks);
            Shards { sampler: sampler.unwrap_or(ours.sampler), ..ours }
        };
        let mut yours = Training::of_lenet(name, 2, (&data, &options), shards, step)?;
        if let Some(answer) = accuracy {
            let work = ch04_accuracy::of_answer(answer, &data.test);
            yours.accuracy = ch04_accuracy::measure(2, &yours.weights[1], work)?.0;
        }
        trained.push(yours);
    }
    let (name, ours) = (format!("scratch-data-parallel, {same}"), our_step(same));
    trained.push(Training::of_lenet(&name, 2, (&data, &options), Shards::of_rank, &ours)?);
    let slow = " Your loops of chapter 1 are slower than the engine's layers.";
    let slow = if is_plain { slow } else { "" };
    let ours = [("ours", &trained[trained.len() - 1])];
    line("")?;
    show("", &trained, &[])?;
    paragraph(format_args!("\nLeNet: {}{slow}", conclusion(&trained[0], &ours)))?;
    let further = [("DDP", ddp(answers)), ("Pipeline", pipeline(answers))];
    further.into_iter().try_for_each(|(what, both)| {
        let Some([yours, ours]) = both? else { return Ok(()) };
        let [fast, fast_ours] = [&yours, &ours].map(|it| seconds_per_epoch(&it.records));
        let weights = conclusion(&yours, &[("ours", &ours)]);
        Ok(paragraph(format_args!("{what}: {weights} {fast:.2} s/epoch, ours {fast_ours:.2}."))?)
    })
}

/// Chapter 5's training with the learner's buckets and backward pass, and with ours. None without an answer.
fn ddp(answers: Answers<'_>) -> Run<Option<[Training; 2]>> {
    let own_buckets: Option<ch05_buckets::Answer> = answer(answers, "ch05_buckets")?;
    let backward: Option<ch05_overlap::Answer> = answer(answers, "ch05_overlap")?;
    if own_buckets.is_none() && backward.is_none() {
        return Ok(None);
    }
    let sizes = network(&Device::Cpu)?.weights().parameter_sizes();
    let parts = &own_buckets.unwrap_or(buckets)(&sizes, CAPS);
    let (yours, setting) = ("yours", (1024, options(1, 64, 0.1)));
    let yours = match backward {
        Some(answer) => train_on(yours, 2, setting, |network, comm| {
            ch05_overlap::model(network, comm, |pass: &_| answer(pass, parts))
        }),
        None => train_on(yours, 2, setting, |network, comm| {
            Ddp::new(network, comm, REDUCTION)?.with_buckets(parts)
        }),
    };
    let ours = |network, comm| Ddp::new(network, comm, REDUCTION);
    Ok(Some([yours?, train_on("ours", 2, setting, ours)?]))
}

/// Chapter 6's training by the learner's cut and lists, and by ours. None without an answer.
fn pipeline(answers: Answers<'_>) -> Run<Option<[Training; 2]>> {
    let own_cut: Option<ch06_balance::Answer> = answer(answers, "ch06_balance")?;
    let list: Option<ch06_1f1b::Answer> = answer(answers, "ch06_1f1b")?;
    if own_cut.is_none() && list.is_none() {
        return Ok(None);
    }
    let layers = &Stack::dense(&ch06_balance::WIDTHS)?;
    let costs: Vec<f64> = measure(layers)?.iter().map(Cost::total).collect();
    let micros: Vec<u64> = costs.iter().map(|cost| (1e6 * cost).round() as u64).collect();
    let theirs = (cut(&costs, DEVICES)?, Kind::OneFOneB.schedule(DEVICES, MICRO_BATCHES)?);
    let of_stage = |answer: ch06_1f1b::Answer| {
        Schedule::of(DEVICES, MICRO_BATCHES, |stage| answer(stage, DEVICES, MICRO_BATCHES))
    };
    let yours = (
        own_cut.map_or_else(|| theirs.0.clone(), |answer| answer(&micros, DEVICES)),
        list.map_or_else(|| theirs.1.clone(), of_stage),
    );
    let train = |name, (cut, schedule): (Vec<Range<usize>>, Schedule)| {
        let pipeline = Pipeline { layers, cut: &cut, checked: &checked(schedule)? };
        Run::Ok(pipeline.train(name, OURS)?.0)
    };
    Ok(Some([train("yours", yours)?, train("ours", theirs)?]))
}

/// Whether an answer has passed its check, in the marks of `cargo course list`.
fn mark(answers: Answers<'_>, name: &str) -> char {
    match answers.iter().find(|(exercise, _)| *exercise == name) {
        Some((_, Ok(_))) => '✓',
        Some((_, Err(why))) if why.starts_with("changed") => '?',
        _ => '·',
    }
}

/// The learner's answer to an exercise, if it has passed. Fails when the answer has another type than its run takes.
fn answer<A: Copy + 'static>(answers: Answers<'_>, name: &str) -> Result<Option<A>, String> {
    let Some((_, Ok(found))) = answers.iter().find(|(exercise, _)| *exercise == name) else {
        return Ok(None);
    };
    let found = found.downcast_ref::<A>();
    found.map_or_else(|| Err(format!("{name} has another type")), |answer| Ok(Some(*answer)))
}

/// The layers, and whether one of them has the learner's loops.
fn layers(answers: Answers<'_>) -> Result<(LayerFunctions, bool), String> {
    let fast = LayerFunctions::from(Layers::Fast);
    let pool = answer(answers, "ch01_pool_gradient")?;
    let layers = pool.map_or(fast, |answer| with_pool_gradient(fast, answer));
    let loss = answer(answers, "ch01_cross_entropy")?;
    let layers = loss.map_or(layers, |answer| with_cross_entropy(layers, answer));
    Ok((layers, pool.is_some() || loss.is_some()))
}

/// The learner's sums of chapter 2, and our all-reduce that adds up as they do.
fn sums(answers: Answers<'_>) -> Result<Option<(Sums<'static>, Algorithm)>, String> {
    // All ranks use the sums until the program ends.
    let ring = answer(answers, "ch02_ring")?.map(ch02_ring::sums);
    let ring = ring.map(|sums| (Box::leak(Box::new(sums)) as _, Algorithm::Ring));
    let owners = answer(answers, "ch02_owners")?.map(ch02_owners::sums);
    let owners = owners.map(|sums| (Box::leak(Box::new(sums)) as _, Algorithm::Naive));
    let naive = answer(answers, "ch02_allreduce")?.map(ch02_allreduce::sums);
    let naive = naive.map(|sums| (Box::leak(Box::new(sums)) as _, Algorithm::Naive));
    Ok(ring.or(owners).or(naive))
}
