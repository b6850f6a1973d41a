//! A tensor-parallel group: the ranks that hold one model together.

use candle_core::{Error, Result, Tensor, bail};
use harness::report::trace::COMMUNICATION;
use ops::size_in_bytes;
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::SharedCommunicator;
use tracing::info_span;

use super::sharding::Cut;

// ANCHOR: group
/// One rank's end of its tensor-parallel group.
///
/// Layers keep a clone for their backward pass. All ranks of a group compute the same network, so they call the group's
/// operations together and in the same order.
#[derive(Clone)]
pub struct Group {
    communicator: Option<SharedCommunicator>,
    algorithm: Algorithm,
}

impl Group {
    /// The group of all ranks of `communicator`. `algorithm` is the all-reduce of activations.
    pub fn new(communicator: SharedCommunicator, algorithm: Algorithm) -> Self {
        Self { communicator: Some(communicator), algorithm }
    }

    /// The group of one device, which holds whole layers.
    pub fn alone() -> Self {
        Self { communicator: None, algorithm: Algorithm::OneShot }
    }

    /// This rank, from 0.
    pub fn rank(&self) -> usize {
        self.communicator.as_ref().map_or(0, |communicator| communicator.rank())
    }

    /// The number of ranks.
    pub fn ranks(&self) -> usize {
        self.communicator.as_ref().map_or(1, |communicator| communicator.world_size())
    }

    /// The connection to the other ranks, or `None` in a group of one device.
    pub fn communicator(&self) -> Option<&SharedCommunicator> {
        self.communicator.as_ref()
    }

    /// The sum of all ranks' tensors, with the same bits on every rank; a constant, without a gradient. Fails when another
    /// rank stops or stalls.
    pub fn all_reduce(&self, tensor: &Tensor) -> Result<Tensor> {
        match &self.communicator {
            Some(ranks) => ranks.all_reduce(tensor, self.algorithm).map_err(Error::wrap),
            None => Ok(tensor.detach()),
        }
    }

    /// This rank's part of a whole tensor, a view of the tensor. Fails with the errors of [`Cut::part`].
    pub fn part(&self, whole: &Tensor, cut: Cut) -> Result<Tensor> {
        cut.part(whole, self.ranks(), self.rank())
    }

    /// Joins all ranks' parts, with the same bits on every rank; a constant, without a gradient.
    ///
    /// The pieces of an all-gather have one size. So a rank adds zeros to a narrow part, as PyTorch's `DTensor` does.
    /// Fails when the part does not fit the cut, or another rank stops or stalls.
    pub fn all_gather(&self, part: &Tensor, cut: Cut) -> Result<Tensor> {
        let (ranks, rank, axis) = (self.ranks(), self.rank(), cut.axis());
        cut.check(ranks)?;
        let width = |rank| cut.range(ranks, rank).len();
        if part.dim(axis)? != width(rank) {
            bail!(
                "rank {rank} of {ranks} has {} of {} features along axis {axis}, but brings {:?}",
                width(rank),
                cut.features(),
                part.dims()
            );
        }
        let Some(communicator) = &self.communicator else { return Ok(part.detach()) };
        let part = part.detach().pad_with_zeros(axis, 0, cut.widest(ranks) - width(rank))?;
        let (row, shape, bytes) = (part.elem_count(), part.dims(), size_in_bytes(&part));
        let span = info_span!(target: COMMUNICATION, "all-gather", bytes, ?shape);
        let rows = span.in_scope(|| communicator.all_gather(&part.flatten_all()?, row * ranks));
        let rows = rows.map_err(Error::wrap)?;
        let part_of = |rank| {
            let padded = rows.narrow(0, rank * row, row)?.reshape(part.shape())?;
            padded.narrow(axis, 0, width(rank))
        };
        Tensor::cat(&(0..ranks).map(part_of).collect::<Result<Vec<_>>>()?, axis)
    }
}
// ANCHOR_END: group
