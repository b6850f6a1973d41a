//! Networks in training over five steps, against one device.

use candle_core::{DType, Device, ModuleT, Result as TensorResult, Tensor};
use concise_wrapper::batch_norm::Norms;
use concise_wrapper::model::Step;
use concise_wrapper::optimizer::{Momentum, Sgd};
use concise_wrapper::weights::{Snapshot, Weights};
use concise_wrapper::{Error, Model, Network, lenet as stage5};
use datasets::loader::Epochs as _;
use datasets::{CLASSES, Dataset, PIXELS};
use harness::records::BatchSums;
use model_parallel::layers::{Layers, Stage};
use model_parallel::tensor_parallel::dense::DenseStack;
use model_parallel::tensor_parallel::lenet::{Channels, LeNet};
use model_parallel::tensor_parallel::{Group, Memory, Parts, TensorParallel};
use ops::backward::is_recorded;
use ops::difference::largest_difference;
use ops::weights_hash::WeightsHash;
use split_batch::loader::Shards;
use split_batch::loader::{LocalBatch, ShardLoader};

use super::{fixed, on_ranks};

const SEED: u64 = 3;
/// Three steps an epoch, of 7, 7 and 2 samples.
const BATCH: usize = 7;
const STEPS: usize = 5;

/// Noise as images: every pixel of every channel counts.
pub fn images() -> Dataset {
    let count = 2 * BATCH + 2;
    let image = |number: usize| {
        let values = fixed(&format!("image {number}"), &[PIXELS]).to_vec1::<f64>().unwrap();
        std::array::from_fn(|pixel| (values[pixel] * 60.0 + 128.0) as u8)
    };
    let labels = (0..).map(|index| index % CLASSES as u8).take(count).collect();
    Dataset::new((0..count).map(image).collect(), labels).unwrap()
}

/// The stack on one device.
pub fn dense(widths: &[usize], seed: u64) -> Network<Stage> {
    let layers = Layers::dense(widths).unwrap();
    layers.build(0..layers.len(), seed, DType::F64, &Device::Cpu).unwrap()
}

/// What a run came to.
struct Run {
    /// Before the first step, and after each.
    weights: Vec<Snapshot>,
    /// Of the first step.
    gradients: Snapshot,
    sums: Vec<BatchSums>,
    evaluated: BatchSums,
}

fn five_steps(
    model: &impl Model,
    momentum: f64,
    whole: impl Fn() -> TensorResult<Snapshot>,
    join: impl Fn(Snapshot) -> TensorResult<Snapshot>,
) -> Result<Run, Error> {
    let shares = ShardLoader::new(&images(), BATCH, 5, DType::F64, model.hosts());
    let mut sgd = Sgd::new(Momentum { momentum, weight_decay: momentum * 1e-2 });
    let (mut weights, mut sums, mut gradients) = (vec![whole()?], Vec::new(), None);
    for share in (1..).flat_map(|epoch| shares.epoch(epoch)).take(STEPS) {
        let share = share.unwrap();
        let step = model.backward(&share)?;
        if gradients.is_none() {
            let names = model.weights().parameters.iter().map(|named| named.name.clone());
            gradients = Some(join(names.zip(step.gradients.iter().cloned()).collect())?);
        }
        sgd.step(model.weights(), &step.gradients, 0.2, share.samples)?;
        weights.push(whole()?);
        sums.push(step.sums.read()?);
    }
    let evaluated = model.evaluate(&images())?.unwrap();
    Ok(Run { weights, gradients: gradients.unwrap(), sums, evaluated })
}

fn alone<M: ModuleT>(network: &Network<M>, momentum: f64) -> Run {
    five_steps(network, momentum, || network.weights().snapshot(), Ok).unwrap()
}

