//! Some steps of training: on one device, and under a strategy.

use std::ops::Range;
use std::time::Duration;

use candle_core::{DType, Device, Tensor};
use concise_wrapper::optimizer::{AdamW, Momentum, Optimizer, Sgd};
use concise_wrapper::{Error, Model as _};
use datasets::Batch;
use devices::DevicePlan;
use model_parallel::execute::unit::{Unit, Whole};
use model_parallel::execute::{Held, Settings};
use model_parallel::layers::{Layers, Stage};
use model_parallel::mesh::Mesh;
use model_parallel::{Checked, Executor, Schedule, UNBOUNDED, check};
use params_and_allreduce::communicator::Communicator as _;
use params_and_allreduce::thread::{Rank, run_ranks};
use sharded_state::flat::Flat;
use sharded_state::{Sharded, Sharing, Strategy};
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

/// A training of a dense stack, a unit a layer.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub widths: &'static [usize],
    pub updates: Updates,
    pub dtype: DType,
    pub samples: usize,
    /// The micro-batches of each rank.
    pub micro_batches: usize,
    pub ranks: usize,
    pub steps: usize,
}

pub const CASE: Case = Case {
    widths: &[6, 17, 13, 11, 9, 10],
    updates: Updates::AdamW,
    dtype: DType::F64,
    samples: 11,
    micro_batches: 2,
    ranks: 2,
    steps: 5,
};

/// The result of a training.
#[derive(Debug)]
pub struct Trained {
    pub weights: Named,
    /// The state of the optimizer, in the shapes of the parameters.
    pub state: Named,
    pub losses: Vec<f64>,
    /// The bytes that each rank held.
    pub held: Vec<Held>,
}

impl Case {
    pub fn units(&self) -> usize {
        self.widths.len() - 1
    }

    fn layers(&self) -> Layers {
        Layers::dense(self.widths).unwrap()
    }

    /// A batch of this step, in micro-batches of all ranks. Those beyond the number of samples are empty.
    fn batch(&self, step: usize, micro_batches: usize) -> LocalBatch {
        let (samples, width) = (self.samples, self.widths[0]);
        let value = |i: usize| ((step * 7919 + i).pow(2) as f64 * 0.754_877_666).fract() - 0.5;
        let values: Vec<f64> = (0..samples * width).map(value).collect();
        let images = Tensor::from_vec(values, (samples, width), &Device::Cpu).unwrap();
        let labels: Vec<u32> = (0..samples).map(|i| ((step + i * 7) % 10) as u32).collect();
        let labels = Tensor::new(labels, &Device::Cpu).unwrap();
        let images = images.to_dtype(self.dtype).unwrap();
        let shards = split_batch(&images, &labels, micro_batches).unwrap().into_iter();
        let shards = shards.map(|(images, labels)| Batch { images, labels }).collect();
        LocalBatch { shards, samples }
    }

    /// Trains on one device, which goes through the micro-batches of all ranks.
    pub fn alone(&self) -> Trained {
        let micro_batches = self.micro_batches * self.ranks;
        let alone = Self { micro_batches, ranks: 1, ..*self };
        let strategy = Strategy { sharing: Sharing::Ddp, prefetches: false, recomputes: None };
        alone.train(strategy)
    }

    pub fn schedule(&self, strategy: Strategy) -> Schedule {
        strategy.schedule(self.units(), self.micro_batches, self.ranks)
    }

    /// Trains under a strategy.
    pub fn train(&self, strategy: Strategy) -> Trained {
        let schedule = self.schedule(strategy);
        self.train_lists(strategy.sharing == Sharing::Ddp, &vec![schedule; self.ranks]).unwrap()
    }

    /// Trains each rank by its own list.
    pub fn train_lists(&self, whole: bool, lists: &[Schedule]) -> Result<Trained, String> {
        let mut of_ranks = on_ranks(self.ranks, |rank| {
            let checked = check(lists[rank.rank()].clone(), UNBOUNDED).unwrap();
            if whole { self.whole(rank, &checked) } else { self.sharded(rank, &checked) }
        })?;
        let held = of_ranks.iter().flat_map(|it| it.held.clone()).collect();
        for other in &of_ranks[1..] {
            assert_eq!(values(&of_ranks[0].weights), values(&other.weights), "ranks are equal");
            assert_eq!(of_ranks[0].losses, other.losses, "all ranks know the loss");
        }
        Ok(Trained { held, ..of_ranks.swap_remove(0) })
    }

