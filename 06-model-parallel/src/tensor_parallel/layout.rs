//! How a network's tensors lie on the ranks: which are split, and what they are put together.

use candle_core::{Device, Result, Tensor, bail};
use concise_wrapper::Precision;
use concise_wrapper::ddp::alike;
use concise_wrapper::weights::{Named, Snapshot, Weights};
use ops::parameters::overwrite;

use super::group::Group;
use super::memory::Memory;
use super::parts::{Placement, Placements};

/// How the tensors of one network lie on the ranks of a group.
///
/// The weights that its methods are given are this rank's, of the network that it came with, whoever holds that
/// by now: [`TensorParallel`](super::TensorParallel), or stage 5's `Ddp` around it.
#[derive(Clone)]
pub struct Layout {
    group: Group,
    placements: Placements,
}

impl Layout {
    pub(super) fn new(group: Group, placements: Placements) -> Self {
        Self { group, placements }
    }

    /// The ranks that hold the network together.
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// Bytes of the parameters that this rank holds.
    pub fn memory(&self, weights: &Weights) -> Memory {
        let of = |named: &Named| match self.placements.get(&named.name) {
            Some(_) => Memory { split: named.bytes(), replicated: 0 },
            None => Memory { split: 0, replicated: named.bytes() },
        };
        weights.parameters.iter().map(of).sum()
    }

    /// Copies of all values in CPU memory, with their names, parts put together; all ranks call this together.
    /// It is the snapshot of the network on one device, for a hash, a checkpoint or a comparison.
    ///
    /// Every rank gets the whole model: it has to fit in the memory of its host.
    ///
    /// # Errors
    ///
    /// When another rank stops or stalls.
    pub fn whole(&self, weights: &Weights) -> Result<Snapshot> {
        self.whole_of(weights.snapshot()?)
    }

    /// The same for values in CPU memory, each of which is named like one of the network's tensors.
    ///
    /// # Errors
    ///
    /// As [`whole`](Self::whole).
    pub fn whole_of(&self, values: Snapshot) -> Result<Snapshot> {
        let whole = |(name, value): (String, Tensor)| match self.placements.get(&name) {
            Some(Placement { cut, .. }) => {
                let part = value.to_device(self.group.line().device())?;
                let whole = self.group.all_gather(&part, cut)?;
                Ok((name, whole.to_device(&Device::Cpu)?))
            }
            None => Ok((name, value)),
        };
        values.into_iter().map(whole).collect()
    }

    /// Takes this rank's parts of whole tensors, such as a checkpoint of any number of ranks holds; tensors
    /// that are not named stay as they are. Nothing is sent.
    ///
    /// # Errors
    ///
    /// When a name is unknown, or a tensor has another shape or type: the message names it.
    pub fn set_whole(&self, weights: &Weights, values: &[(String, Tensor)]) -> Result<()> {
        for (name, value) in values {
            let Some(mine) = weights.get(name) else { bail!("the network has no tensor {name}") };
            let placement = self.placements.get(name);
            let shape = placement.as_ref().map_or(mine.shape(), |placement| &placement.whole);
            if value.shape() != shape || value.dtype() != mine.dtype() {
                bail!(
                    "{name} is {:?} {shape:?}, not {:?} {:?}",
                    mine.dtype(),
                    value.dtype(),
                    value.shape()
                );
            }
            match placement {
                Some(Placement { cut, .. }) => overwrite(mine, &self.group.part(value, cut)?)?,
                None => overwrite(mine, value)?,
            }
        }
        Ok(())
    }

    /// What has to be the same on all ranks, by name.
    pub(super) fn structure(
        &self,
        seed: u64,
        precision: Precision,
        weights: &Weights,
    ) -> Vec<(String, String)> {
        let entry = |Named { name, tensor }: &Named| match self.placements.get(name) {
            Some(Placement { whole, cut }) => {
                let (what, value) = alike::of_tensor(name, tensor.dtype(), &whole);
                (what, format!("{value}, {cut:?}"))
            }
            None => alike::of_tensor(name, tensor.dtype(), tensor.shape()),
        };
        let settings = [
            ("seed".to_owned(), seed.to_string()),
            ("precision".to_owned(), precision.to_string()),
            ("algorithm".to_owned(), self.group.algorithm().to_string()),
        ];
        settings.into_iter().chain(weights.iter().map(entry)).collect()
    }
}