/// The same on `ranks` ranks; each rank's memory.
fn compare<M: ModuleT + 'static>(
    alone: &Run,
    ranks: usize,
    momentum: f64,
    build: impl Fn(&Parts<'_>) -> TensorResult<M> + Clone + Send + Sync + 'static,
) -> Vec<Memory> {
    let outcomes = on_ranks(ranks, |group| {
        let model = in_parts(&group, &build)?;
        let joined = in_parts(&group, &build)?;
        // Gradients are cut as their tensors are.
        let join = |gradients: Snapshot| {
            joined.network().weights().set(&gradients)?;
            joined.whole_weights()
        };
        let logits = model.forward(&fixed("images", &[2, 1, 28, 28]))?;
        assert!(is_recorded(&logits), "its backward pass is not left to candle");
        let run = five_steps(&model, momentum, || model.whole_weights(), join)?;
        // What all ranks hold, each of its own.
        let whole = run.weights[0].iter().map(|(name, value)| (name, value.dims().to_vec()));
        let held = model.network().weights().snapshot()?;
        let replicated: Snapshot = whole
            .zip(held)
            .filter_map(|((_, dims), own)| (own.1.dims() == dims).then_some(own))
            .collect();
        Ok((run, WeightsHash::new(&replicated)?, model.memory()))
    });
    let mut worst: f64 = 0.0;
    for (run, replicated, _) in &outcomes {
        assert_eq!(*replicated, outcomes[0].1, "what all ranks hold is equal on all");
        let hash = |weights: &Snapshot| WeightsHash::new(weights).unwrap();
        assert_eq!(hash(&run.weights[0]), hash(&alone.weights[0]), "initial weights");
        worst = worst.max(largest_difference(&run.gradients, &alone.gradients).unwrap());
        for (step, (here, there)) in run.weights.iter().zip(&alone.weights).enumerate() {
            let difference = largest_difference(here, there).unwrap();
            assert!(difference < 1e-10, "{ranks} ranks, step {step}: {difference:.1e}");
            assert_eq!(
                hash(here),
                hash(&outcomes[0].0.weights[step]),
                "every rank gathers the same"
            );
            worst = worst.max(difference);
        }
        let sums = run.sums.iter().zip(&alone.sums);
        for (here, there) in sums.chain([(&run.evaluated, &alone.evaluated)]) {
            assert_eq!((here.samples, here.correct), (there.samples, there.correct));
            assert!((here.loss - there.loss).abs() < 1e-10 * there.loss, "{here:?} {there:?}");
        }
    }
    println!("{ranks} ranks: differences up to {worst:.1e}");
    assert!(worst < 1e-10, "{ranks} ranks: {worst:.1e}");
    let moved = largest_difference(&alone.weights[STEPS], &alone.weights[0]).unwrap();
    assert!(moved > 1e-3, "training that changes nothing shows nothing: {moved:.1e}");
    outcomes.into_iter().map(|(_, _, memory)| memory).collect()
}

pub fn in_parts<M: ModuleT + 'static>(
    group: &Group,
    build: &(impl Fn(&Parts<'_>) -> TensorResult<M> + Clone + Send + Sync + 'static),
) -> Result<TensorParallel<M>, Error> {
    let build = build.clone();
    TensorParallel::new(SEED, DType::F64, group.clone(), move |parts, _| build(parts))
}

#[test]
fn lenet_on_ranks_is_lenet() {
    let network =
        Network::new(SEED, DType::F64, &Device::Cpu, |vb, _| stage5::LeNet::new(vb)).unwrap();
    let alone = alone(&network, 0.9);
    // None of 20, 50, 128 and 10 divides by 3; 50 and 10 do not divide by 4.
    let whole = 8 * (180 + 20 + 25_000 + 50 + 102_400 + 128 + 1_280 + 10);
    for (channels, replicated) in [(Channels::Gathered, 8 * 128), (Channels::Summed, 8 * 60)] {
        for ranks in [1, 2, 3, 4] {
            let held = compare(&alone, ranks, 0.9, move |parts| LeNet::new(channels, parts));
            assert!(held.iter().all(|held| held.replicated == replicated), "{held:?}");
            let split: usize = held.iter().map(|held| held.split).sum();
            assert_eq!(split + replicated, whole, "{channels:?}: all parts together, once");
            let widest = held.iter().map(Memory::total).max().unwrap();
            // 20 channels in 3 parts: 7. 50 in 4: 13.
            assert!(widest as f64 <= 1.06 * whole as f64 / ranks as f64 + 2e3, "{held:?}");
        }
    }
}

