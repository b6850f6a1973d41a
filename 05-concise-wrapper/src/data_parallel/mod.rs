//! One line: a model on all devices, behind the face of a model on one.
//!
//! ```text
//!             the batch            scatter: a shard for each device
//!          ┌──────┴──────┐
//!       replica       replica      replicas: copies of the weights, made anew for each step
//!       shard 0       shard 1
//!          └──────┬──────┘
//!        the sum of gradients      gather: on the first device
//! ```
//!
//! One thread, the caller's, leads; one thread for each device follows. The caller's network holds the
//! weights, and its optimiser updates them as if there were one device.
//!
//! That is how PyTorch's `nn.DataParallel` works, and its price can be seen here: weights go to every device
//! and gradients to the first one, in every step, after the backward pass and not during it. Where that
//! matters, [`Ddp`](crate::Ddp) is the tool.

mod counter;
mod follower;

use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use candle_core::{Device, Module, ModuleT, Tensor};
use datasets::{Batch, Dataset};
use devices::{DevicePlan, move_view};
use harness::lock::locked;
use harness::records::BatchSums;
use harness::report::trace;
use params_and_allreduce::communicator::Communicator as _;
use params_and_allreduce::thread::{DEFAULT_TIMEOUT, GRACE, RankFailure, run_ranks_with};
use single_gpu::evaluate::SumsByBatch;
use single_gpu::train::Step;
use split_batch::{gather, split_batch};

use crate::model::Model;
use crate::weights::Weights;
use crate::{Error, Network, Precision};
use counter::{Answer, Leader, Missing, Order, connect};
use follower::follow;
use split_batch::loader::{LocalBatch, Shards};

/// What is told of a device of which nothing else is known.
const ENDED: &str = "a device has ended early";

/// How often it is looked whether a thread has ended.
const LOOK: Duration = Duration::from_millis(5);

/// A network on several devices.
pub struct DataParallel<M> {
    network: Arc<Network<M>>,
    devices: usize,
    /// For how long a device may be silent once another has answered.
    patience: Duration,
    /// Held from order to answer, so that two callers do not get each other's. Once a device has failed: why.
    leader: Mutex<std::result::Result<Leader, String>>,
    run: Mutex<Option<Run>>,
}

/// The thread in which all devices' threads live.
type Run = JoinHandle<Result<Vec<()>, RankFailure<Error>>>;

impl<M: ModuleT + Send + Sync + 'static> DataParallel<M> {
    /// Puts a replica of the network on every device of a plan.
    ///
    /// The network itself stays where it is; its weights are the ones to update.
    ///
    /// # Errors
    ///
    /// When the threads cannot be started.
    pub fn new(network: Network<M>, devices: &DevicePlan) -> Result<Self, Error> {
        Self::with_timeout(network, devices, DEFAULT_TIMEOUT)
    }

    /// [`new`](Self::new), where a device may be so much slower than another before it counts as failed; and
    /// [`GRACE`] more where no device waits for it but the caller's thread alone.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    pub fn with_timeout(
        network: Network<M>,
        devices: &DevicePlan,
        timeout: Duration,
    ) -> Result<Self, Error> {
        let network = Arc::new(network);
        let patience = timeout.saturating_add(GRACE);
        let (leader, followers) = connect(devices.len(), patience);
        let (model, plan) = (Arc::clone(&network), devices.clone());
        let run = move || {
            run_ranks_with(&plan, timeout, followers, |rank, ends| {
                let _rank = trace::rank("data parallel", rank.rank(), rank.compute_device());
                follow(rank, &model, &ends)
            })
        };
        let run = std::thread::Builder::new().spawn(run).map_err(candle_core::Error::wrap)?;
        let (leader, run) = (Mutex::new(Ok(leader)), Mutex::new(Some(run)));
        Ok(Self { network, devices: devices.len(), patience, leader, run })
    }

    /// From now on all batch norms use the statistics of all devices' images together.
    ///
    /// # Errors
    ///
    /// When a batch norm is not this crate's, or a device has failed.
    pub fn synchronise_norms(self) -> Result<Self, Error> {
        self.network.norms().check_all(Network::weights(&self.network))?;
        self.order((0..self.devices).map(|_| Order::SynchroniseNorms).collect())?;
        Ok(self)
    }

    /// The logits of a batch, as in evaluation: scattered, computed on all devices, gathered in order.
    ///
    /// # Errors
    ///
    /// When there are no images, when they do not fit the network, or when a device has failed.
    pub fn predict(&self, images: &Tensor) -> Result<Tensor, Error> {
        let samples = images.dim(0)?;
        if samples == 0 {
            return Err(candle_core::Error::Msg("there are no images to predict".to_owned()).into());
        }
        let labels = Tensor::zeros(samples, candle_core::DType::U32, &Device::Cpu)?;
        let shards = split_batch(images, &labels, self.devices)?;
        let orders = shards.into_iter().map(|(images, _)| Order::Predict(images)).collect();
        let mut logits = Vec::with_capacity(self.devices);
        for answer in self.order(orders)? {
            if let Answer::Logits(Some(of_shard)) = answer {
                logits.push(of_shard);
            }
        }
        Ok(gather(&logits, images.device())?)
    }

    /// Gives every device an order, and waits for all answers, in rank order.
    fn order(&self, orders: Vec<Order>) -> Result<Vec<Answer>, Error> {
        let mut leader = locked(&self.leader);
        let missing = match &*leader {
            Ok(devices) => match devices.exchange(orders) {
                Ok(answers) => return Ok(answers),
                Err(missing) => missing,
            },
            Err(why) => return Err(Error::Device(why.clone())),
        };
        // No more orders: that ends the devices that wait for one.
        *leader = Err(ENDED.to_owned());
        let why = self.failure(missing);
        *leader = Err(why.clone());
        Err(Error::Device(why))
    }

    /// Why a device answers no more.
    fn failure(&self, missing: Missing) -> String {
        let run = &mut *locked(&self.run);
        match missing {
            Missing::Failed(why) => why,
            Missing::Silent(rank) => {
                let seconds = self.patience.as_secs_f64();
                format!("device {rank} has not answered for {seconds} s, and another has")
            }
            // One that could not be opened, or panicked.
            Missing::Gone => {
                let ended = run.take_if(|run| ends(run, self.patience)).map(JoinHandle::join);
                match ended {
                    Some(Ok(Err(failure))) => failure.to_string(),
                    _ => ENDED.to_owned(),
                }
            }
        }
    }
}

