//! Some steps of training: on one device, and under a strategy.
//!
//! With `TEST_DEVICE=cuda` all of it runs on GPUs, which ranks share if there are too few.

use std::collections::BTreeSet;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use crate::device::{on_gpus, plan};
use crate::layers;
use candle_core::{DType, Device, Tensor};
use concise_wrapper::counted::Counted;
use concise_wrapper::ddp::{Ddp, Reduction};
use concise_wrapper::optimizer::{AdamW, Momentum, Optimizer, Sgd};
use concise_wrapper::{Error, Model, Network};
use datasets::{Batch, CLASSES, Dataset};
use model_parallel::execute::unit::{Replicas, Unit, Whole};
use model_parallel::execute::{Measured, Settings};
use model_parallel::layers::{Layers, Stage};
use model_parallel::mesh::{Axis, Mesh};
use model_parallel::{Checked, Executor, Gpt, Schedule, UNBOUNDED, check};
use params_and_allreduce::communicator::{Communicator as _, SharedCommunicator};
use params_and_allreduce::thread::{Rank, run_ranks};
use sharded_state::{Sharded, Sharing, Strategy, flat};
use split_batch::loader::LocalBatch;
use split_batch::split::split_batch;

pub type Named = Vec<(String, Tensor)>;

/// The optimizer of a training.
#[derive(Clone, Copy, Debug)]
pub enum Updates {
    Momentum,
    AdamW,
}

impl Updates {
    pub fn optimizer(self) -> Box<dyn Optimizer> {
        match self {
            Self::Momentum => Box::new(Sgd::new(Momentum { momentum: 0.9, weight_decay: 1e-3 })),
            Self::AdamW => Box::new(AdamW::default()),
        }
    }
}

/// What is trained, a unit a layer.
#[derive(Clone, Copy, Debug)]
pub enum Net {
    /// A dense stack of these widths.
    Dense(&'static [usize]),
    Lenet,
    /// Of width 2.
    ResNet18,
    /// Pooling, two convolutions, flattening, and a dense layer. The first and the fourth layer have no parameters.
    Pooled,
    /// A small GPT, whose vocabulary divides by 2 and by 4.
    Gpt,
    /// Layers of a test, and the shape of a sample.
    Made(fn() -> Layers, &'static [usize]),
}

impl Net {
    pub fn layers(self) -> Layers {
        match self {
            Self::Dense(widths) => Layers::dense(widths).unwrap(),
            Self::Lenet => Layers::lenet(),
            Self::ResNet18 => Layers::resnet18(2),
            Self::Pooled => layers::pooled(),
            Self::Gpt => Layers::gpt(&GPT).unwrap(),
            Self::Made(layers, _) => layers(),
        }
    }

    pub fn sample(self) -> &'static [usize] {
        match self {
            Self::Dense(widths) => &widths[..1],
            Self::Lenet => &[1, 28, 28],
            Self::ResNet18 => &[1, 20, 20],
            Self::Pooled => &[2, 20, 20],
            Self::Gpt => &[GPT.context],
            Self::Made(_, sample) => sample,
        }
    }
}

const GPT: Gpt = Gpt { vocabulary: 20, context: 5, width: 16, heads: 4, blocks: 2 };

/// The batch of a step in micro-batches: texts of tokens below 17, so some tokens never occur.
fn texts(step: usize, texts: usize, micro_batches: usize) -> LocalBatch {
    let part = |i: usize| ((step * 7919 + i).pow(2) as f64 * 0.754_877_666).fract();
    let tokens = (0..texts * (GPT.context + 1)).map(|i| (17.0 * part(i)) as u32);
    let tokens = Tensor::from_iter(tokens, &Device::Cpu).unwrap();
    let tokens = tokens.reshape((texts, GPT.context + 1)).unwrap();
    let from = |first: usize| tokens.narrow(1, first, GPT.context).unwrap().contiguous().unwrap();
    let shards = split_batch(&from(0), &from(1), micro_batches).unwrap().into_iter();
    let shards = shards.map(|(images, labels)| Batch { images, labels });
    LocalBatch { shards: shards.collect(), samples: texts * GPT.context }
}

/// A training.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub net: Net,
    /// The layers whose parameters are frozen.
    pub frozen: &'static [usize],
    pub updates: Updates,
    pub rate: f64,
    pub dtype: DType,
    pub samples: usize,
    /// The micro-batches of each rank.
    pub micro_batches: usize,
    pub ranks: usize,
    /// The parts of each layer: each of `ranks` is a group of so many ranks.
    pub parts: usize,
    pub steps: usize,
    pub settings: Settings,
}

