//! Some steps of training: on one device, in a pipeline, and data-parallel.

use model_parallel::execute::{Measured, Settings};
use params_and_allreduce::thread::RankFailure;
use scratch_data_parallel::FixedTree;

use crate::layers;
use crate::prelude::*;

pub type Weights = Vec<(String, Tensor)>;

pub const CONSTANTS: Momentum = Momentum { momentum: 0.9, weight_decay: 1e-3 };

/// A model, the shape of a sample for it, and how it is trained.
pub struct Case {
    pub name: &'static str,
    pub layers: Layers,
    /// The layers whose parameters are frozen.
    pub frozen: Vec<usize>,
    pub dtype: DType,
    pub sample: &'static [usize],
    pub steps: usize,
    pub rate: f64,
}

impl Case {
    pub fn new(name: &'static str, layers: Layers, sample: &'static [usize]) -> Self {
        Self { name, layers, frozen: Vec::new(), dtype: DType::F64, sample, steps: 5, rate: 0.2 }
    }
}

pub fn lenet() -> Case {
    Case::new("LeNet", Layers::lenet(), &[1, 28, 28])
}

/// Five layers, as LeNet has.
pub fn dense() -> Case {
    Case::new("dense stack", Layers::dense(&[6, 17, 13, 11, 9, 10]).unwrap(), &[2, 3])
}

/// The planes of the first group.
pub const WIDTH: usize = 4;

/// Ten layers: the stem, eight blocks, the head.
pub fn resnet18() -> Case {
    Case { rate: 0.05, ..Case::new("ResNet-18", Layers::resnet18(WIDTH), &[1, 20, 20]) }
}

/// Five layers, and the first one has nothing to train.
pub fn pooled() -> Case {
    Case::new("pooling first", layers::pooled(), &[2, 20, 20])
}

/// Noise of all brightnesses.
pub fn images(count: usize) -> Dataset {
    let pixel = |image: usize, i: usize| ((image * 31 + i * i * 7 + image * i) % 251) as u8;
    let images = (0..count).map(|image| std::array::from_fn(|i| pixel(image, i))).collect();
    Dataset::new(images, (0..count).map(|image| (image % CLASSES) as u8).collect()).unwrap()
}

impl Case {
    /// The batch of this step in micro-batches; those beyond the number of samples are empty.
    pub fn share(&self, step: usize, samples: usize, micro_batches: usize) -> LocalBatch {
        layers::batch((self.sample, self.dtype), step, samples, micro_batches).unwrap()
    }

    /// A rank's part of some of the layers.
    pub fn build(
        &self,
        layers: Range<usize>,
        group: &SharedCommunicator,
    ) -> Result<Network<Stage>, Error> {
        let (range, cpu) = (layers.clone(), &Device::Cpu);
        let network = self.layers.build_part(range, 1, self.dtype, cpu, group)?;
        layers::freeze(network, (&self.layers, layers), &self.frozen)
    }

    /// All layers on one device.
    fn alone(&self) -> Network<Stage> {
        self.build(0..self.layers.len(), &Alone(Device::Cpu).into()).unwrap()
    }

    /// The weights before the first step.
    pub fn initial(&self) -> Weights {
        sorted(self.alone().weights().snapshot().unwrap())
    }

    /// The weights of one device, and its loss at each step.
    pub fn on_one_device(&self, samples: usize) -> (Weights, Vec<f64>) {
        let (network, mut sgd) = (self.alone(), Sgd::new(CONSTANTS));
        let losses = (0..self.steps).map(|step| {
            let done = network.backward(&self.share(step, samples, 1)).unwrap();
            sgd.step(network.weights(), &done.gradients, self.rate, samples).unwrap();
            done.sums.read().unwrap().loss
        });
        let losses = losses.collect();
        (sorted(network.weights().snapshot().unwrap()), losses)
    }

    /// One device that goes through the micro-batches in order, and adds their gradients and losses up: weights, and the loss
    /// at each step.
    pub fn on_micro_batches(&self, samples: usize, micro_batches: usize) -> (Weights, Vec<f64>) {
        let ended = on_ranks(1, |rank| {
            let (network, mut sgd) = (self.alone(), Sgd::new(CONSTANTS));
            let tree = FixedTree::new(micro_batches, 1)?;
            network.norms().by_shard();
            let mut losses = Vec::new();
            for step in 0..self.steps {
                let (mut sum, mut loss) = (Vec::<Tensor>::new(), 0.0);
                for (i, shard) in
                    self.share(step, samples, micro_batches).shards.into_iter().enumerate()
                {
                    network.norms().shard(i);
                    let done = network.backward(&LocalBatch { shards: vec![shard], samples })?;
                    loss += done.sums.read()?.loss;
                    sum = match i {
                        0 => done.gradients,
                        _ => {
                            let pairs = sum.iter().zip(&done.gradients);
                            pairs.map(|(sum, it)| sum + it).collect::<Result<_, _>>()?
                        }
                    };
                }
                network.norms().fold(rank, &tree)?;
                sgd.step(network.weights(), &sum, self.rate, samples)?;
                losses.push(loss);
            }
            Ok((sorted(network.weights().snapshot()?), losses))
        });
        ended.unwrap().remove(0)
    }

