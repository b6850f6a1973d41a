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
//! The caller's network holds the weights, and the caller's optimizer updates them, as on one device. Each device has a thread
//! that waits for work.
//!
//! PyTorch's `nn.DataParallel` works in the same way, except that it computes the loss on the first device. The wrapper is
//! slow: weights go to every device and gradients to the first, in every step, after the backward pass.
//! [`Ddp`](crate::Ddp) is faster.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use candle_core::{DType, Device, Module as _, ModuleT, Tensor};
use datasets::{Batch, Dataset};
use devices::{DevicePlan, move_view};
use harness::lock::locked;
use harness::records::BatchSums;
use harness::report::trace::{self, COMMUNICATION, COMPUTE};
use harness::stopwatch::recv_timeout;
use ops::backward::no_grad;
use ops::parameters::overwrite;
use params_and_allreduce::communicator::Communicator as _;
use params_and_allreduce::thread::{GRACE, Rank, RankFailure, attempt, run_ranks_with};
use scratch_data_parallel::evaluate::part_of;
use single_gpu::evaluate::{SumsByBatch, evaluate_part};
use split_batch::loader::{LocalBatch, Shards};
use split_batch::{gather, split_batch};
use tracing::info_span;

use crate::model::{Model, Step, gradients_of, loss_of};
use crate::weights::Weights;
use crate::{Error, Network};

/// The failure of a device of which nothing else is known.
const ENDED: &str = "a device has ended early";

/// A network on several devices.
pub struct DataParallel<M> {
    /// Holds the weights.
    network: Arc<Network<M>>,
    /// The number of devices.
    count: usize,
    /// The time for which a device may be silent once another has answered.
    patience: Duration,
    devices: Mutex<Devices<M>>,
}

/// Work for the thread of a device, which has a rank and a replica of the network.
type Work<M> = Box<dyn FnOnce(&Rank, &Network<M>) -> Result<(), Error> + Send>;

struct Devices<M> {
    /// A queue of work for each device, or the failure of a device. When the queues are dropped, the threads end.
    queues: Result<Vec<Sender<Work<M>>>, String>,
    /// The first failure of a thread, after all threads have ended.
    ended: Receiver<Option<String>>,
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
        let answers = self.on_each(shards, move |rank, replica, (images, labels)| {
            replicate(&network, replica)?;
            let (loss, sums) = loss_of(replica, &Batch { images, labels })?; // apply
            let gradients = gradients_of(replica, &loss)?;
            let sums = sums.read()?;
            let gradients = gather_gradients(rank, gradients)?;
            if rank.rank() == 0 {
                // Like PyTorch, keep the running statistics of the first replica.
                let buffers = network.weights().buffers.iter().zip(&replica.weights().buffers);
                buffers
                    .into_iter()
                    .try_for_each(|(to, from)| overwrite(&to.tensor, &from.tensor))?;
            }
            Ok((sums, gradients))
        })?;
        let mut sums = BatchSums::default();
        let mut gradients = Vec::new();
        for (of_shard, of_batch) in answers {
            sums += of_shard;
            gradients.extend(of_batch);
        }
        let home = self.network.device();
        let gradients = gradients.iter().map(|gradient: &Tensor| move_view(gradient, home));
        let gradients = gradients.collect::<candle_core::Result<_>>()?;
        Ok(Step { sums: sums.into(), gradients })
    }
    // ANCHOR_END: backward

    fn weights(&self) -> &Weights {
        Network::weights(&self.network)
    }

    fn evaluate(&self, images: &Dataset) -> Result<Option<BatchSums>, Error> {
        let network = Arc::clone(&self.network);
        // Each device evaluates whole batches: with statistics of each batch, the result does not depend on the devices.
        let answers =
            self.on_each(vec![images.clone(); self.count], move |rank, replica, images| {
                replicate(&network, replica)?;
                Ok(evaluate_part(replica, &images, part_of(rank), replica.dtype(), rank.device())?)
            })?;
        Ok(answers.into_iter().reduce(SumsByBatch::and).map(|sums| sums.total()))
    }
}

