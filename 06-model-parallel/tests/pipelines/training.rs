//! Some steps of training: on one device, in a pipeline, and data-parallel.

use datasets::Batch;
use model_parallel::execute::Measured;
use params_and_allreduce::thread::RankFailure;
use split_batch::split::split_batch;

use crate::prelude::*;

pub type Weights = Vec<(String, Tensor)>;

pub const CONSTANTS: Momentum = Momentum { momentum: 0.9, weight_decay: 1e-3 };

/// A model, the shape of a sample for it, and how it is trained.
pub struct Case {
    pub name: &'static str,
    pub layers: Layers,
    pub sample: &'static [usize],
    pub steps: usize,
    pub rate: f64,
}

pub fn lenet() -> Case {
    let layers = Layers::lenet();
    Case { name: "LeNet", layers, sample: &[1, 28, 28], steps: 5, rate: 0.2 }
}

/// Five layers, as LeNet has.
pub fn dense() -> Case {
    let layers = Layers::dense(&[6, 17, 13, 11, 9, 10]).unwrap();
    Case { name: "dense stack", layers, sample: &[2, 3], steps: 5, rate: 0.2 }
}

/// The planes of the first group.
pub const WIDTH: usize = 4;

/// Ten layers: the stem, eight blocks, the head.
pub fn resnet18() -> Case {
    let layers = Layers::resnet18(WIDTH);
    Case { name: "ResNet-18", layers, sample: &[1, 20, 20], steps: 5, rate: 0.05 }
}

/// Noise of all brightnesses.
pub fn images(count: usize) -> Dataset {
    let pixel = |image: usize, i: usize| ((image * 31 + i * i * 7 + image * i) % 251) as u8;
    let images = (0..count).map(|image| std::array::from_fn(|i| pixel(image, i))).collect();
    Dataset::new(images, (0..count).map(|image| (image % CLASSES) as u8).collect()).unwrap()
}

impl Case {
    /// A batch of this step: noise, and each sample has a brightness of its own.
    ///
    /// Not garments: where they are black, channels are constant, and a batch norm makes them rounding errors
    /// around 0, on either side of relu's kink.
    fn batch(&self, step: usize, samples: usize) -> Batch {
        let pixels: usize = self.sample.iter().product();
        let part = |i: usize, by: f64| (i as f64 * by).fract();
        let noise = |i: usize| part((step * 7919 + i).pow(2), 0.754_877_666);
        let brightness = |i: usize| part(step * 7 + i / pixels, 0.618_033_989);
        let value = |i: usize| noise(i) + brightness(i) - 1.0;
        let values: Vec<f64> = (0..samples * pixels).map(value).collect();
        let shape = [&[samples], self.sample].concat();
        let images = Tensor::from_vec(values, shape, &Device::Cpu).unwrap();
        let labels: Vec<u32> = (0..samples).map(|i| ((step + i * 7) % 10) as u32).collect();
        Batch { images, labels: Tensor::new(labels, &Device::Cpu).unwrap() }
    }

    /// The same batch in micro-batches; those beyond the number of samples are empty.
    pub fn share(&self, step: usize, samples: usize, micro_batches: usize) -> LocalBatch {
        let Batch { images, labels } = self.batch(step, samples);
        let shards = split_batch(&images, &labels, micro_batches).unwrap();
        let shards = shards.into_iter().map(|(images, labels)| Batch { images, labels });
        LocalBatch { shards: shards.collect(), samples }
    }

    /// The weights before the first step.
    pub fn initial(&self) -> Weights {
        let all = self.layers.build(0..self.layers.len(), 1, DType::F64, &Device::Cpu);
        sorted(all.unwrap().weights().snapshot().unwrap())
    }

    /// The weights of one device, and its loss at each step.
    pub fn on_one_device(&self, samples: usize) -> (Weights, Vec<f64>) {
        let network = self.layers.build(0..self.layers.len(), 1, DType::F64, &Device::Cpu).unwrap();
        let mut sgd = Sgd::new(CONSTANTS);
        let losses = (0..self.steps).map(|step| {
            let done = network.backward(&self.share(step, samples, 1)).unwrap();
            sgd.step(network.weights(), &done.gradients, self.rate, samples).unwrap();
            done.sums.read().unwrap().loss
        });
        let losses = losses.collect();
        (sorted(network.weights().snapshot().unwrap()), losses)
    }