/// Whether a thread comes to its end in time.
fn ends(run: &Run, patience: Duration) -> bool {
    let started = Instant::now();
    while !run.is_finished() && started.elapsed() < patience {
        std::thread::sleep(LOOK);
    }
    run.is_finished()
}

impl<M: ModuleT + Send + Sync + 'static> Module for DataParallel<M> {
    fn forward(&self, images: &Tensor) -> candle_core::Result<Tensor> {
        self.predict(images).map_err(candle_core::Error::wrap)
    }
}

impl<M: ModuleT + Send + Sync + 'static> Model for DataParallel<M> {
    fn hosts(&self) -> Shards {
        Shards::WHOLE
    }

    // ANCHOR: backward
    fn backward(&self, share: &LocalBatch) -> Result<Step, Error> {
        let Batch { images, labels } = &share.shards[0];
        let shards = split_batch(images, labels, self.devices)?;
        let orders =
            shards.into_iter().map(|(images, labels)| Order::Backward(Batch { images, labels }));
        let mut sums = BatchSums::default();
        let mut gradients = Vec::new();
        for answer in self.order(orders.collect())? {
            if let Answer::Gradients(of_shard, of_all) = answer {
                sums += of_shard;
                gradients.extend(of_all);
            }
        }
        let home = self.network.device();
        let gradients = gradients.iter().map(|gradient: &Tensor| move_view(gradient, home));
        Ok(Step { sums, gradients: gradients.collect::<candle_core::Result<_>>()? })
    }
    // ANCHOR_END: backward

    fn precision(&self) -> Precision {
        self.network.precision()
    }

    fn weights(&self) -> &Weights {
        Network::weights(&self.network)
    }

    fn evaluate(&self, images: &Dataset) -> Result<Option<BatchSums>, Error> {
        // Whole batches, and not shares of each: where images are normalised by the statistics of their batch, these must
        // not depend on the number of devices.
        let orders = (0..self.devices).map(|_| Order::Evaluate(images.clone()));
        let sums = self.order(orders.collect())?.into_iter().filter_map(|answer| match answer {
            Answer::Sums(of_part) => Some(of_part),
            _ => None,
        });
        let of_all = sums.reduce(SumsByBatch::and);
        Ok(of_all.map(|sums| sums.total()))
    }
}

impl<M> Drop for DataParallel<M> {
    /// Waits until all devices are closed. One that stalls is left behind after a while: nobody can end a thread.
    fn drop(&mut self) {
        // No more orders: that ends the followers.
        *locked(&self.leader) = Err(ENDED.to_owned());
        if let Ok(run) = self.run.get_mut()
            && let Some(run) = run.take_if(|run| ends(run, GRACE))
        {
            // Who failed has said so to whoever asked.
            let _ = run.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use candle_core::DType;
    use datasets::Split;
    use datasets::synthetic::dataset;

    use super::*;
    use crate::resnet::ResNet18;

    #[test]
    fn on_any_number_of_devices_a_test_has_the_sums_of_one() {
        // Five batches of 256, the last of them shorter. (Of fewer, sums in f64 are often the same in any order.)
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
                let model = DataParallel::new(network(), &plan).unwrap();
                assert_eq!(model.evaluate(&images).unwrap(), expected, "{devices} devices");
            }
        }
    }
}