/// Two, three and four layers: the last by rows, by columns, by rows; widths that do not divide.
#[test]
fn a_dense_stack_on_ranks_is_the_stack() {
    for widths in
        [&[PIXELS, 33, 10][..], &[PIXELS, 30, 17, 10], &[PIXELS, 19, 23, 9, 10], &[PIXELS, 10]]
    {
        let alone = alone(&dense(widths, SEED), 0.0);
        for ranks in [1, 2, 3, 4] {
            compare(&alone, ranks, 0.0, move |parts| DenseStack::new(widths, parts));
        }
    }
}

#[test]
fn whole_weights_go_to_any_number_of_ranks() {
    const WIDTHS: &[usize] = &[PIXELS, 11, 7, 10];
    let build = |parts: &Parts<'_>| DenseStack::new(WIDTHS, parts);
    let other: Snapshot = dense(WIDTHS, 8).weights().snapshot().unwrap();
    let expected = WeightsHash::new(&other).unwrap();
    for ranks in [1, 2, 3] {
        let hashes = on_ranks(ranks, |group| {
            let model = in_parts(&group, &build)?;
            assert_ne!(WeightsHash::new(&model.whole_weights()?)?, expected);
            model.set_whole_weights(&other)?;
            let wrong =
                [("dense0.weight".to_owned(), Tensor::zeros((2, 2), DType::F64, &Device::Cpu)?)];
            let refused = model.set_whole_weights(&wrong).unwrap_err().to_string();
            assert!(
                refused.starts_with("dense0.weight is F64 [784, 11], not F64 [2, 2]"),
                "{refused}"
            );
            let unknown = [("dense9.weight".to_owned(), wrong[0].1.clone())];
            assert!(model.set_whole_weights(&unknown).is_err());
            Ok(WeightsHash::new(&model.whole_weights()?)?)
        });
        assert!(hashes.iter().all(|&hash| hash == expected), "{ranks} ranks");
    }
}

/// In f32 five steps prove nothing: one does.
#[test]
fn in_f32_a_step_of_lenet_is_close() {
    let step = |model: &dyn Fn(&LocalBatch) -> Result<Step, Error>, weights: &Weights| {
        let shares = ShardLoader::new(&images(), BATCH, 5, DType::F32, Shards::WHOLE);
        let share = shares.epoch(1).next().unwrap().unwrap();
        let gradients = model(&share)?.gradients;
        Sgd::new(Momentum::default()).step(weights, &gradients, 0.2, share.samples)?;
        Ok::<_, Error>(())
    };
    let network =
        Network::new(SEED, DType::F32, &Device::Cpu, |vb, _| stage5::LeNet::new(vb)).unwrap();
    step(&|share| network.backward(share), network.weights()).unwrap();
    let expected = network.weights().snapshot().unwrap();
    for channels in [Channels::Gathered, Channels::Summed] {
        let differences = on_ranks(3, |group| {
            let build = move |parts: &Parts<'_>, _: &Norms| LeNet::new(channels, parts);
            let model = TensorParallel::new(SEED, DType::F32, group, build)?;
            step(&|share| model.backward(share), model.weights())?;
            Ok(largest_difference(&model.whole_weights()?, &expected)?)
        });
        assert!(differences.iter().all(|&difference| difference < 1e-5), "{differences:?}");
    }
}
