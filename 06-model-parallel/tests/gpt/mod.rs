//! A GPT on every mesh against one device: numbers, mistakes, bytes and refusals.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the right answer")]

mod mistakes;
mod numbers;
mod refusals;

use concise_wrapper::optimizer::AdamW;
use concise_wrapper::weights::Snapshot;
use datasets::Batch;
use model_parallel::Gpt;

use crate::pipelines::training::{checked_on, equal_on_all, on_ranks, on_the_mesh};
use crate::prelude::*;
use crate::random_numbers::Random;

/// Eight layers. The vocabulary divides by 2 and by 4.
pub const SIZES: Gpt = Gpt { vocabulary: 20, context: 5, width: 16, heads: 4, blocks: 3 };
/// The texts of a batch.
const TEXTS: usize = 7;
const STEPS: usize = 5;
const RATE: f64 = 0.01;

fn gpt() -> Layers {
    Layers::gpt(&SIZES).unwrap()
}

/// The batch of a step: random texts in micro-batches, of which the last are empty if there are more micro-batches than texts.
pub fn texts(step: usize, micro_batches: usize) -> LocalBatch {
    let (mut random, length) = (Random(step as u64), SIZES.context + 1);
    // Some tokens never occur, and others often do.
    let mut token = || random.below(SIZES.vocabulary - 3).min(random.below(SIZES.vocabulary));
    let tokens: Vec<u32> = (0..TEXTS * length).map(|_| token() as u32).collect();
    let tokens = Tensor::from_vec(tokens, (TEXTS, length), &Device::Cpu).unwrap();
    let from = |first: usize| tokens.narrow(1, first, SIZES.context).unwrap().contiguous().unwrap();
    let shards = split_batch::split::split_batch(&from(0), &from(1), micro_batches).unwrap();
    let shards = shards.into_iter().map(|(images, labels)| Batch { images, labels });
    LocalBatch { shards: shards.collect(), samples: TEXTS * SIZES.context }
}

/// A way to train: a mesh, a schedule of its pipelines and the layers that begin a part, and so on.
#[derive(Clone)]
struct Way<'a> {
    layers: &'a Layers,
    mesh: Mesh,
    checked: Checked,
    begins: &'a str,
    by_shards: bool,
    dtype: DType,
    /// The number that the update divides by, if it is not the number of tokens.
    divisor: Option<usize>,
}

/// What a training came to: all parameters and moments after the last step, and the sums of each step.
struct Trained {
    values: Snapshot,
    sums: Vec<BatchSums>,
}

impl<'a> Way<'a> {
    fn new(
        layers: &'a Layers,
        mesh: &str,
        kind: Kind,
        begins: &'a str,
        micro_batches: usize,
    ) -> Self {
        let mesh: Mesh = mesh.parse().unwrap();
        let checked = checked_on(mesh, kind, micro_batches / mesh.data);
        Self { layers, mesh, checked, begins, by_shards: false, dtype: DType::F64, divisor: None }
    }

    /// The whole batch at once on one device.
    fn one_device(layers: &'a Layers) -> Self {
        Self::new(layers, "1x1x1", Kind::Naive, "", 1)
    }

    /// The parts of a mesh, without stages.
    fn parts(layers: &'a Layers, ranks: usize) -> Self {
        Self::new(layers, &format!("1x1x{ranks}"), Kind::Naive, "", 1)
    }

    fn train(&self) -> Trained {
        let ended = on_ranks(self.mesh.devices(), |rank| self.on_rank(rank)).unwrap();
        let (whole, mut sums): (Vec<_>, Vec<_>) = ended.into_iter().unzip();
        let mut whole: Vec<Snapshot> = whole.into_iter().flatten().collect();
        assert_eq!(whole.len(), self.mesh.data);
        assert!(whole.iter().all(|it| hash(it) == hash(&whole[0])), "replicas are equal");
        assert!(sums.iter().all(|it| *it == sums[0]), "all ranks know the loss");
        let mut values = whole.swap_remove(0);
        values.sort_by(|(a, _), (b, _)| a.cmp(b));
        Trained { values, sums: sums.swap_remove(0) }
    }

    /// Trains on a rank. Also checks that what every rank of a tensor-parallel group has is equal on all of them.
    fn on_rank(&self, rank: &Rank) -> Result<(Option<Snapshot>, Vec<BatchSums>), Error> {
        let (executor, group) = self.executor(rank)?;
        let mut adamw = AdamW::default();
        let mut sums = Vec::new();
        for step in 0..STEPS {
            let batch = texts(step, executor.hosts().of);
            let (shards, samples) = (batch.shards[executor.hosts().held].to_vec(), batch.samples);
            let share = LocalBatch { shards, samples: self.divisor.unwrap_or(samples) };
            sums.push(executor.step(&share, &mut adamw, RATE)?.sums.read()?);
        }
        let mine = executor.weights().snapshot()?;
        equal_on_all(self.layers, &mine, &group)?;
        let mut values = self.layers.join(mine, &group)?;
        let moments = adamw.state(executor.weights())?;
        for moment in ["mean", "square"] {
            let of = |(name, value): &(String, Tensor)| {
                let name = name.strip_prefix(moment)?.strip_prefix('/')?;
                Some((name.to_owned(), value.clone()))
            };
            let joined = self.layers.join(moments.iter().filter_map(of).collect(), &group)?;
            values.extend(joined.into_iter().map(|(name, it)| (format!("{moment} of {name}"), it)));
        }
        Ok((executor.whole(values)?, sums))
    }

    fn executor(&self, rank: &Rank) -> Result<(Executor<Whole<Stage>>, SharedCommunicator), Error> {
        let settings = Settings { by_shards: self.by_shards, ..Settings::of(self.layers) };
        let (layers, sample) = ((self.layers, self.begins), (&[SIZES.context][..], self.dtype));
        on_the_mesh(rank, self.mesh, &self.checked, layers, sample, settings)
    }
}

fn hash(values: &Snapshot) -> String {
    WeightsHash::new(values).unwrap().to_string()
}

/// The largest difference of parameters and moments, relative to the largest entry of each.
fn difference(found: &Trained, expected: &Trained) -> f64 {
    for (found, expected) in found.sums.iter().zip(&expected.sums) {
        assert_eq!(found.samples, expected.samples, "the tokens of a batch");
    }
    largest_difference(&found.values, &expected.values).unwrap()
}