/// Copies the weights to a replica. The caller waits meanwhile, and changes no weight.
fn replicate<M: ModuleT>(network: &Network<M>, replica: &Network<M>) -> Result<(), Error> {
    let _span = info_span!(target: COMMUNICATION, "replicate").entered();
    Ok(replica.weights().copy_from(network.weights())?)
}

/// Sums the gradients of all ranks on rank 0, in rank order. The other ranks get an empty list.
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

impl<M: ModuleT + Send + Sync + 'static> DataParallel<M> {
    /// Puts a replica of the network on every device of a plan. The network stays on its own device.
    ///
    /// A device has failed if another device waits for it longer than `timeout`, or if it has not answered `timeout` plus
    /// [`GRACE`] after another device.
    pub fn new(
        network: Network<M>,
        devices: &DevicePlan,
        timeout: Duration,
    ) -> Result<Self, Error> {
        let (network, plan, count) = (Arc::new(network), devices.clone(), devices.len());
        let (queues, work): (Vec<_>, Vec<_>) = (0..count).map(|_| channel::<Work<M>>()).unzip();
        let (end, ended) = channel();
        let original = Arc::clone(&network);
        let run = move || {
            let outcome = run_ranks_with(&plan, timeout, work, |rank, queue| {
                let _rank = trace::rank("data parallel", rank.rank(), rank.compute_device());
                let replica = original.replica(rank.device())?;
                queue.into_iter().try_for_each(|work| work(rank, &replica))
            });
            let _ = end.send(outcome.err().map(|failure: RankFailure<Error>| failure.to_string()));
        };
        thread::Builder::new().spawn(run).map_err(candle_core::Error::wrap)?;
        // A device that waits for another knows which one is late. So the caller waits longer.
        let patience = timeout.saturating_add(GRACE);
        let devices = Mutex::new(Devices { queues: Ok(queues), ended });
        Ok(Self { network, count, patience, devices })
    }

    /// From now on all batch norms use the statistics of all devices' images together. Fails when a batch norm belongs to
    /// another crate, or a device has failed.
    pub fn synchronise_norms(self) -> Result<Self, Error> {
        self.network.norms().check_all(Network::weights(&self.network))?;
        self.on_each(vec![(); self.count], |rank, replica, ()| {
            replica.norms().synchronise(Arc::new(rank.clone()));
            Ok(())
        })?;
        Ok(self)
    }

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
        let logits = self.on_each(shards, move |rank, replica, (images, _)| {
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

    /// Runs `work` on all devices, each with its own input, and waits for all results. Returns them in rank order.
    fn on_each<I: Send + 'static, T: Send + 'static>(
        &self,
        inputs: Vec<I>,
        work: impl Fn(&Rank, &Network<M>, I) -> Result<T, Error> + Send + Sync + 'static,
    ) -> Result<Vec<T>, Error> {
        // One caller at a time.
        let devices = &mut *locked(&self.devices);
        let queues = devices.queues.as_ref().map_err(|why| Error::Device(why.clone()))?;
        let (work, (answer, answers)) = (Arc::new(work), channel());
        for (queue, input) in queues.iter().zip(inputs) {
            let (work, answer) = (Arc::clone(&work), answer.clone());
            // A device that has ended drops its work, and so its end of the channel of answers.
            let _ = queue.send(Box::new(move |rank: &Rank, replica: &Network<M>| {
                let number = rank.rank();
                let outcome = attempt(rank.compute_device(), || work(rank, replica, input));
                // The caller gets a failure before the other devices do.
                let outcome =
                    outcome.map_err(|cause| RankFailure { rank: number, cause }.to_string());
                let failed = outcome.as_ref().err().cloned().map(Error::Device);
                let _ = answer.send((number, outcome));
                failed.map_or(Ok(()), Err)
            }));
        }
        drop(answer);
        let mut results: Vec<Option<T>> = (0..self.count).map(|_| None).collect();
        for answered in 0..self.count {
            // The time of a step is not known, so there is no limit for the first answer.
            let next = match answered {
                0 => answers.recv().map_err(RecvTimeoutError::from),
                _ => recv_timeout(&answers, self.patience),
            };
            let failure = match next {
                Ok((rank, Ok(result))) => {
                    results[rank] = Some(result);
                    continue;
                }
                Ok((_, Err(failure))) => failure,
                Err(RecvTimeoutError::Timeout) => {
                    let silent = results.iter().position(Option::is_none).unwrap_or(0);
                    let seconds = self.patience.as_secs_f64();
                    format!("device {silent} has not answered for {seconds} s, and another has")
                }
                // A device could not be opened.
                Err(RecvTimeoutError::Disconnected) => devices.end(self.patience),
            };
            devices.queues = Err(failure.clone());
            return Err(Error::Device(failure));
        }
        Ok(results.into_iter().flatten().collect())
    }
}

impl<M> Devices<M> {
    /// Ends the threads, and waits for them. Returns the first failure.
    fn end(&mut self, limit: Duration) -> String {
        self.queues = Err(ENDED.to_owned());
        recv_timeout(&self.ended, limit).ok().flatten().unwrap_or_else(|| ENDED.to_owned())
    }
}

impl<M> Drop for DataParallel<M> {
    /// Waits until all devices are closed. A device that stalls is left behind after [`GRACE`]: a thread cannot be ended.
    fn drop(&mut self) {
        locked(&self.devices).end(GRACE);
    }
}

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

    /// A dense layer that counts its results that carry a gradient, and those that carry none.
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

    #[test]
    fn results_are_in_the_order_of_ranks() {
        let (model, _) = counted(3);
        let results = model.on_each(vec![30, 20, 10], |rank, _, milliseconds| {
            thread::sleep(Duration::from_millis(milliseconds));
            Ok((rank.rank(), milliseconds))
        });
        assert_eq!(results.unwrap(), [(0, 30), (1, 20), (2, 10)]);
    }

    #[test]
    fn a_device_that_panics_is_named_in_every_later_call() {
        let (model, _) = counted(3);
        let panics = |rank: &Rank, _: &Network<Counted>, ()| {
            assert_ne!(rank.rank(), 1, "on purpose");
            Ok(())
        };
        for _ in 0..2 {
            let error = model.on_each(vec![(); 3], panics).unwrap_err().to_string();
            assert!(
                error.starts_with("rank 1 panicked: ") && error.contains("on purpose"),
                "{error}"
            );
        }
    }

    #[test]
    fn the_first_device_that_fails_is_named_and_not_those_that_wait_for_it() {
        let (model, _) = counted(3);
        let fails = |rank: &Rank, _: &Network<Counted>, ()| match rank.rank() {
            1 => Err(Error::Device("out of memory".to_owned())),
            number => {
                let message = rank.recv(1, &().into(), DType::F32);
                // Rank 1 answers before it ends, and so before these calls return.
                message.map(drop).map_err(|error| Error::Device(format!("{number}: {error}")))
            }
        };
        let error = model.on_each(vec![(); 3], fails).unwrap_err().to_string();
        assert_eq!(error, "rank 1 failed: out of memory");
    }

    #[test]
    fn a_device_that_stalls_is_named() {
        let (mut model, _) = counted(3);
        model.patience = Duration::from_millis(20);
        let stalls = |rank: &Rank, _: &Network<Counted>, ()| {
            if rank.rank() == 1 {
                thread::sleep(Duration::from_millis(500));
            }
            Ok(())
        };
        let error = model.on_each(vec![(); 3], stalls).unwrap_err().to_string();
        assert_eq!(error, "device 1 has not answered for 0.02 s, and another has");
    }

    #[test]
    fn devices_that_have_ended_are_not_waited_for() {
        let (model, _) = counted(2);
        locked(&model.devices).queues = Ok((0..2).map(|_| channel().0).collect());
        let error = model.on_each(vec![(); 2], |_, _, ()| Ok(())).unwrap_err().to_string();
        assert_eq!(error, ENDED);
    }
}
