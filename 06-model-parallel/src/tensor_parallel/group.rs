//! The ranks that hold one model together: a tensor-parallel group.

use std::fmt;

use candle_core::{Error, Result, Tensor, bail};
use harness::report::trace::COMMUNICATION;
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::SharedCommunicator;
use tracing::info_span;

use super::cut::Cut;

/// One rank's end of its tensor-parallel group, and how the group adds up.
///
/// Layers keep a clone, for their backward pass. All ranks of a group call its operations together, in the
/// same order: they do so by computing the same network.
#[derive(Clone)]
pub struct Group {
    line: SharedCommunicator,
    algorithm: Algorithm,
}

impl Group {
    /// A group of all ranks that `line` connects.
    ///
    /// Activations are large and numbers of a group few: with two ranks any algorithm will do, with more
    /// the ring sends least.
    pub fn new(line: SharedCommunicator, algorithm: Algorithm) -> Self {
        Self { line, algorithm }
    }

    /// This rank, from 0.
    pub fn rank(&self) -> usize {
        self.line.rank()
    }

    /// How many ranks hold the model.
    pub fn ranks(&self) -> usize {
        self.line.world_size()
    }

    /// How the group adds up.
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// The connection to the other ranks.
    pub fn line(&self) -> &SharedCommunicator {
        &self.line
    }

    /// The sum of all ranks' tensors, the same bits on every rank; a constant, without a gradient.
    ///
    /// # Errors
    ///
    /// The errors of [`Communicator::all_reduce`](params_and_allreduce::communicator::Communicator::all_reduce).
    pub fn all_reduce(&self, tensor: &Tensor) -> Result<Tensor> {
        self.line.all_reduce(tensor, self.algorithm).map_err(Error::wrap)
    }

    /// This rank's part of a whole tensor, a view of it.
    ///
    /// # Errors
    ///
    /// Those of [`Cut::part`].
    pub fn part(&self, whole: &Tensor, cut: Cut) -> Result<Tensor> {
        cut.part(whole, self.ranks(), self.rank())
    }

    /// All ranks' parts put together, the same bits on every rank; a constant, without a gradient.
    ///
    /// Narrow parts are sent with zeros at their end, as wide as the widest: an all-gather moves pieces of
    /// one size. (Engines demand that, and PyTorch's `DTensor` pads likewise.)
    ///
    /// # Errors
    ///
    /// When the part is not as the cut says, or another rank stops or stalls.
    pub fn all_gather(&self, part: &Tensor, cut: Cut) -> Result<Tensor> {
        let (ranks, axis) = (self.ranks(), cut.axis());
        cut.check(ranks)?;
        let own = cut.range(ranks, self.rank()).len();
        if part.dim(axis)? != own {
            bail!(
                "rank {} of {ranks} has {own} of {} features along axis {axis}, but brings {:?}",
                self.rank(),
                cut.features(),
                part.dims()
            );
        }
        let part = part.detach().pad_with_zeros(axis, 0, cut.widest(ranks) - own)?;
        let (row, shape) = (part.elem_count(), part.dims());
        let bytes = row * part.dtype().size_in_bytes();
        let span = info_span!(target: COMMUNICATION, "all-gather", bytes, ?shape);
        let rows = span.in_scope(|| self.line.all_gather(&part.flatten_all()?, row * ranks));
        let rows = rows.map_err(Error::wrap)?;
        let part_of = |rank| {
            let padded = rows.narrow(0, rank * row, row)?.reshape(part.shape())?;
            padded.narrow(axis, 0, cut.range(ranks, rank).len())
        };
        Tensor::cat(&(0..ranks).map(part_of).collect::<Result<Vec<_>>>()?, axis)
    }
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Group(rank {} of {}, {})", self.rank(), self.ranks(), self.algorithm)
    }
}
