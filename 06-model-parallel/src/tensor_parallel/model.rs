//! A network of which every rank holds a part, in training.

use candle_core::{Device, ModuleT, Result, Shape, Tensor};
use candle_nn::VarBuilder;
use concise_wrapper::batch_norm::Norms;
use concise_wrapper::ddp::alike;
use concise_wrapper::model::Step;
use concise_wrapper::weights::{Snapshot, Weights};
use concise_wrapper::{Error, Model, Network, Precision};
use datasets::Dataset;
use harness::records::BatchSums;
use params_and_allreduce::communicator::SharedCommunicator;
use split_batch::loader::{LocalBatch, Shards};

use super::group::Group;
use super::layout::Layout;
use super::memory::Memory;
use super::parts::{Parts, Placements};
use crate::held::Whole;

/// One rank's part of a network.
///
/// It is a [`Model`]: stage 5's loop trains it, every rank on the same whole batches, and stage 5's optimisers
/// update the parts. That loop makes no checkpoints of parts; [`whole_weights`](Self::whole_weights) is what one
/// would have to hold.
///
/// ```
/// use std::sync::Arc;
///
/// use candle_core::DType;
/// use concise_wrapper::Error;
/// use model_parallel::tensor_parallel::dense::DenseStack;
/// use model_parallel::tensor_parallel::{Group, TensorParallel};
/// use params_and_allreduce::Algorithm;
/// use params_and_allreduce::thread::{DEFAULT_TIMEOUT, run_ranks};
/// use devices::{DeviceKind, DevicePlan};
///
/// let devices = DevicePlan::new(DeviceKind::Auto, 2, None)?;
/// let halves = run_ranks(&devices, DEFAULT_TIMEOUT, |rank| {
///     let group = Group::new(Arc::new(rank.clone()), Algorithm::Ring);
///     let model = TensorParallel::new(1, DType::F32, group, |parts, _| {
///         DenseStack::new(&[784, 512, 10], parts)
///     })?;
///     Ok::<_, Error>(model.memory().total())
/// })?;
/// // Half of 784·512 weights, 512 biases and 512·10 weights; ten biases.
/// assert_eq!(halves, [4 * (203_520 + 10); 2]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct TensorParallel<M> {
    network: Network<M>,
    layout: Layout,
}

impl<M: ModuleT> TensorParallel<M> {
    /// A network with fresh weights, each of which depends on its name and the seed alone; all ranks of the
    /// group call this together. Put together, the parts are the tensors of one device, to the last bit.
    ///
    /// `build` is given the builder of tensors, and what the batch norms of the network share. (A batch norm
    /// works on each channel for itself: on a rank's own channels it needs nothing from the others.)
    ///
    /// # Errors
    ///
    /// Those of `build`; [`Error::NotAlike`] on a rank that was given another seed, precision, algorithm or
    /// network than rank 0.
    pub fn new(
        seed: u64,
        precision: impl Into<Precision>,
        group: Group,
        build: impl Fn(&Parts<'_>, &Norms) -> Result<M> + Send + Sync + 'static,
    ) -> std::result::Result<Self, Error> {
        let placements = Placements::default();
        let layout = Layout::new(group.clone(), placements.clone());
        let values = {
            let (placements, group) = (placements.clone(), group.clone());
            move |name: &str, shape: &Shape, init, dtype| {
                placements.initial(name, shape, init, seed, dtype, &group)
            }
        };
        let device = group.line().device().clone();
        let in_parts = move |vb: &VarBuilder<'_>, norms: &Norms| {
            build(&Parts::new(vb.clone(), group.clone(), placements.clone()), norms)
        };
        let network = Network::with_values(values, precision, &device, in_parts)?;
        let structure = layout.structure(seed, network.precision(), network.weights());
        alike::compare(layout.group().line(), &structure)?;
        Ok(Self { network, layout })
    }

    /// The rank's part of the network.
    pub fn network(&self) -> &Network<M> {
        &self.network
    }