    /// Reproducible data parallelism: the weights, and the loss at each step.
    pub fn data_parallel(
        &self,
        devices: usize,
        samples: usize,
        shards: usize,
    ) -> (Weights, Vec<f64>) {
        let ended = on_ranks(devices, |rank| {
            let network = self.build(0..self.layers.len(), &Alone(Device::Cpu).into())?;
            let ddp = Ddp::new(network, rank, Reduction::Reproducible { shards })?;
            let losses = self.train(&ddp, samples)?.into_iter().map(|sums| sums.loss).collect();
            Ok((sorted(ddp.weights().snapshot()?), losses))
        });
        ended.unwrap().remove(0)
    }

    /// Trains on a mesh: the weights, the loss at each step, and the measurements of each rank. All replicas are equal.
    pub fn on_mesh(
        &self,
        mesh: Mesh,
        checked: &Checked,
        cut: &[Range<usize>],
        samples: usize,
        by_shards: bool,
    ) -> (Weights, Vec<f64>, Vec<Measured>) {
        let ended = on_ranks(mesh.devices(), |rank| {
            self.on_rank(rank.into(), mesh, checked, cut, samples, by_shards)
        });
        let (mut replicas, mut losses, mut measured) = (Vec::new(), Vec::new(), Vec::new());
        for (whole, steps, of_rank) in ended.unwrap() {
            assert!(steps.iter().all(|sums| sums.samples == samples as u64));
            losses.push(steps.into_iter().map(|sums| sums.loss).collect::<Vec<f64>>());
            replicas.extend(whole);
            measured.push(of_rank);
        }
        assert!(losses.iter().all(|others| *others == losses[0]), "all ranks know the loss");
        assert_eq!(replicas.len(), mesh.data);
        assert!(replicas.iter().all(|it| hash(it) == hash(&replicas[0])), "replicas are equal");
        (sorted(replicas.swap_remove(0)), losses.swap_remove(0), measured)
    }

    /// One rank of the mesh: the whole weights on the first rank of a replica, the sums of each step, and the measurements.
    pub fn on_rank(
        &self,
        all: SharedCommunicator,
        mesh: Mesh,
        checked: &Checked,
        cut: &[Range<usize>],
        samples: usize,
        by_shards: bool,
    ) -> Result<(Option<Weights>, Vec<BatchSums>, Measured), Error> {
        let group = mesh.along(&all, Axis::Tensor)?;
        let units = checked.schedule().units_of(mesh.coordinate(all.rank(), Axis::Pipeline));
        let units = units.map(|unit| self.build(cut[unit].clone(), &group));
        let (units, settings) =
            (units.collect::<Result<_, _>>()?, Settings { by_shards, ..Settings::IMAGES });
        let executor = Executor::new(checked, units, all, mesh, self.sample, settings)?;
        let steps = self.train(&executor, samples)?;
        let mine = executor.weights().snapshot()?;
        equal_on_all(&self.layers, &mine, &group)?;
        let mine = self.layers.join(mine, &group)?;
        Ok((executor.whole(mine)?, steps, executor.measured()))
    }

    /// Trains in a pipeline, with running sums.
    pub fn pipeline(
        &self,
        checked: &Checked,
        cut: &[Range<usize>],
        samples: usize,
    ) -> (Weights, Vec<f64>, Vec<Measured>) {
        self.on_mesh(Mesh::pipeline(checked.schedule().stages()), checked, cut, samples, false)
    }

    /// All steps of one rank: the sums of each.
    fn train(&self, model: &impl Model, samples: usize) -> Result<Vec<BatchSums>, Error> {
        let mut sgd = Sgd::new(CONSTANTS);
        let step = |step: usize| {
            let LocalBatch { shards, samples } = self.share(step, samples, model.hosts().of);
            let share = LocalBatch { shards: shards[model.hosts().held].to_vec(), samples };
            Ok(model.step(&share, &mut sgd, self.rate)?.sums.read()?)
        };
        (0..self.steps).map(step).collect()
    }
}

pub fn hash(weights: &Weights) -> WeightsHash {
    WeightsHash::new(weights).unwrap()
}

