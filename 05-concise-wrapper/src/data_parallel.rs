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
//! `nn.DataParallel` works in the same way, except that it computes the loss on the first device.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use candle_core::{ModuleT, Tensor};
use datasets::{Batch, Dataset};
use devices::{DevicePlan, move_view};
use harness::lock::locked;
use harness::records::BatchSums;
use harness::report::trace::{self, COMMUNICATION};
use ops::update::overwrite;
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::Communicator as _;
use params_and_allreduce::thread::{Rank, run_ranks_with};
use scratch_data_parallel::allreduce_sums;
use scratch_data_parallel::evaluate::evaluate_together;
use single_gpu::evaluate::evaluate_part;
use split_batch::loader::LocalBatch;
use split_batch::split_batch;
use tracing::info_span;

use crate::batch_norm::merged;
use crate::model::{Model, Step, loss_of};
use crate::weights::Weights;
use crate::{Error, Network};

// ANCHOR: struct
/// A network on several devices.
pub struct DataParallel<M> {
    /// Holds the weights.
    network: Arc<Network<M>>,
    threads: Mutex<Threads<M>>,
}

/// Sums over the samples of all devices, and summed gradients if the work computes some.
type Sums = (BatchSums, Vec<Tensor>);

/// Work of one rank, with the replica on its device.
type Work<M> = Arc<dyn Fn(&Rank, &Network<M>) -> Result<Sums, Error> + Send + Sync>;

/// The threads of the devices. They stay open between two steps: a GPU's libraries keep buffers for each thread.
struct Threads<M> {
    /// A queue of work for each device. Empty after a failure.
    queues: Vec<Sender<Work<M>>>,
    /// The results of the first device.
    results: Receiver<Sums>,
    /// The thread that started the ranks returns their first failure. `None` after a failure.
    ranks: Option<JoinHandle<Option<String>>>,
    failure: String,
}
// ANCHOR_END: struct

impl<M: ModuleT + Send + Sync + 'static> DataParallel<M> {
    // ANCHOR: new
    /// Puts a replica of the network on every device of a plan. The network stays on its device. A device has failed if
    /// another device waits for it longer than `timeout`.
    pub fn new(network: Network<M>, plan: &DevicePlan, timeout: Duration) -> Result<Self, Error> {
        let (network, plan) = (Arc::new(network), plan.clone());
        let (queues, of_ranks): (_, Vec<_>) = plan.slots().iter().map(|_| channel()).unzip();
        let (original, (result, results)) = (Arc::clone(&network), channel());
        let start = move || {
            let rank = |device: &_, rank: Rank, queue: Receiver<Work<M>>| {
                let _rank = trace::rank("data parallel", rank.rank(), device);
                let replica = original.replica(rank.device())?;
                queue.into_iter().try_for_each(|work| {
                    let sums = work(&rank, &replica)?;
                    // The error names a device that stalls.
                    rank.barrier()?;
                    if rank.rank() == 0 {
                        let _ = result.send(sums);
                    }
                    Ok::<_, Error>(())
                })
            };
            run_ranks_with(&plan, timeout, of_ranks, rank).err().map(|first| first.to_string())
        };
        let ranks = Some(thread::Builder::new().spawn(start).map_err(candle_core::Error::wrap)?);
        let failure = "a device has ended early".to_owned();
        Ok(Self { network, threads: Mutex::new(Threads { queues, results, ranks, failure }) })
    }

    /// From now on all batch norms use the statistics of all devices' images together. Fails when a batch norm belongs to
    /// another crate, or a device has failed.
    pub fn synchronise_norms(self) -> Result<Self, Error> {
        self.network.norms().check_all(self.weights())?;
        self.run(|rank, replica| {
            replica.norms().synchronise(rank.into(), Arc::new(merged));
            Ok(Sums::default())
        })?;
        Ok(self)
    }

    /// Runs `work` on all devices, and waits for all of them. Returns the result of the first device. Fails with the first
    /// failure of a device, and so do all later calls.
    fn run(
        &self,
        work: impl Fn(&Rank, &Network<M>) -> Result<Sums, Error> + Send + Sync + 'static,
    ) -> Result<Sums, Error> {
        let (threads, work) = (&mut *locked(&self.threads), Arc::new(work));
        for queue in &threads.queues {
            // A device that has failed takes no more work.
            let _ = queue.send(work.clone());
        }
        threads.results.recv().map_err(|_| Error::Model(threads.end().into()))
    }
}