    /// The network and its layout, for another wrapper around the network.
    ///
    /// With stage 5's `Ddp`, over the ranks that hold the *same* part of other replicas, it is data parallelism
    /// of tensor-parallel groups.
    pub fn into_network(self) -> (Network<M>, Layout) {
        (self.network, self.layout)
    }

    /// The logits of a batch, as in training; all ranks call this together, with the same batch.
    ///
    /// # Errors
    ///
    /// Those of the layers, and when another rank stops or stalls.
    pub fn forward(&self, images: &Tensor) -> std::result::Result<Tensor, Error> {
        Ok(self.network.forward_training(images)?)
    }

    /// Bytes of the parameters that this rank holds.
    pub fn memory(&self) -> Memory {
        self.layout.memory(self.network.weights())
    }

    /// All tensors in CPU memory, parts put together: [`Layout::whole`]; all ranks call this together.
    ///
    /// # Errors
    ///
    /// When another rank stops or stalls.
    pub fn whole_weights(&self) -> Result<Snapshot> {
        self.layout.whole(self.network.weights())
    }

    /// Takes this rank's parts of whole tensors: [`Layout::set_whole`].
    ///
    /// # Errors
    ///
    /// When a tensor is not one of the network's: the message names it.
    pub fn set_whole_weights(&self, values: &[(String, Tensor)]) -> Result<()> {
        self.layout.set_whole(self.network.weights(), values)
    }
}

/// Whether somebody asked for an end on any rank: all have to end after the same step.
pub(super) fn agree_on_interrupts(group: &Group, sums: &mut BatchSums) -> Result<()> {
    let mine = Tensor::new(&[sums.interrupts as f64], group.line().device())?;
    let all = group.all_reduce(&mine)?.to_device(&Device::Cpu)?;
    sums.interrupts = all.get(0)?.to_scalar::<f64>()? as u64;
    Ok(())
}

impl<M: ModuleT> Model for TensorParallel<M> {
    /// Every rank is given the whole batch.
    fn hosts(&self) -> Shards {
        Shards::WHOLE
    }

    /// Loss, which is the same on all ranks, and the gradients of what this rank holds.
    ///
    /// Beside what the layers [exchange](super::exchange), ranks send one number: whether to go on.
    fn backward(&self, share: &LocalBatch) -> std::result::Result<Step, Error> {
        let Step { sums, gradients } = self.network.backward(share)?;
        let mut sums = sums.read()?;
        agree_on_interrupts(self.layout.group(), &mut sums)?;
        Ok(Step { sums: sums.into(), gradients })
    }

    fn weights(&self) -> &Weights {
        self.network.weights()
    }

    fn rank(&self) -> Option<&SharedCommunicator> {
        Some(self.layout.group().line())
    }

    /// All ranks evaluate together, and all get the result.
    fn evaluate(&self, images: &Dataset) -> std::result::Result<Option<BatchSums>, Error> {
        self.network.evaluate(images)
    }
}

impl<M: ModuleT> Whole for TensorParallel<M> {
    fn whole(&self, mine: Snapshot) -> std::result::Result<Option<Snapshot>, Error> {
        let whole = self.layout.whole_of(mine)?;
        Ok((self.layout.group().rank() == 0).then_some(whole))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use devices::DevicePlan;
    use params_and_allreduce::Algorithm;
    use params_and_allreduce::thread::{DEFAULT_TIMEOUT, run_ranks};

    use params_and_allreduce::communicator::Communicator as _;

    use super::*;

    #[test]
    fn one_ranks_interrupt_ends_all() {
        let plan = DevicePlan::slices(3).unwrap();
        let interrupts = run_ranks(&plan, DEFAULT_TIMEOUT, |rank| {
            let group = Group::new(Arc::new(rank.clone()), Algorithm::Ring);
            let interrupts = (rank.rank() == 1).into();
            let mut sums = BatchSums { loss: 2.0, samples: 7, interrupts, ..BatchSums::default() };
            agree_on_interrupts(&group, &mut sums)?;
            assert_eq!((sums.loss, sums.samples), (2.0, 7), "the same on all, and not added up");
            Ok::<_, Error>(sums.interrupts)
        });
        assert_eq!(interrupts.unwrap(), [1; 3]);
    }
}
