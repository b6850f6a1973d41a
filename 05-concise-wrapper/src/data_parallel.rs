//! Data parallelism in one line: a model on all devices that is used like a model on one.
//!
//! ```text
//!            replicate             the weights go to every device, in every step
//!          ┌──────┴──────┐
//!       replica       replica
//!       shard 0       shard 1      scatter: a shard of the batch for each device
//!          │             │         apply: loss and gradients of the shard
//!          └──────┬──────┘
//!        the sum of gradients      gather: on the first device
//! ```
//!
//! The caller's network holds the weights, and the caller's optimizer updates them, as on one device. PyTorch's
//! `nn.DataParallel` works in the same way, except that it computes the loss on the first device. The wrapper is slow: weights
//! go to every device and gradients to the first, in every step, after the backward pass. [`Ddp`](crate::Ddp) is faster.

// ANCHOR: imports
use std::sync::Arc;
use std::time::Duration;

use candle_core::{DType, Device, Module as _, ModuleT, Tensor};
use datasets::{Batch, Dataset};
use devices::{DevicePlan, move_view};
use harness::records::BatchSums;
use harness::report::trace::{COMMUNICATION, COMPUTE};
use ops::backward::no_grad;
use ops::parameters::overwrite;
use params_and_allreduce::communicator::Communicator as _;
use params_and_allreduce::thread::Rank;
use scratch_data_parallel::evaluate::part_of;
use single_gpu::evaluate::{SumsByBatch, evaluate_part};
use split_batch::loader::{LocalBatch, Shards};
use split_batch::{gather, split_batch};
use tracing::info_span;

use crate::device_threads::DeviceThreads;
use crate::model::{Model, Step, loss_of};
use crate::weights::Weights;
use crate::{Error, Network};
// ANCHOR_END: imports

// ANCHOR: struct
/// A network on several devices.
pub struct DataParallel<M> {
    /// Holds the weights.
    network: Arc<Network<M>>,
    /// Each holds a replica of the network.
    devices: DeviceThreads<Network<M>>,
    count: usize,
}
// ANCHOR_END: struct

impl<M: ModuleT + Send + Sync + 'static> DataParallel<M> {
    // ANCHOR: new
    /// Puts a replica of the network on every device of a plan. The network stays on its device.
    ///
    /// A device has failed if another device waits for it longer than `timeout`, or if it has not answered some seconds later.
    pub fn new(
        network: Network<M>,
        devices: &DevicePlan,
        timeout: Duration,
    ) -> Result<Self, Error> {
        let (network, count) = (Arc::new(network), devices.len());
        let original = Arc::clone(&network);
        let replica = move |rank: &Rank| Ok(original.replica(rank.device())?);
        let devices = DeviceThreads::start(devices, timeout, replica)?;
        Ok(Self { network, devices, count })
    }

    /// From now on all batch norms use the statistics of all devices' images together. Fails when a batch norm belongs to
    /// another crate, or a device has failed.
    pub fn synchronise_norms(self) -> Result<Self, Error> {
        self.network.norms().check_all(Network::weights(&self.network))?;
        self.devices.run(vec![(); self.count], |rank, replica, ()| {
            replica.norms().synchronise(Arc::new(rank.clone()));
            Ok(())
        })?;
        Ok(self)
    }
    // ANCHOR_END: new

    // ANCHOR: predict
    /// Computes the logits of a batch, as in evaluation: scattered, computed on all devices, gathered in order. Fails when
    /// there are no images, when they do not fit the network, or when a device has failed.
    pub fn predict(&self, images: &Tensor) -> Result<Tensor, Error> {
        let samples = images.dim(0)?;
        if samples == 0 {
            return Err(candle_core::Error::Msg("there are no images to predict".to_owned()).into());
        }
        let labels = Tensor::zeros(samples, DType::U32, &Device::Cpu)?;
        let network = Arc::clone(&self.network);
        let shards = split_batch(images, &labels, self.count)?;
        let logits = self.devices.run(shards, move |rank, replica, (images, _)| {
            replicate(&network, replica)?;
            let _span = info_span!(target: COMPUTE, "forward").entered();
            if images.dim(0)? == 0 {
                return Ok(None);
            }
            let images = move_view(&images, rank.device())?;
            Ok(Some(no_grad(|| replica.forward(&images))?.detach()))
        })?;
        Ok(gather(&logits.into_iter().flatten().collect::<Vec<_>>(), images.device())?)
    }
    // ANCHOR_END: predict
}