impl<M> Threads<M> {
    /// Ends all threads. Returns the first failure of a device.
    fn end(&mut self) -> String {
        self.queues.clear();
        if let Some(Ok(Some(first))) = self.ranks.take().map(JoinHandle::join) {
            self.failure = first;
        }
        self.failure.clone()
    }
}

impl<M> Drop for Threads<M> {
    fn drop(&mut self) {
        self.end();
    }
}

impl<M: ModuleT + Send + Sync + 'static> Model for DataParallel<M> {
    fn weights(&self) -> &Weights {
        Network::weights(&self.network)
    }

    fn evaluate(&self, images: &Dataset) -> Result<BatchSums, Error> {
        let (network, images) = (Arc::clone(&self.network), images.clone());
        let evaluated = self.run(move |rank, replica| {
            replicate(&network, replica)?;
            let sums = evaluate_together::<Error>(rank, |part| {
                Ok(evaluate_part(replica, &images, part, replica.dtype(), rank.device())?)
            })?;
            Ok((sums, Vec::new()))
        });
        Ok(evaluated?.0)
    }
    // ANCHOR_END: new

    // ANCHOR: backward
    fn backward(&self, batch: &LocalBatch) -> Result<Step, Error> {
        let (network, batch) = (Arc::clone(&self.network), batch.shards[0].clone());
        let (sums, mut gradients) = self.run(move |rank, replica| {
            replicate(&network, replica)?;
            let mut shards = split_batch(&batch.images, &batch.labels, rank.world_size())?;
            let (images, labels) = shards.swap_remove(rank.rank()); // scatter
            let (loss, sums) = loss_of(replica, &Batch { images, labels })?; // apply
            let gradients = gather(rank, replica.gradients(&loss)?)?;
            let sums = allreduce_sums(rank, sums.read()?, Algorithm::OneShot)?;
            if rank.rank() == 0 {
                // Like PyTorch, keep the running statistics of the first replica.
                for (to, from) in network.weights().buffers.iter().zip(&replica.weights().buffers) {
                    overwrite(&to.tensor, &from.tensor)?;
                }
            }
            Ok((sums, gradients))
        })?;
        for gradient in &mut gradients {
            *gradient = move_view(gradient, self.network.device())?;
        }
        Ok(Step { sums: sums.into(), gradients })
    }
    // ANCHOR_END: backward
}

// ANCHOR: replicate
/// Copies the weights to a replica. The caller waits meanwhile, and changes no weight.
fn replicate<M: ModuleT>(network: &Network<M>, replica: &Network<M>) -> Result<(), Error> {
    let _span = info_span!(target: COMMUNICATION, "replicate").entered();
    Ok(replica.weights().copy_from(network.weights())?)
}