    fn network(&self, layers: Range<usize>) -> Result<concise_wrapper::Network<Stage>, Error> {
        Ok(self.layers().build(layers, 1, self.dtype, &Device::Cpu)?)
    }

    fn whole(&self, rank: &Rank, checked: &Checked) -> Result<Trained, Error> {
        let networks = (0..self.units()).map(|unit| self.network(unit..unit + 1));
        let networks = networks.collect::<Result<_, _>>()?;
        let mesh = Mesh { data: self.ranks, ..Mesh::pipeline(1) };
        let executor =
            Executor::<Whole<_>>::new(checked, networks, rank.into(), mesh, &self.widths[..1])?;
        let mut optimizer = self.updates.optimizer();
        let losses = self.steps(&executor, &mut *optimizer)?;
        let weights = sorted(executor.weights().snapshot()?);
        let state = sorted(optimizer.state(executor.weights())?);
        Ok(Trained { weights, state, losses, held: vec![executor.measured().held] })
    }

    fn sharded(&self, rank: &Rank, checked: &Checked) -> Result<Trained, Error> {
        let mesh = Mesh { data: self.ranks, ..Mesh::pipeline(1) };
        let settings = Settings::default();
        let executor = Executor::of_units(
            checked,
            rank.into(),
            mesh,
            &self.widths[..1],
            settings,
            |unit, replicas| Sharded::new(unit, self.network(unit..unit + 1)?, replicas),
        )?;
        let mut optimizer = self.updates.optimizer();
        let losses = self.steps(&executor, &mut *optimizer)?;
        let (mut weights, mut state) = (Vec::new(), Vec::new());
        for unit in executor.units() {
            let whole = unit.whole()?;
            let flat = Flat::new(whole.iter().map(|(_, tensor)| tensor.clone()).collect());
            for (name, chunk) in optimizer.state(unit.owned())? {
                let (kind, _) = name.split_once('/').unwrap();
                let of_parameters: Vec<Tensor> = match chunk.rank() {
                    0 => vec![chunk; whole.len()],
                    _ => {
                        let comm: params_and_allreduce::communicator::SharedCommunicator =
                            rank.into();
                        flat.split(&comm.all_gather(&chunk, flat.len())?)?
                    }
                };
                let names = whole.iter().map(|(name, _)| format!("{kind}/{name}"));
                state.extend(names.zip(of_parameters));
            }
            weights.extend(whole);
        }
        let (weights, state) = (sorted(weights), sorted(state));
        Ok(Trained { weights, state, losses, held: vec![executor.measured().held] })
    }

    fn steps<U: Unit>(
        &self,
        executor: &Executor<U>,
        optimizer: &mut dyn Optimizer,
    ) -> Result<Vec<f64>, Error> {
        let step = |step: usize| {
            let hosts = executor.hosts();
            let LocalBatch { shards, samples } = self.batch(step, hosts.of);
            let share = LocalBatch { shards: shards[hosts.held].to_vec(), samples };
            Ok(executor.step(&share, optimizer, 0.05)?.sums.read()?.loss)
        };
        (0..self.steps).map(step).collect()
    }
}

pub fn values(named: &Named) -> Vec<(String, Vec<f64>)> {
    let value = |(name, tensor): &(String, Tensor)| {
        let row = tensor.flatten_all().unwrap().to_dtype(DType::F64).unwrap();
        (name.clone(), row.to_vec1::<f64>().unwrap())
    };
    named.iter().map(value).collect()
}

pub fn sorted(mut named: Named) -> Named {
    named.sort_by(|(a, _), (b, _)| a.cmp(b));
    named
}

/// Runs `work` on so many ranks.
pub fn on_ranks<R: Send>(
    ranks: usize,
    work: impl Fn(&Rank) -> Result<R, Error> + Sync,
) -> Result<Vec<R>, String> {
    let plan = DevicePlan::slices(ranks).unwrap();
    run_ranks(&plan, Duration::from_secs(60), work).map_err(|failure| failure.to_string())
}