/// Checks that weights, and the loss at each step, are those that are `expected`, up to `bound`. Returns the largest difference of
/// the weights.
pub fn close(
    (found, steps): (&Weights, &[f64]),
    (weights, losses): &(Weights, Vec<f64>),
    bound: f64,
    what: &str,
) -> f64 {
    let difference = largest_difference(found, weights).unwrap();
    assert!(difference < bound, "{what}: {difference:e}");
    assert_eq!(steps.len(), losses.len());
    for (found, expected) in steps.iter().zip(losses) {
        assert!((found / expected - 1.0).abs() < bound, "{what}: {found} {expected}");
    }
    difference
}

/// In the order of their names: a network has its buffers last, and a pipeline those of each stage.
pub fn sorted(mut weights: Weights) -> Weights {
    weights.sort_by(|(a, _), (b, _)| a.cmp(b));
    weights
}

pub fn plan(devices: usize) -> DevicePlan {
    DevicePlan::slices(devices).unwrap()
}

/// Runs `work` on so many ranks.
pub fn on_ranks<R: Send>(
    ranks: usize,
    work: impl Fn(&Rank) -> Result<R, Error> + Sync,
) -> Result<Vec<R>, RankFailure<Error>> {
    run_ranks(&plan(ranks), Duration::from_secs(60), work)
}

/// The executor of a rank, which holds these layers of a model for samples of this shape.
pub fn executor(
    rank: &Rank,
    mesh: Mesh,
    checked: &Checked,
    layers: (&Layers, Range<usize>),
    sample: &[usize],
) -> Result<Executor<Whole<Stage>>, Error> {
    let network = layers.0.build(layers.1, 1, DType::F64, &Device::Cpu)?;
    Executor::new(checked, vec![network], rank.into(), mesh, sample, Settings::IMAGES)
}

/// The executor of a rank on a mesh, whose parts begin with these layers, and the ranks that share each layer.
pub fn on_the_mesh(
    rank: &Rank,
    mesh: Mesh,
    checked: &Checked,
    (layers, begins): (&Layers, &str),
    (sample, dtype): (&[usize], DType),
    settings: Settings,
) -> Result<(Executor<Whole<Stage>>, SharedCommunicator), Error> {
    let (all, cut): (SharedCommunicator, _) = (rank.into(), cut(begins, layers.len()));
    let group = mesh.along(&all, Axis::Tensor)?;
    let units = checked.schedule().units_of(mesh.coordinate(rank.rank(), Axis::Pipeline));
    let build = |unit: usize| layers.build_part(cut[unit].clone(), 1, dtype, &Device::Cpu, &group);
    let units = units.map(build).collect::<Result<_, _>>()?;
    Ok((Executor::new(checked, units, all, mesh, sample, settings)?, group))
}

/// The executor of a rank in a mesh of two stages, with a layer each, for images.
pub fn one_layer_each(
    rank: &Rank,
    mesh: Mesh,
    checked: &Checked,
    layers: &Layers,
) -> Result<Executor<Whole<Stage>>, Error> {
    let of_images = (&SAMPLE[..], DType::F64);
    Ok(on_the_mesh(rank, mesh, checked, (layers, "1"), of_images, Settings::IMAGES)?.0)
}

/// Checks that the tensors that all ranks of a group have are equal on all of them.
pub fn equal_on_all(
    layers: &Layers,
    weights: &Weights,
    group: &SharedCommunicator,
) -> Result<(), Error> {
    let parameters = layers.parameters(0..layers.len())?;
    let is_whole = |name: &str| parameters.iter().any(|it| it.name == name && it.cut.is_none());
    let whole = weights.iter().filter(|(name, _)| is_whole(name)).cloned().collect();
    let of_all = concise_wrapper::text::values(&**group, &hash(&whole).to_string())?;
    assert!(of_all.iter().all(|it| *it == of_all[0]), "what all have is equal on all");
    Ok(())
}

pub fn checked(kind: Kind, stages: usize, micro_batches: usize) -> Checked {
    checked_on(Mesh::pipeline(stages), kind, micro_batches)
}

/// The schedule of each pipeline of a mesh, for so many micro-batches in each.
pub fn checked_on(mesh: Mesh, kind: Kind, micro_batches: usize) -> Checked {
    let schedule = kind.schedule(mesh.pipeline, micro_batches).unwrap();
    check(schedule.with_replicas(mesh.data), UNBOUNDED).unwrap()
}

/// The layers of each stage, from where the stages begin.
pub fn cut(begins: &str, layers: usize) -> Vec<Range<usize>> {
    let begins = begins.split_terminator(',').map(|begin| begin.parse().unwrap());
    model_parallel::partition::cut_by_hand(&begins.collect::<Vec<_>>(), layers).unwrap()
}
