//! Whose statistics the layers of a network normalise by, and what becomes of them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use candle_core::{Result, Tensor, Var, bail};
use harness::lock::locked;
use ops::batch_norm::{Statistics, average_all};
use params_and_allreduce::communicator::SharedCommunicator;

use super::MOMENTUM;
use crate::weights::{Named, Weights};

/// Whose statistics the layers of a network use; clones are one and the same.
#[derive(Clone, Default)]
pub struct Norms(Arc<Mutex<Shared>>);

#[derive(Default)]
pub(super) struct Shared {
    pub(super) sharing: Sharing,
    /// Whose images are at hand: the number of the shard among those of this rank.
    shard: usize,
    /// Whether the images at hand stand in for an empty shard, and do not count.
    pub(super) stand_in: bool,
    /// Whether evaluation, too, normalises by the images at hand.
    pub(super) tests_by_batch: bool,
    pub(super) layers: Vec<Layer>,
    /// What layers saw, by their numbers, and what has yet to move their running statistics.
    seen: Vec<(usize, Statistics)>,
}

/// Whose statistics.
#[derive(Clone, Default)]
pub(super) enum Sharing {
    #[default]
    Local,
    Synchronised(SharedCommunicator),
    ByShard,
}

/// The running statistics of one layer, and those of shards that have yet to be averaged into them.
pub(super) struct Layer {
    pub(super) mean: Var,
    pub(super) variance: Var,
    pub(super) of_shards: BTreeMap<usize, Statistics>,
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

    /// From now on layers normalise by each forward pass's own images in evaluation as well, and not by running
    /// statistics: to tell whether what is behind is the weights, or the statistics. It is no way to use a model: an
    /// image's logits then depend on its neighbours.
    pub fn test_by_batch(&self) {
        self.lock().tests_by_batch = true;
    }

    /// Norms for a replica, which are tested as these are.
    pub(crate) fn replica(&self) -> Self {
        let tests_by_batch = self.lock().tests_by_batch;
        Self(Arc::new(Mutex::new(Shared { tests_by_batch, ..Shared::default() })))
    }

    /// From now on layers normalise by the statistics that those of `other` do.
    pub(crate) fn share_as(&self, other: &Self) {
        let sharing = other.lock().sharing.clone();
        self.lock().sharing = sharing;
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
    pub(super) fn add(&self, mean: Var, variance: Var) -> usize {
        let layers = &mut self.lock().layers;
        layers.push(Layer { mean, variance, of_shards: BTreeMap::new() });
        layers.len() - 1
    }

    /// Whether a layer keeps its running statistics in this tensor.
    fn has(&self, buffer: &Tensor) -> bool {
        let is = |running: &Var| running.id() == buffer.id();
        self.lock().layers.iter().any(|layer| is(&layer.mean) || is(&layer.variance))
    }

    /// Makes sure that no batch norm among a network's layers is another crate's: it would go on normalising by the images
    /// that it sees, and move its running statistics by them, whatever is asked of the others.
    ///
    /// # Errors
    ///
    /// When there is one: the message names it.
    pub(crate) fn check_all(&self, weights: &Weights) -> Result<()> {
        let running = ["running_mean", "running_var"];
        let foreign = weights.buffers.iter().find(|Named { name, tensor }| {
            running.iter().any(|last| name.ends_with(last)) && !self.has(tensor)
        });
        match foreign {
            None => Ok(()),
            Some(Named { name, .. }) => bail!(
                "{name} is of a layer that normalises by itself: use concise_wrapper::batch_norm::BatchNorm, whose statistics \
                 can be synchronised and kept by shard"
            ),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Shared> {
        locked(&self.0)
    }

    /// What a layer does with the statistics of a forward pass in training.
    pub(super) fn saw(&self, layer: usize, statistics: Statistics) -> Result<()> {
        let mut shared = self.lock();
        let (shard, stand_in) = (shared.shard, shared.stand_in);
        let sharing = shared.sharing.clone();
        match sharing {
            Sharing::ByShard => {
                let count = if stand_in { 0 } else { statistics.count };
                let statistics = Statistics { count, ..statistics };
                if shared.layers[layer].of_shards.insert(shard, statistics).is_some() {
                    bail!(
                        "a batch norm saw shard {shard} twice in one step: one that a forward pass uses twice cannot be kept by \
                         shard"
                    );
                }
            }
            Sharing::Local if stand_in => {}
            Sharing::Local | Sharing::Synchronised(_) => shared.seen.push((layer, statistics)),
        }
        Ok(())
    }
}