impl<M: ModuleT + Send + Sync + 'static> Model for DataParallel<M> {
    fn hosts(&self) -> Shards {
        Shards::WHOLE
    }

    // ANCHOR: backward
    fn backward(&self, batch: &LocalBatch) -> Result<Step, Error> {
        let Batch { images, labels } = &batch.shards[0];
        let network = Arc::clone(&self.network);
        let shards = split_batch(images, labels, self.count)?; // scatter
        let answers = self.devices.run(shards, move |rank, replica, (images, labels)| {
            replicate(&network, replica)?;
            let (loss, sums) = loss_of(replica, &Batch { images, labels })?; // apply
            let gradients = replica.gradients(&loss)?;
            let sums = sums.read()?;
            let gradients = gather_gradients(rank, gradients)?;
            if rank.rank() == 0 {
                // Like PyTorch, keep the running statistics of the first replica.
                for (to, from) in network.weights().buffers.iter().zip(&replica.weights().buffers) {
                    overwrite(&to.tensor, &from.tensor)?;
                }
            }
            Ok((sums, gradients))
        })?;
        let (mut sums, mut gradients) = (BatchSums::default(), Vec::new());
        for (of_shard, of_batch) in answers {
            sums += of_shard;
            gradients.extend(of_batch);
        }
        let home = |gradient: &Tensor| move_view(gradient, self.network.device());
        let gradients = gradients.iter().map(home).collect::<candle_core::Result<_>>()?;
        Ok(Step { sums: sums.into(), gradients })
    }
    // ANCHOR_END: backward

    fn weights(&self) -> &Weights {
        Network::weights(&self.network)
    }

    // ANCHOR: evaluate
    fn evaluate(&self, images: &Dataset) -> Result<Option<BatchSums>, Error> {
        let network = Arc::clone(&self.network);
        // Each device evaluates whole batches: with statistics of each batch, the result does not depend on the devices.
        let images = vec![images.clone(); self.count];
        let answers = self.devices.run(images, move |rank, replica, images| {
            replicate(&network, replica)?;
            Ok(evaluate_part(replica, &images, part_of(rank), replica.dtype(), rank.device())?)
        })?;
        Ok(answers.into_iter().reduce(SumsByBatch::and).map(|sums| sums.total()))
    }
    // ANCHOR_END: evaluate
}

// ANCHOR: replicate
/// Copies the weights to a replica. The caller waits meanwhile, and changes no weight.
fn replicate<M: ModuleT>(network: &Network<M>, replica: &Network<M>) -> Result<(), Error> {
    let _span = info_span!(target: COMMUNICATION, "replicate").entered();
    Ok(replica.weights().copy_from(network.weights())?)
}

/// Sums the gradients of all ranks on rank 0, in rank order. The remaining ranks get an empty list.
fn gather_gradients(rank: &Rank, mut gradients: Vec<Tensor>) -> Result<Vec<Tensor>, Error> {
    let _span = info_span!(target: COMMUNICATION, "gather gradients").entered();
    if rank.rank() > 0 {
        // No rank writes to a gradient, so nothing is copied.
        gradients.iter().try_for_each(|gradient| rank.send_shared(0, gradient))?;
        return Ok(Vec::new());
    }
    for other in 1..rank.world_size() {
        for sum in &mut gradients {
            let gradient = rank.recv(other, sum.shape(), sum.dtype())?;
            *sum = ops::sum(sum, &gradient)?;
        }
    }
    Ok(gradients)
}
// ANCHOR_END: replicate

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use candle_core::Result;
    use datasets::synthetic::dataset;
    use datasets::{CLASSES, PIXELS, Split};
    use ops::{flatten, linear};
    use params_and_allreduce::thread::DEFAULT_TIMEOUT;

    use super::*;
    use crate::resnet::ResNet18;

    #[test]
    fn on_any_number_of_devices_a_test_has_the_sums_of_one() {
        // Five batches of 256, and the last is shorter. Of fewer batches, sums in f64 are often the same in any order.
        let images = dataset(Split::Test, 1100);
        for by_batch in [false, true] {
            let network = || {
                let build = |vb: &candle_nn::VarBuilder<'_>, norms: &_| ResNet18::new(4, norms, vb);
                let network = Network::new(1, DType::F64, &Device::Cpu, build).unwrap();
                if by_batch {
                    network.norms().test_by_batch();
                }
                network
            };
            let expected = network().evaluate(&images).unwrap();
            for devices in 1..=4 {
                let plan = DevicePlan::slices(devices).unwrap();
                let model = DataParallel::new(network(), &plan, DEFAULT_TIMEOUT).unwrap();
                assert_eq!(model.evaluate(&images).unwrap(), expected, "{devices} devices");
            }
        }
    }

    /// A dense layer that counts its results with a gradient, and its results without.
    struct Counted {
        weight: Tensor,
        bias: Tensor,
        counts: Arc<[AtomicUsize; 2]>,
    }

    impl ModuleT for Counted {
        fn forward_t(&self, x: &Tensor, _train: bool) -> Result<Tensor> {
            let y = linear(&flatten(x)?, &self.weight, &self.bias)?;
            self.counts[usize::from(!y.track_op())].fetch_add(1, Ordering::SeqCst);
            Ok(y)
        }
    }

    fn counted(devices: usize) -> (DataParallel<Counted>, Arc<[AtomicUsize; 2]>) {
        let counts = Arc::new([0, 0].map(AtomicUsize::new));
        let of_layer = Arc::clone(&counts);
        let network = Network::new(1, DType::F32, &Device::Cpu, move |vb, _| {
            let (weight, bias) = (vb.get((PIXELS, CLASSES), "weight")?, vb.get(CLASSES, "bias")?);
            Ok(Counted { weight, bias, counts: Arc::clone(&of_layer) })
        });
        let plan = DevicePlan::slices(devices).unwrap();
        (DataParallel::new(network.unwrap(), &plan, DEFAULT_TIMEOUT).unwrap(), counts)
    }

    #[test]
    fn devices_keep_nothing_of_a_forward_pass_that_nobody_differentiates() {
        let (model, counts) = counted(2);
        let counted = || counts.each_ref().map(|count| count.load(Ordering::SeqCst));
        // A batch for each device.
        let images = dataset(Split::Test, 300);
        assert_eq!(model.evaluate(&images).unwrap().unwrap().samples, 300);
        assert_eq!(counted(), [0, 2]);
        let batch = images.batch(&[0, 1, 2], DType::F32).unwrap();
        assert_eq!(model.predict(&batch.images).unwrap().dims(), [3, CLASSES]);
        assert_eq!(counted(), [0, 4]);
    }
}
