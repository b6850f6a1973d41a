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

mod follower;

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use candle_core::{Device, Module, ModuleT, Tensor};
use params_and_allreduce::communicator::Communicator as _;
use params_and_allreduce::thread::{DEFAULT_TIMEOUT, RankFailure, run_ranks};
use single_gpu::data::{Batch, Dataset};
use single_gpu::device::{DevicePlan, move_view};
use single_gpu::evaluate::evaluate;
use single_gpu::report::trace;
use single_gpu::train::{BatchSums, Step};
use split_batch::{gather, split_batch};

use crate::model::{Hosts, Model};
use crate::shares::Share;
use crate::weights::Weights;
use crate::{Error, Network};
use follower::{Answer, Order, follow};

/// A network on several devices.
pub struct DataParallel<M> {
    network: Arc<Network<M>>,
    devices: Vec<Ends>,
    run: Mutex<Option<Run>>,
}

/// The thread in which all devices' threads live.
type Run = JoinHandle<Result<Vec<()>, RankFailure<Error>>>;

/// The leader's ends of the channels to and from one device.
struct Ends {
    orders: Sender<Order>,
    answers: Mutex<Receiver<Answer>>,
}

/// The follower's ends, until its thread takes them.
type Waiting = Mutex<Option<(Receiver<Order>, Sender<Answer>)>>;

impl<M: ModuleT + Send + Sync + 'static> DataParallel<M> {
    /// Puts a replica of the network on every device of a plan.
    ///
    /// The network itself stays where it is; its weights are the ones to update.
    ///
    /// # Errors
    ///
    /// When the threads cannot be started.
    pub fn new(network: Network<M>, devices: &DevicePlan) -> Result<Self, Error> {
        let network = Arc::new(network);
        let (ends, waiting): (Vec<Ends>, Vec<Waiting>) = (0..devices.len())
            .map(|_| {
                let ((orders, to_do), (done, answers)) = (channel(), channel());
                let ends = Ends { orders, answers: Mutex::new(answers) };
                (ends, Mutex::new(Some((to_do, done))))
            })
            .unzip();
        let (model, plan) = (Arc::clone(&network), devices.clone());
        let run = move || {
            run_ranks(&plan, DEFAULT_TIMEOUT, |rank| {
                let _rank = trace::rank("data parallel", rank.rank(), rank.compute_device());
                let taken = waiting[rank.rank()].lock().ok().and_then(|mut ends| ends.take());
                match taken {
                    Some((orders, answers)) => follow(rank, &model, &orders, &answers),
                    None => Ok(()),
                }
            })
        };
        let run = std::thread::Builder::new().spawn(run).map_err(candle_core::Error::wrap)?;
        Ok(Self { network, devices: ends, run: Mutex::new(Some(run)) })
    }

    /// From now on all batch norms use the statistics of all devices' images together.
    ///
    /// # Errors
    ///
    /// When a device has failed.
    pub fn synchronise_norms(self) -> Result<Self, Error> {
        self.order(self.devices.iter().map(|_| Order::SynchroniseNorms).collect())?;
        Ok(self)
    }

    /// The logits of a batch, as in evaluation: scattered, computed on all devices, gathered in order.
    ///
    /// # Errors
    ///
    /// When the images do not fit the network, or a device has failed.
    pub fn predict(&self, images: &Tensor) -> Result<Tensor, Error> {
        let samples = images.dim(0)?;
        let labels = Tensor::zeros(samples, candle_core::DType::U32, &Device::Cpu)?;
        let shards = split_batch(images, &labels, self.devices.len())?;
        let orders = shards.into_iter().map(|(images, _)| Order::Predict(images)).collect();
        let mut logits = Vec::with_capacity(self.devices.len());
        for answer in self.order(orders)? {
            if let Answer::Logits(Some(of_shard)) = answer {
                logits.push(of_shard);
            }
        }
        Ok(gather(&logits, images.device())?)
    }

    /// Gives every device an order, and waits for all answers, in rank order.
    fn order(&self, orders: Vec<Order>) -> Result<Vec<Answer>, Error> {
        for (device, order) in self.devices.iter().zip(orders) {
            if device.orders.send(order).is_err() {
                return Err(self.failure());
            }
        }
        let answer =
            |device: &Ends| device.answers.lock().ok().and_then(|answers| answers.recv().ok());
        let answers: Option<Vec<Answer>> = self.devices.iter().map(answer).collect();
        answers.ok_or_else(|| self.failure())
    }

    /// Why a device answers no more.
    fn failure(&self) -> Error {
        let run = self.run.lock().ok().and_then(|mut run| run.take());
        let told = match run.map(JoinHandle::join) {
            Some(Ok(Err(failure))) => failure.to_string(),
            _ => "a device has ended early".to_owned(),
        };
        Error::Device(told)
    }
}

impl<M: ModuleT + Send + Sync + 'static> Module for DataParallel<M> {
    fn forward(&self, images: &Tensor) -> candle_core::Result<Tensor> {
        self.predict(images).map_err(candle_core::Error::wrap)
    }
}

impl<M: ModuleT + Send + Sync + 'static> Model for DataParallel<M> {
    fn hosts(&self) -> Hosts {
        Hosts::WHOLE
    }

    // ANCHOR: backward
    fn backward(&self, share: &Share) -> Result<Step, Error> {
        let Batch { images, labels } = &share.shards[0];
        let shards = split_batch(images, labels, self.devices.len())?;
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

    fn weights(&self) -> &Weights {
        Network::weights(&self.network)
    }

    fn evaluate(&self, images: &Dataset) -> Result<Option<BatchSums>, Error> {
        Ok(Some(evaluate(self, images, self.network.dtype(), self.network.device())?))
    }
}

impl<M> Drop for DataParallel<M> {
    /// Waits until all devices are closed.
    fn drop(&mut self) {
        // No more orders: that ends the followers.
        self.devices.clear();
        if let Ok(run) = self.run.get_mut()
            && let Some(run) = run.take()
        {
            // Who failed has said so to whoever asked.
            let _ = run.join();
        }
    }
}
