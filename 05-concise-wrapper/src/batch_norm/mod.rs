//! Batch normalisation, and whose batch it is.
//!
//! In training every channel is normalised by the mean and variance of *the batch*. On several devices
//! that word has three meanings:
//!
//! | | statistics of | equal to one device? |
//! | --- | --- | --- |
//! | local | the device's own shard, as PyTorch's DDP does by default | no: the batch became smaller |
//! | synchronised | the global batch: devices exchange sums in every layer, twice | yes |
//! | by shard | each of a fixed number of shards | the same bits on any number of devices |
//!
//! So data parallelism does *not* give the numbers of one device once batch norm is in the network, unless
//! its statistics are synchronised. [`Norms`] says which of the three a network uses; all its layers share
//! one.

mod fold;
mod synchronised;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use candle_core::{DType, ModuleT, Result, Tensor, Var, bail};
use candle_nn::VarBuilder;
use candle_nn::init::Init;
use params_and_allreduce::communicator::SharedCommunicator;
use single_gpu::ops::batch_norm::{Statistics, average_all, batch_norm, batch_norm_with};

use crate::precision::Precision;

/// Added to variances, so that a constant channel is not divided by zero; PyTorch's default.
const EPSILON: f64 = 1e-5;

/// The weight of the newest batch in the running statistics; PyTorch's default.
const MOMENTUM: f64 = 0.1;

/// Whose statistics the layers of a network use; clones are one and the same.
#[derive(Clone, Default)]
pub struct Norms(Arc<Mutex<Shared>>);

#[derive(Default)]
struct Shared {
    sharing: Sharing,
    /// Whose images are at hand: the number of the shard among those of this rank.
    shard: usize,
    /// Whether the images at hand stand in for an empty shard, and do not count.
    stand_in: bool,
    layers: Vec<Layer>,
    /// What layers saw, by their numbers, and what has yet to move their running statistics.
    seen: Vec<(usize, Statistics)>,
}

/// Whose statistics.
#[derive(Clone, Default)]
enum Sharing {
    #[default]
    Local,
    Synchronised(SharedCommunicator),
    ByShard,
}

/// The running statistics of one layer, and those of shards that have yet to be averaged into them.
struct Layer {
    mean: Var,
    variance: Var,
    of_shards: BTreeMap<usize, Statistics>,
}

impl Norms {
    /// From now on layers normalise by the statistics of all ranks' images together.
    pub fn synchronise(&self, communicator: SharedCommunicator) {
        self.lock().sharing = Sharing::Synchronised(communicator);
    }

    /// From now on layers normalise by each forward pass's own images, and keep the statistics back until
    /// [`fold`](Self::fold). Before each forward pass, [`shard`](Self::shard) says whose they are.
    pub fn by_shard(&self) {
        self.lock().sharing = Sharing::ByShard;
    }

    /// Says whose images the next forward pass sees: the number of the shard, from 0, among those that this
    /// rank hosts. So shards may come in any order.
    pub fn shard(&self, number: usize) {
        self.lock().shard = number;
    }

    /// Says whether the images of the next forward pass stand in for an empty shard: they are normalised,
    /// but their own statistics do not count.
    pub fn stand_in(&self, yes: bool) {
        self.lock().stand_in = yes;
    }

    /// Averages what the layers have seen since the last call into their running statistics: of all layers at once, as on
    /// a GPU a launch for each would cost more than its work. A [`Network`](crate::Network) does this behind every forward
    /// pass in training. What is [kept back](Self::by_shard) stays so.
    ///
    /// # Errors
    ///
    /// When the device fails.
    pub fn average(&self) -> Result<()> {
        let mut shared = self.lock();
        let seen = std::mem::take(&mut shared.seen);
        let averages = seen.iter().flat_map(|(layer, statistics)| {
            let Layer { mean, variance, .. } = &shared.layers[*layer];
            statistics.averages(mean, variance)
        });
        average_all(&averages.collect::<Vec<_>>(), MOMENTUM)
    }