pub const CASE: Case = Case {
    net: Net::Dense(&[6, 17, 13, 11, 9, 10]),
    frozen: &[],
    updates: Updates::AdamW,
    rate: 0.05,
    dtype: DType::F64,
    samples: 11,
    micro_batches: 2,
    ranks: 2,
    parts: 1,
    steps: 5,
    settings: Settings::IMAGES,
};

/// The result of a training.
#[derive(Debug)]
pub struct Trained {
    pub weights: Named,
    /// The state of the optimizer, in the shapes of the parameters.
    pub state: Named,
    pub losses: Vec<f64>,
    /// The measurements of each rank.
    pub measured: Vec<Measured>,
    /// The bytes that each rank has sent in the last step.
    pub sent: Vec<u64>,
}

impl Case {
    pub fn units(&self) -> usize {
        self.net.layers().len()
    }

    /// A batch of this step, in micro-batches of all ranks. Those beyond the number of samples are empty.
    pub fn batch(&self, step: usize, micro_batches: usize) -> LocalBatch {
        if let Net::Gpt = self.net {
            return texts(step, self.samples, micro_batches);
        }
        layers::batch((self.net.sample(), self.dtype), step, self.samples, micro_batches).unwrap()
    }

    /// Trains on one device, which goes through the micro-batches of all ranks.
    pub fn alone(&self) -> Trained {
        let micro_batches = self.micro_batches * self.ranks;
        let alone = Self { micro_batches, ranks: 1, parts: 1, ..*self };
        let strategy = Sharing::Ddp.plain();
        alone.train(strategy)
    }

    pub fn schedule(&self, strategy: Strategy) -> Schedule {
        strategy.schedule(self.units(), self.micro_batches, self.ranks)
    }

    /// Trains under a strategy.
    pub fn train(&self, strategy: Strategy) -> Trained {
        let schedule = self.schedule(strategy);
        let lists = vec![schedule; self.ranks * self.parts];
        self.train_lists(strategy.sharing == Sharing::Ddp, &lists).unwrap()
    }

    /// Trains each rank by its own list.
    pub fn train_lists(&self, whole: bool, lists: &[Schedule]) -> Result<Trained, String> {
        self.train_over(whole, lists, |comm| comm)
    }

    /// Trains over other connections than those of threads.
    pub fn train_over(
        &self,
        whole: bool,
        lists: &[Schedule],
        over: impl Fn(SharedCommunicator) -> SharedCommunicator + Sync,
    ) -> Result<Trained, String> {
        self.on_ranks(|rank| {
            let checked = check(lists[rank.rank()].clone(), UNBOUNDED).unwrap();
            let comm = Counted::new(over(rank.into()));
            match whole {
                true => self.whole(rank.device(), &comm, &checked),
                false => self.sharded(rank.device(), &comm, &checked),
            }
        })
    }

    /// Trains stage 5's wrapper, with one micro-batch a rank.
    pub fn wrapped(&self, reduction: Reduction) -> Trained {
        let trained = self.on_ranks(|rank| {
            let comm = Counted::new(rank);
            let network = self.network(0..self.units(), &comm.shared(), rank.device())?;
            let ddp = Ddp::new(network, comm.shared(), reduction)?;
            let mut optimizer = self.updates.optimizer();
            let (losses, sent) = self.steps(&ddp, &mut *optimizer, &comm)?;
            let weights = sorted(ddp.weights().snapshot()?);
            let state = sorted(on_the_cpu(optimizer.state(ddp.weights())?)?);
            Ok(Trained { weights, state, losses, measured: Vec::new(), sent: vec![sent] })
        });
        trained.unwrap()
    }