/// Sums the gradients of all ranks on rank 0, in rank order. The remaining ranks keep their own.
fn gather(rank: &Rank, mut gradients: Vec<Tensor>) -> Result<Vec<Tensor>, Error> {
    let _span = info_span!(target: COMMUNICATION, "gather gradients").entered();
    if rank.rank() > 0 {
        // No rank writes to a gradient, so nothing is copied.
        gradients.iter().try_for_each(|gradient| rank.send_shared(0, gradient))?;
        return Ok(gradients);
    }
    for other in 1..rank.world_size() {
        for sum in &mut gradients {
            *sum = ops::sum(sum, &rank.recv(other, sum.shape(), sum.dtype())?)?;
        }
    }
    Ok(gradients)
}
// ANCHOR_END: replicate

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use candle_core::{DType, Device, Result, bail};
    use candle_nn::Linear;
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
        assert_eq!(model.evaluate(&images).unwrap().samples, 300);
        assert_eq!(counted(), [0, 2]);
    }

    fn layers(devices: usize, timeout: Duration) -> DataParallel<Linear> {
        let network = Network::new(1, DType::F32, &Device::Cpu, |vb, _| {
            // A rank's thread has the name of its device.
            match thread::current().name() {
                Some("cpu:3 (1 core)") => bail!("no memory"),
                _ => candle_nn::linear(2, 1, vb.clone()),
            }
        });
        let plan = DevicePlan::slices(devices).unwrap();
        DataParallel::new(network.unwrap(), &plan, timeout).unwrap()
    }

    #[test]
    fn the_first_device_answers_after_all_have_ended() {
        let (model, ended) = (layers(3, DEFAULT_TIMEOUT), Arc::new(AtomicUsize::new(0)));
        let counts = Arc::clone(&ended);
        let work = move |rank: &Rank, _: &Network<_>| {
            thread::sleep(Duration::from_millis([0, 30, 60][rank.rank()]));
            counts.fetch_add(1, Ordering::SeqCst);
            Ok((BatchSums { correct: rank.rank() as u64 + 7, ..BatchSums::default() }, Vec::new()))
        };
        let (sums, _) = model.run(work).unwrap();
        assert_eq!((sums.correct, ended.load(Ordering::SeqCst)), (7, 3));
    }

    #[test]
    fn a_device_that_panics_is_named_in_every_later_call() {
        let model = layers(3, DEFAULT_TIMEOUT);
        for fails in [true, false] {
            let panics = move |rank: &Rank, _: &Network<_>| {
                assert!(!fails || rank.rank() != 1, "on purpose");
                Ok(Sums::default())
            };
            let error = model.run(panics).unwrap_err().to_string();
            assert_eq!(error, "rank 1 panicked: on purpose");
        }
    }

    #[test]
    fn the_first_device_that_fails_is_named_and_not_those_that_wait_for_it() {
        let model = layers(3, DEFAULT_TIMEOUT);
        let fails = |rank: &Rank, _: &Network<_>| match rank.rank() {
            1 => Err(Error::Model("out of memory".into())),
            _ => Ok(rank.recv(1, &().into(), DType::F32).map(|_| Sums::default())?),
        };
        let error = model.run(fails).unwrap_err().to_string();
        assert_eq!(error, "rank 1 failed: out of memory");
    }

    #[test]
    fn a_device_that_stalls_is_named() {
        for late in 0..3 {
            let model = layers(3, Duration::from_millis(200));
            let stalls = move |rank: &Rank, _: &Network<_>| {
                if rank.rank() == late {
                    thread::sleep(Duration::from_secs(1));
                }
                Ok(Sums::default())
            };
            let error = model.run(stalls).unwrap_err().to_string();
            let told = format!("waited 0.2 s: rank {late} is alive but sends nothing");
            assert!(error.ends_with(&told), "{error}");
        }
    }

    #[test]
    fn devices_that_have_ended_are_not_waited_for() {
        let model = layers(2, DEFAULT_TIMEOUT);
        locked(&model.threads).queues = (0..2).map(|_| channel().0).collect();
        let error = model.run(|_, _| Ok(Sums::default())).unwrap_err().to_string();
        assert_eq!(error, "a device has ended early");
    }

    #[test]
    fn a_device_that_cannot_be_opened_is_named() {
        let model = layers(4, DEFAULT_TIMEOUT);
        let error = model.run(|_, _| Ok(Sums::default())).unwrap_err().to_string();
        assert!(error.starts_with("rank 3 failed: no memory"), "{error}");
    }
}