    /// Adds a layer; returns its number.
    fn add(&self, mean: Var, variance: Var) -> usize {
        let layers = &mut self.lock().layers;
        layers.push(Layer { mean, variance, of_shards: BTreeMap::new() });
        layers.len() - 1
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a layer does with the statistics of a forward pass in training.
    fn saw(&self, layer: usize, statistics: Statistics) -> Result<()> {
        let mut shared = self.lock();
        let (shard, stand_in) = (shared.shard, shared.stand_in);
        let sharing = shared.sharing.clone();
        match sharing {
            Sharing::ByShard => {
                let count = if stand_in { 0 } else { statistics.count };
                let statistics = Statistics { count, ..statistics };
                if shared.layers[layer].of_shards.insert(shard, statistics).is_some() {
                    bail!("a batch norm saw shard {shard} twice in one step");
                }
            }
            Sharing::Local if stand_in => {}
            Sharing::Local | Sharing::Synchronised(_) => shared.seen.push((layer, statistics)),
        }
        Ok(())
    }
}

/// One layer: learnt scale and shift, running statistics, and the relu that follows, if one does.
///
/// `[B, C, H, W]` → `[B, C, H, W]`.
pub struct BatchNorm {
    weight: Tensor,
    bias: Tensor,
    running_mean: Var,
    running_variance: Var,
    relu: bool,
    norms: Norms,
    layer: usize,
}

impl BatchNorm {
    /// A layer for `channels` channels: `weight` starts at 1, `bias` at 0, `running_mean` at 0,
    /// `running_var` at 1.
    ///
    /// # Errors
    ///
    /// When the tensors cannot be made.
    pub fn new(channels: usize, relu: bool, norms: &Norms, vb: &VarBuilder<'_>) -> Result<Self> {
        let vb = vb.to_dtype(Precision::from(vb.dtype()).weights());
        let constant = |name, value| vb.get_with_hints(channels, name, Init::Const(value));
        let (weight, bias) = (constant("weight", 1.0)?, constant("bias", 0.0)?);
        let running = |name, value| {
            let tensor = constant(name, value)?;
            if !tensor.is_variable() {
                bail!("{name} has to be a variable, which training can change");
            }
            Var::from_tensor(&tensor)
        };
        let running_mean = running("running_mean", 0.0)?;
        let running_variance = running("running_var", 1.0)?;
        let layer = norms.add(running_mean.clone(), running_variance.clone());
        let norms = norms.clone();
        Ok(Self { weight, bias, running_mean, running_variance, relu, norms, layer })
    }

    fn train(&self, x: &Tensor) -> Result<Tensor> {
        let sharing = self.norms.lock().sharing.clone();
        let (y, statistics) = match sharing {
            Sharing::Local | Sharing::ByShard => {
                batch_norm(x, &self.weight, &self.bias, EPSILON, self.relu)?
            }
            Sharing::Synchronised(communicator) => {
                let counts = !self.norms.lock().stand_in;
                let (weight, bias) = (&self.weight, &self.bias);
                synchronised::batch_norm(x, weight, bias, self.relu, communicator, counts)?
            }
        };
        self.norms.saw(self.layer, statistics)?;
        Ok(y)
    }

    fn evaluate(&self, x: &Tensor) -> Result<Tensor> {
        self.norms.average()?;
        let in_f64 = |running: &Var| running.as_detached_tensor().to_dtype(DType::F64);
        let statistics = Statistics {
            mean: in_f64(&self.running_mean)?,
            variance: in_f64(&self.running_variance)?,
            count: 1,
        };
        batch_norm_with(x, &self.weight, &self.bias, &statistics, EPSILON, self.relu)
    }
}

impl ModuleT for BatchNorm {
    fn forward_t(&self, x: &Tensor, train: bool) -> Result<Tensor> {
        if train { self.train(x) } else { self.evaluate(x) }
    }
}