    /// Checks that all ranks end with the same weights and losses, and joins what they have measured.
    fn on_ranks(
        &self,
        work: impl Fn(&Rank) -> Result<Trained, Error> + Sync,
    ) -> Result<Trained, String> {
        let mut of_ranks = on_ranks(self.ranks * self.parts, work)?;
        let measured = of_ranks.iter_mut().flat_map(|it| std::mem::take(&mut it.measured));
        let measured = measured.collect();
        let sent = of_ranks.iter().flat_map(|it| it.sent.clone()).collect();
        for other in &of_ranks[1..] {
            assert_eq!(values(&of_ranks[0].weights), values(&other.weights), "ranks are equal");
            assert_eq!(of_ranks[0].losses, other.losses, "all ranks know the loss");
        }
        Ok(Trained { measured, sent, ..of_ranks.swap_remove(0) })
    }

    /// This rank's part of some of the layers.
    pub fn network(
        &self,
        range: Range<usize>,
        comm: &SharedCommunicator,
        device: &Device,
    ) -> Result<Network<Stage>, Error> {
        let all = self.net.layers();
        let network = match self.parts {
            1 => all.build(range.clone(), 1, self.dtype, device)?,
            _ => {
                let group = self.mesh().along(comm, Axis::Tensor)?;
                all.build_part(range.clone(), 1, self.dtype, device, &group)?
            }
        };
        layers::freeze(network, (&all, range), self.frozen)
    }

    /// The loss is the model's.
    fn settings(&self) -> Settings {
        let Settings { by_shards, algorithm, .. } = self.settings;
        Settings { by_shards, algorithm, ..Settings::of(&self.net.layers()) }
    }

    fn mesh(&self) -> Mesh {
        Mesh { data: self.ranks, pipeline: 1, tensor: self.parts }
    }

    /// Joins the parts of a state of the optimizer, which has names such as `mean/dense0.weight`.
    fn joined_state(&self, state: Named, comm: &SharedCommunicator) -> Result<Named, Error> {
        let kind = |name: &str| name.split_once('/').map(|(kind, _)| kind.to_owned()).unwrap();
        let kinds: BTreeSet<String> = state.iter().map(|(name, _)| kind(name)).collect();
        let mut joined = Vec::new();
        for kind in kinds {
            let of_kind = state.iter().filter_map(|(name, tensor)| {
                let name = name.strip_prefix(&*kind)?.strip_prefix('/')?;
                Some((name.to_owned(), tensor.clone()))
            });
            // A count of steps has no axis that is cut.
            let (parts, counts) = of_kind.partition(|(_, tensor)| tensor.rank() > 0);
            let all = self.joined(parts, comm)?.into_iter().chain(counts);
            joined.extend(all.map(|(name, tensor)| (format!("{kind}/{name}"), tensor)));
        }
        Ok(joined)
    }

    /// Joins the parts of all ranks.
    fn joined(&self, named: Named, comm: &SharedCommunicator) -> Result<Named, Error> {
        Ok(self.net.layers().join(named, &self.mesh().along(comm, Axis::Tensor)?)?)
    }

    /// The executor of a rank whose units are whole.
    pub fn executor_of_whole(
        &self,
        device: &Device,
        comm: &Counted,
        checked: &Checked,
    ) -> Result<Executor<Whole<Stage>>, Error> {
        let (comm, sample) = (comm.shared(), self.net.sample());
        let networks = (0..self.units()).map(|unit| self.network(unit..unit + 1, &comm, device));
        let networks = networks.collect::<Result<_, _>>()?;
        Executor::new(checked, networks, comm, self.mesh(), sample, self.settings())
    }

    /// The executor of a rank whose units are in chunks.
    pub fn executor_of_chunks(
        &self,
        device: &Device,
        comm: &Counted,
        checked: &Checked,
    ) -> Result<Executor<Sharded<Stage>>, Error> {
        let (all, sample) = (comm.shared(), self.net.sample());
        let unit = |unit, replicas: &Rc<Replicas>| {
            Sharded::new(unit, self.network(unit..unit + 1, &all, device)?, replicas)
        };
        Executor::of_units(checked, comm.shared(), self.mesh(), sample, self.settings(), unit)
    }

