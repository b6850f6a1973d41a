//! Networks in training over five steps, against one device.

use concise_wrapper::model::Step;
use concise_wrapper::weights::{Named, Snapshot, Weights};
use ops::backward::is_recorded;

use super::{SEED, executor, fixed, on_ranks};
use crate::prelude::*;

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

/// What a run came to.
struct Run {
    /// Before the first step, and after each.
    weights: Vec<Snapshot>,
    /// Of the first step.
    gradients: Snapshot,
    sums: Vec<BatchSums>,
    evaluated: BatchSums,
}

/// Trains, and joins the parts of weights and gradients.
fn five_steps(
    model: &impl Model,
    momentum: f64,
    join: impl Fn(Snapshot) -> candle_core::Result<Snapshot>,
) -> Result<Run, Error> {
    let shares = ShardLoader::new(&images(), BATCH, 5, DType::F64, model.hosts());
    let mut sgd = Sgd::new(Momentum { momentum, weight_decay: momentum * 1e-2 });
    let mut weights = vec![join(model.weights().snapshot()?)?];
    let (mut sums, mut gradients) = (Vec::new(), None);
    for share in (1..).flat_map(|epoch| shares.epoch(epoch)).take(STEPS) {
        let share = share.unwrap();
        let step = model.backward(&share)?;
        if gradients.is_none() {
            let names = model.weights().parameters.iter().map(|named| named.name.clone());
            gradients = Some(join(names.zip(step.gradients.iter().cloned()).collect())?);
        }
        sgd.step(model.weights(), &step.gradients, 0.2, share.samples)?;
        weights.push(join(model.weights().snapshot()?)?);
        sums.push(step.sums.read()?);
    }
    let evaluated = model.evaluate(&images())?;
    Ok(Run { weights, gradients: gradients.unwrap(), sums, evaluated })
}

fn alone<M: ModuleT>(network: &Network<M>, momentum: f64) -> Run {
    five_steps(network, momentum, Ok).unwrap()
}

/// Bytes of the parameters of a rank: of those that are split, and of those that every rank has.
#[derive(Debug, PartialEq)]
struct Memory {
    split: usize,
    replicated: usize,
}

/// The same in parts on each replica of a mesh; each rank's memory.
fn compare(alone: &Run, mesh: Mesh, momentum: f64, layers: &Layers) -> Vec<Memory> {
    let outcomes = on_ranks(mesh.devices(), |rank, _| {
        let settings = (SAMPLE.as_slice(), DType::F64);
        let (model, group) = executor(rank, mesh, layers, settings)?;
        let part = layers.build_part(0..layers.len(), SEED, DType::F64, &Device::Cpu, &group)?;
        let logits = part.forward_training(&fixed("images", &[2, 1, 28, 28]))?;
        assert!(is_recorded(&logits), "its backward pass is not left to candle");
        let run = five_steps(&model, momentum, |mine| layers.join(mine, &group))?;
        // What all ranks hold, each of its own.
        let held = model.weights().snapshot()?;
        let whole = |name: &str| run.weights[0].iter().find(|(other, _)| other == name).unwrap();
        let is_whole = |(name, own): &(String, candle_core::Tensor)| {
            mesh.tensor > 1 && own.dims() == whole(name).1.dims()
        };
        let (replicated, split): (Snapshot, Snapshot) = held.into_iter().partition(is_whole);
        let bytes = |part: &Snapshot| {
            let named = part.iter().cloned().map(|(name, tensor)| Named { name, tensor });
            named.map(|named| named.bytes()).sum()
        };
        let memory = Memory { split: bytes(&split), replicated: bytes(&replicated) };
        Ok((run, WeightsHash::new(&replicated)?, memory))
    });
    let mut worst: f64 = 0.0;
    for (run, replicated, _) in &outcomes {
        assert_eq!(*replicated, outcomes[0].1, "what all ranks hold is equal on all");
        let hash = |weights: &Snapshot| WeightsHash::new(weights).unwrap();
        assert_eq!(hash(&run.weights[0]), hash(&alone.weights[0]), "initial weights");
        worst = worst.max(largest_difference(&run.gradients, &alone.gradients).unwrap());
        for (step, (here, there)) in run.weights.iter().zip(&alone.weights).enumerate() {
            let difference = largest_difference(here, there).unwrap();
            assert!(difference < 1e-10, "{mesh}, step {step}: {difference:.1e}");
            let first = hash(&outcomes[0].0.weights[step]);
            assert_eq!(hash(here), first, "every rank gathers the same");
            worst = worst.max(difference);
        }
        let sums = run.sums.iter().zip(&alone.sums);
        for (here, there) in sums.chain([(&run.evaluated, &alone.evaluated)]) {
            assert_eq!((here.samples, here.correct), (there.samples, there.correct));
            assert!((here.loss - there.loss).abs() < 1e-10 * there.loss, "{here:?} {there:?}");
        }
    }
    println!("{mesh}: differences up to {worst:.1e}");
    assert!(worst < 1e-10, "{mesh}: {worst:.1e}");
    let moved = largest_difference(&alone.weights[STEPS], &alone.weights[0]).unwrap();
    assert!(moved > 1e-3, "training that changes nothing shows nothing: {moved:.1e}");
    outcomes.into_iter().map(|(_, _, memory)| memory).collect()
}