    /// The hash of the weights after reproducible data parallelism.
    pub fn data_parallel(&self, devices: usize, samples: usize, shards: usize) -> WeightsHash {
        let hashes = on_ranks(devices, |rank| {
            let all = 0..self.layers.len();
            let network = self.layers.build(all, 1, DType::F64, &Device::Cpu)?;
            let ddp = Ddp::new(network, rank, Reduction::Reproducible { shards })?;
            self.train(&ddp, samples)?;
            Ok(WeightsHash::new(&ddp.weights().snapshot()?)?)
        });
        hashes.unwrap()[0]
    }

    /// Trains on a mesh: the weights, the loss at each step, and the measurements of each rank. All replicas are equal.
    pub fn on_mesh(
        &self,
        mesh: Mesh,
        checked: &Checked,
        cut: &[Range<usize>],
        samples: usize,
    ) -> (Weights, Vec<f64>, Vec<Measured>) {
        let ended = on_ranks(mesh.devices(), |rank| {
            let all: SharedCommunicator = rank.into();
            let group = match mesh.tensor {
                1 => Group::alone(),
                _ => Group::new(mesh.along(&all, Axis::Tensor)?, Algorithm::Ring),
            };
            // A range of layers for each part of the model.
            let build = |part: usize| {
                let layers = cut[part].clone();
                self.layers.build_part(layers, 1, DType::F64, &Device::Cpu, &group)
            };
            let parts = checked.schedule().units_of(mesh.coordinate(rank.rank(), Axis::Pipeline));
            let chunks = parts.map(build).collect::<Result<_, _>>()?;
            let worker =
                Executor::with(checked, chunks, all, mesh, self.sample, (cross_entropy, true))?;
            let steps = self.train(&worker, samples)?;
            let mine = self.layers.join(worker.weights().snapshot()?, &group)?;
            Ok((worker.whole(mine)?, steps, worker.measured()))
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
        let hash = |weights| WeightsHash::new(weights).unwrap();
        assert!(replicas.iter().all(|it| hash(it) == hash(&replicas[0])), "replicas are equal");
        (sorted(replicas.swap_remove(0)), losses.swap_remove(0), measured)
    }

    /// Trains in a pipeline.
    pub fn pipeline(
        &self,
        checked: &Checked,
        cut: &[Range<usize>],
        samples: usize,
    ) -> (Weights, Vec<f64>, Vec<Measured>) {
        self.on_mesh(Mesh::pipeline(checked.schedule().stages()), checked, cut, samples)
    }

    /// All steps of one rank: the sums of each.
    fn train(&self, model: &impl Model, samples: usize) -> Result<Vec<BatchSums>, Error> {
        let mut sgd = Sgd::new(CONSTANTS);
        let step = |step: usize| {
            let LocalBatch { shards, samples } = self.share(step, samples, model.hosts().of);
            let share = LocalBatch { shards: shards[model.hosts().held].to_vec(), samples };
            let done = model.backward(&share)?;
            sgd.step(model.weights(), &done.gradients, self.rate, samples)?;
            Ok(done.sums.read()?)
        };
        (0..self.steps).map(step).collect()
    }
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

/// The worker of a rank, which holds these layers of a model for samples of this shape.
pub fn worker(
    rank: &Rank,
    mesh: Mesh,
    checked: &Checked,
    layers: (&Layers, Range<usize>),
    sample: &[usize],
) -> Result<Executor<Whole<Stage>>, Error> {
    let network = layers.0.build(layers.1, 1, DType::F64, &Device::Cpu)?;
    Executor::new(checked, vec![network], rank.into(), mesh, sample)
}

/// The worker of a rank in a mesh of two stages, with a layer each, for images.
pub fn one_layer_each(
    rank: &Rank,
    mesh: Mesh,
    checked: &Checked,
    layers: &Layers,
) -> Result<Executor<Whole<Stage>>, Error> {
    let stage = rank.rank() % 2;
    worker(rank, mesh, checked, (layers, stage..stage + 1), &SAMPLE)
}

pub fn checked(kind: Kind, stages: usize, micro_batches: usize) -> Checked {
    check(kind.schedule(stages, micro_batches).unwrap(), UNBOUNDED).unwrap()
}

/// The layers of each stage, from where the stages begin.
pub fn cut(begins: &str, layers: usize) -> Vec<Range<usize>> {
    let begins = begins.split_terminator(',').map(|begin| begin.parse().unwrap());
    model_parallel::partition::cut_by_hand(&begins.collect::<Vec<_>>(), layers).unwrap()
}