    fn whole(&self, device: &Device, comm: &Counted, checked: &Checked) -> Result<Trained, Error> {
        let executor = self.executor_of_whole(device, comm, checked)?;
        let mut optimizer = self.updates.optimizer();
        let (losses, sent) = self.steps(&executor, &mut *optimizer, comm)?;
        let all = comm.shared();
        let weights = sorted(self.joined(executor.weights().snapshot()?, &all)?);
        let state = on_the_cpu(optimizer.state(executor.weights())?)?;
        let state = sorted(self.joined_state(state, &all)?);
        let measured = vec![executor.measured()];
        Ok(Trained { weights, state, losses, measured, sent: vec![sent] })
    }

    fn sharded(
        &self,
        device: &Device,
        comm: &Counted,
        checked: &Checked,
    ) -> Result<Trained, Error> {
        let executor = self.executor_of_chunks(device, comm, checked)?;
        let mut optimizer = self.updates.optimizer();
        let (losses, sent) = self.steps(&executor, &mut *optimizer, comm)?;
        let all = comm.shared();
        let replicas = self.mesh().along(&all, Axis::Data)?;
        let (mut weights, mut state) = (Vec::new(), Vec::new());
        for unit in executor.units() {
            let whole = unit.whole()?;
            // Buffers come after the parameters.
            let parameters = &whole[..unit.network().weights().parameters.len()];
            for (name, chunk) in optimizer.state(unit.owned())? {
                let (kind, _) = name.split_once('/').unwrap();
                let of_parameters: Vec<Tensor> = match chunk.rank() {
                    0 => vec![chunk; parameters.len()],
                    _ => {
                        let row = replicas.all_gather(&chunk, unit.row_len())?;
                        let row = row.to_device(&Device::Cpu)?;
                        flat::split(&row, parameters.iter().map(|(_, tensor)| tensor))?
                    }
                };
                let names = parameters.iter().map(|(name, _)| format!("{kind}/{name}"));
                state.extend(names.zip(of_parameters));
            }
            weights.extend(whole);
        }
        let weights = sorted(self.joined(weights, &all)?);
        let state = sorted(self.joined_state(on_the_cpu(state)?, &all)?);
        let measured = vec![executor.measured()];
        Ok(Trained { weights, state, losses, measured, sent: vec![sent] })
    }

    /// The loss of each step, and the bytes that the rank sent in the last one.
    pub fn steps(
        &self,
        model: &impl Model,
        optimizer: &mut dyn Optimizer,
        comm: &Counted,
    ) -> Result<(Vec<f64>, u64), Error> {
        let (mut losses, mut sent) = (Vec::new(), 0);
        for step in 0..self.steps {
            let before = comm.sent();
            let hosts = model.hosts();
            let LocalBatch { shards, samples } = self.batch(step, hosts.of);
            let share = LocalBatch { shards: shards[hosts.held].to_vec(), samples };
            losses.push(model.step(&share, optimizer, self.rate)?.sums.read()?.loss);
            sent = comm.sent() - before;
        }
        Ok((losses, sent))
    }
}

pub fn values(named: &Named) -> Vec<(String, Vec<f64>)> {
    let value = |(name, tensor): &(String, Tensor)| {
        let row = tensor.flatten_all().unwrap().to_dtype(DType::F64).unwrap();
        (name.clone(), row.to_vec1::<f64>().unwrap())
    };
    named.iter().map(value).collect()
}

fn on_the_cpu(named: Named) -> Result<Named, Error> {
    let copy = |(name, tensor): (String, Tensor)| Ok((name, tensor.to_device(&Device::Cpu)?));
    named.into_iter().map(copy).collect()
}

pub fn sorted(mut named: Named) -> Named {
    named.sort_by(|(a, _), (b, _)| a.cmp(b));
    named
}

/// Noise of all brightnesses.
pub fn images(count: usize) -> Dataset {
    let pixel = |image: usize, i: usize| ((image * 31 + i * i * 7 + image * i) % 251) as u8;
    let images = (0..count).map(|image| std::array::from_fn(|i| pixel(image, i))).collect();
    Dataset::new(images, (0..count).map(|image| (image % CLASSES) as u8).collect()).unwrap()
}

/// Runs `work` on so many ranks.
pub fn on_ranks<R: Send>(
    ranks: usize,
    work: impl Fn(&Rank) -> Result<R, Error> + Sync,
) -> Result<Vec<R>, String> {
    let timeout = Duration::from_secs(if on_gpus() { 600 } else { 60 });
    run_ranks(&plan(ranks), timeout, work).map_err(|failure| failure.to_string())
}
