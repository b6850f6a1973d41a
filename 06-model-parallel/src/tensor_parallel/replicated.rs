//! Several tensor-parallel groups, each of which works on its own part of every batch.
//!
//! ```text
//!                 part 0    part 1
//! replica 0       rank 0 ── rank 1    → a group: whole activations, on the first shard
//!                   │         │
//! replica 1       rank 2 ── rank 3    → another, on the second
//!                   └ the gradients of one part, summed
//! ```
//!
//! Nothing new is needed: stage 5's [`Ddp`] wraps the part of a network that a rank holds, and knows only the
//! ranks that hold the same part of the other replicas.

use std::sync::Arc;

use candle_core::ModuleT;
use concise_wrapper::ddp::Reduction;
use concise_wrapper::model::Step;
use concise_wrapper::weights::{Snapshot, Weights};
use concise_wrapper::{Ddp, Error, Model};
use datasets::Dataset;
use harness::records::BatchSums;
use params_and_allreduce::communicator::SharedCommunicator;
use split_batch::loader::{LocalBatch, Shards};

use super::layout::Layout;
use super::model::{TensorParallel, agree_on_interrupts};
use crate::held::Whole;
use crate::mesh::{Axis, Mesh};

/// One rank's part of one replica.
pub struct Replicated<M> {
    ddp: Ddp<M>,
    layout: Layout,
    /// All ranks of the mesh.
    all: SharedCommunicator,
}

impl<M: ModuleT> Replicated<M> {
    /// Wraps the part of a network that a rank of `mesh` holds; all its ranks call this together.
    ///
    /// `model` was made with the group along the mesh's tensor axis, and `all` connects all ranks.
    ///
    /// # Errors
    ///
    /// Those of [`Ddp::new`], and when the mesh does not fit the ranks.
    pub fn new(
        model: TensorParallel<M>,
        all: &SharedCommunicator,
        mesh: Mesh,
        reduction: Reduction,
    ) -> Result<Self, Error> {
        let (network, layout) = model.into_network();
        let ddp = Ddp::new(network, mesh.along(all, Axis::Data)?, reduction)?;
        Ok(Self { ddp, layout, all: Arc::clone(all) })
    }
}

impl<M: ModuleT> Model for Replicated<M> {
    fn hosts(&self) -> Shards {
        self.ddp.hosts()
    }

    fn backward(&self, share: &LocalBatch) -> Result<Step, Error> {
        let Step { sums, gradients } = self.ddp.backward(share)?;
        let mut sums = sums.read()?;
        // Each part has asked its own replicas.
        agree_on_interrupts(self.layout.group(), &mut sums)?;
        Ok(Step { sums: sums.into(), gradients })
    }

    fn weights(&self) -> &Weights {
        self.ddp.weights()
    }

    fn rank(&self) -> Option<&SharedCommunicator> {
        Some(&self.all)
    }

    /// All replicas share it; the first rank gets the result.
    fn evaluate(&self, images: &Dataset) -> Result<Option<BatchSums>, Error> {
        let sums = self.ddp.evaluate(images)?;
        Ok(sums.filter(|_| self.all.rank() == 0))
    }
}

impl<M: ModuleT> Whole for Replicated<M> {
    /// On the first rank of every replica.
    fn whole(&self, mine: Snapshot) -> Result<Option<Snapshot>, Error> {
        let whole = self.layout.whole_of(mine)?;
        Ok((self.layout.group().rank() == 0).then_some(whole))
    }
}