/// One to four layers: the last by columns, by rows, by columns, by rows; widths that do not divide; and replicas.
#[test]
fn a_dense_stack_on_ranks_is_the_stack() {
    for widths in
        [&[PIXELS, 33, 10][..], &[PIXELS, 30, 17, 10], &[PIXELS, 19, 23, 9, 10], &[PIXELS, 10]]
    {
        let layers = Layers::dense(widths).unwrap();
        let network = layers.build(0..layers.len(), SEED, DType::F64, &Device::Cpu).unwrap();
        let alone = alone(&network, 0.9);
        let whole: usize = network.weights().parameter_bytes();
        // The biases of the layers by rows.
        let replicated = 8 * widths[1..].iter().skip(1).step_by(2).sum::<usize>();
        for mesh in ["1x1x1", "1x1x2", "1x1x3", "1x1x4", "2x1x2"] {
            let mesh: Mesh = mesh.parse().unwrap();
            let held = compare(&alone, mesh, 0.9, &layers);
            let replicated = if mesh.tensor == 1 { 0 } else { replicated };
            assert!(held.iter().all(|held| held.replicated == replicated), "{held:?}");
            let split: usize = held.iter().map(|held| held.split).sum();
            assert_eq!(split / mesh.data + replicated, whole, "all parts together, once");
            let widest = held.iter().map(|held| held.split + held.replicated).max().unwrap();
            // 10 columns in 4 parts: 3.
            assert!(widest as f64 <= 1.21 * whole as f64 / mesh.tensor as f64, "{held:?}");
        }
    }
}

/// In f32 five steps prove nothing: one does.
#[test]
fn in_f32_a_step_is_close() {
    let step = |model: &dyn Fn(&LocalBatch) -> Result<Step, Error>, weights: &Weights| {
        let shares = ShardLoader::new(&images(), BATCH, 5, DType::F32, Shards::WHOLE);
        let share = shares.epoch(1).next().unwrap().unwrap();
        let gradients = model(&share)?.gradients;
        Sgd::new(Momentum::default()).step(weights, &gradients, 0.2, share.samples)?;
        Ok::<_, Error>(())
    };
    let layers = Layers::dense(&[PIXELS, 33, 17, 10]).unwrap();
    let network = layers.build(0..layers.len(), SEED, DType::F32, &Device::Cpu).unwrap();
    step(&|share| network.backward(share), network.weights()).unwrap();
    let expected = network.weights().snapshot().unwrap();
    for ranks in [2, 3] {
        let differences = on_ranks(ranks, |rank, _| {
            let (mesh, settings) = (Mesh::tensor(ranks), (SAMPLE.as_slice(), DType::F32));
            let (model, group) = executor(rank, mesh, &layers, settings)?;
            step(&|share| model.backward(share), model.weights())?;
            let whole = layers.join(model.weights().snapshot()?, &group)?;
            Ok(largest_difference(&whole, &expected)?)
        });
        assert!(differences.iter().all(|&difference| difference < 1e-5), "{differences:?}");
    }
}
