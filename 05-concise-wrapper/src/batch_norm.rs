//! Batch normalisation over several devices.
//!
//! In training, a batch norm normalises each channel by the mean and variance of *the batch*. On several devices, [`Norms`] chooses
//! the images of these statistics. In evaluation, a channel is normalised by *running statistics*.

use std::sync::{Arc, Mutex, MutexGuard};

use candle_core::{DType, Device, ModuleT, Result, Tensor, Var, bail};
use candle_nn::VarBuilder;
use candle_nn::init::Init;
use harness::lock::locked;
use ops::backward::record_copy;
use ops::batch_norm::{
    Average, OutputGradient, Statistics, average_all, batch_norm, batch_norm_with,
};
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::{self, Communicator, SharedCommunicator};
use scratch_data_parallel::FixedTree;

use crate::precision::Precision;
use crate::weights::{Named, Weights};

/// Added to variances: the variance of a constant channel is zero. PyTorch's default.
const EPSILON: f64 = 1e-5;

/// The weight of the newest batch in the running statistics. PyTorch's default.
const MOMENTUM: f64 = 0.1;

/// Above this mean or variance the weights of all ranks run away.
const RUNNING_AWAY: f64 = 1e12;

// ANCHOR: layer
/// One layer: learnt scale and shift, running statistics, and an optional relu after it.
///
/// `[B, C, H, W]` → `[B, C, H, W]`.
pub struct BatchNorm {
    weight: Tensor,
    bias: Tensor,
    relu: bool,
    norms: Norms,
    layer: usize,
}

impl BatchNorm {
    /// Makes a layer for `channels` channels: `weight` starts at 1, `bias` at 0, `running_mean` at 0, `running_var` at 1.
    pub fn new(channels: usize, relu: bool, norms: &Norms, vb: &VarBuilder<'_>) -> Result<Self> {
        let vb = vb.to_dtype(Precision::from(vb.dtype()).weights());
        let constant = |name, value| vb.get_with_hints(channels, name, Init::Const(value));
        let (weight, bias) = (constant("weight", 1.0)?, constant("bias", 0.0)?);
        // The builder's buffers are variables, and these share their memory.
        let running = |name, value| Var::from_tensor(&constant(name, value)?);
        let (mean, variance) = (running("running_mean", 0.0)?, running("running_var", 1.0)?);
        let layers = &mut norms.lock().layers;
        layers.push(Layer { mean, variance, seen: Vec::new() });
        Ok(Self { weight, bias, relu, norms: norms.clone(), layer: layers.len() - 1 })
    }

    fn train(&self, x: &Tensor) -> Result<Tensor> {
        let (sharing, shard, counts) = {
            let shared = self.norms.lock();
            (shared.sharing.clone(), shared.shard, !shared.stand_in)
        };
        let (y, statistics) = match &sharing {
            Sharing::Synchronised(rank, by) => self.synchronised(x, rank.clone(), &**by, counts)?,
            Sharing::Local | Sharing::ByShard => {
                let (y, own) = batch_norm(x, &self.weight, &self.bias, EPSILON, self.relu)?;
                (y, Statistics { count: if counts { own.count } else { 0 }, ..own })
            }
        };
        if statistics.count == 1 {
            bail!(
                "a batch norm has one value for each channel of {:?}, and no variance: train with more images, or larger ones",
                x.dims()
            );
        }
        self.norms.lock().layers[self.layer].seen.push((shard, statistics));
        Ok(y)
    }

    fn evaluate(&self, x: &Tensor) -> Result<Tensor> {
        if self.norms.lock().tests_by_batch {
            return Ok(batch_norm(x, &self.weight, &self.bias, EPSILON, self.relu)?.0);
        }
        self.norms.average()?;
        let statistics = {
            let Layer { mean, variance, .. } = &self.norms.lock().layers[self.layer];
            let in_f64 = |running: &Var| running.as_detached_tensor().to_dtype(DType::F64);
            Statistics { mean: in_f64(mean)?, variance: in_f64(variance)?, count: 1 }
        };
        batch_norm_with(x, &self.weight, &self.bias, &statistics, EPSILON, self.relu)
    }
}

impl ModuleT for BatchNorm {
    fn forward_t(&self, x: &Tensor, train: bool) -> Result<Tensor> {
        if train { self.train(x) } else { self.evaluate(x) }
    }
}
// ANCHOR_END: layer

// ANCHOR: norms
/// The settings that all batch norms of a network share. Clones share them too.
#[derive(Clone, Default)]
pub struct Norms(Arc<Mutex<Shared>>);

#[derive(Default)]
struct Shared {
    sharing: Sharing,
    /// The shard of the next forward pass, counted from 0 within this rank.
    shard: usize,
    /// Whether the next images replace an empty shard, and do not count.
    stand_in: bool,
    /// Whether evaluation, too, uses the statistics of its images.
    tests_by_batch: bool,
    layers: Vec<Layer>,
}

/// The statistics of all ranks' images, from this rank's images. `false` if they replace an empty shard, and do not count.
pub type Merge = dyn Fn(&SharedCommunicator, &Tensor, bool) -> Result<Statistics> + Send + Sync;

/// The images of the statistics that a layer uses.
#[derive(Clone, Default)]
enum Sharing {
    /// The device's own shard, as in PyTorch's DDP by default. The result differs from one device.
    #[default]
    Local,
    /// The global batch: devices exchange sums in every layer, twice. The result equals one device, up to rounding.
    Synchronised(SharedCommunicator, Arc<Merge>),
    /// Each of a fixed number of shards: the same bits on any number of devices.
    ByShard,
}

/// The running statistics of one layer.
struct Layer {
    mean: Var,
    variance: Var,
    /// The statistics that have not moved the running statistics yet, each with the number of its shard. Images that replace an
    /// empty shard have a count of 0.
    seen: Vec<(usize, Statistics)>,
}
// ANCHOR_END: norms

impl Norms {
    // ANCHOR: settings
    /// From now on layers use the statistics of all ranks' images together, which `merge` computes, such as [`merged`].
    pub fn synchronise(&self, communicator: SharedCommunicator, merge: Arc<Merge>) {
        self.lock().sharing = Sharing::Synchronised(communicator, merge);
    }

    /// From now on layers use the statistics of each forward pass's own images, and keep them until [`fold`](Self::fold).
    /// Call [`shard`](Self::shard) before each forward pass.
    pub fn by_shard(&self) {
        self.lock().sharing = Sharing::ByShard;
    }

    /// From now on layers use the statistics of their own images in evaluation, too. An image's logits then depend on its
    /// neighbours.
    pub fn test_by_batch(&self) {
        self.lock().tests_by_batch = true;
    }

    /// Makes the norms of a replica, which are local, and evaluate like these.
    pub(crate) fn replica(&self) -> Self {
        let tests_by_batch = self.lock().tests_by_batch;
        Self(Arc::new(Mutex::new(Shared { tests_by_batch, ..Shared::default() })))
    }

    /// Sets the shard of the next forward pass, counted from 0 within this rank. Shards may come in any order.
    pub fn shard(&self, number: usize) {
        self.lock().shard = number;
    }

    /// Sets whether the images of the next forward pass replace an empty shard. They are normalised, but do not count.
    pub fn stand_in(&self, yes: bool) {
        self.lock().stand_in = yes;
    }

    /// Moves the running statistics of all layers by the statistics since the last call, except statistics [by
    /// shard](Self::by_shard). A [`Network`](crate::Network) calls this after every forward pass.
    pub fn average(&self) -> Result<()> {
        let shared = &mut *self.lock();
        if matches!(shared.sharing, Sharing::ByShard) {
            return Ok(());
        }
        let averages = shared.layers.iter().flat_map(|Layer { mean, variance, seen }| {
            let seen = seen.iter().map(|(_, seen)| seen).filter(|seen| seen.count > 0);
            seen.flat_map(move |seen| seen.averages(mean, variance))
        });
        average_all(&averages.collect::<Vec<_>>(), MOMENTUM)?;
        shared.layers.iter_mut().for_each(|layer| layer.seen.clear());
        Ok(())
    }
    // ANCHOR_END: settings

    /// Checks that all batch norms of a network are this crate's: a layer of another crate always uses its own images.
    pub(crate) fn check_all(&self, weights: &Weights) -> Result<()> {
        let layers = &self.lock().layers;
        let ours = layers.iter().flat_map(|layer| [layer.mean.id(), layer.variance.id()]);
        let ours: Vec<_> = ours.collect();
        for Named { name, tensor } in &weights.buffers {
            let is_norm = name.ends_with("running_mean") || name.ends_with("running_var");
            if is_norm && !ours.contains(&tensor.id()) {
                bail!(
                    "{name} is of a layer that normalises by itself: use concise_wrapper::batch_norm::BatchNorm, whose \
                     statistics can be synchronised and kept by shard"
                );
            }
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        locked(&self.0)
    }

    // ANCHOR: fold
    /// Moves every rank's running statistics by the statistics of all ranks' shards since the last call, added along the same
    /// fixed tree as the gradients. So the values do not depend on the number of devices. All ranks call this together.
    ///
    /// The mean of all images is the mean of the shards' means, weighted by their counts. The running variance is the weighted
    /// mean of the shards' variances, each with the divisor n − 1, without the spread between the shards' means. Fails when a
    /// layer has not seen each of this rank's shards once, or another rank stops or stalls.
    pub fn fold(
        &self,
        rank: &(impl Communicator + ?Sized),
        tree: &FixedTree,
    ) -> std::result::Result<(), communicator::Error> {
        let layers = &mut self.lock().layers;
        let Some(first) = layers.first() else { return Ok(()) };
        let (device, hosted) = (first.mean.device().clone(), tree.held_by(rank.rank()).len());
        // A row for each shard: the weighted values of all layers, then the weights.
        let mut rows = vec![(Vec::new(), Vec::new()); hosted];
        for layer in &mut *layers {
            let mut seen = std::mem::take(&mut layer.seen);
            seen.sort_by_key(|(shard, _)| *shard);
            let shards: Vec<usize> = seen.iter().map(|(shard, _)| *shard).collect();
            if !shards.iter().copied().eq(0..hosted) {
                return Err(communicator::Error::Other(format!(
                    "a batch norm saw shards {shards:?}, and the rank hosts {hosted}: a layer that a forward pass uses twice \
                     cannot keep statistics by shard"
                )));
            }
            for ((values, weights), (_, statistics)) in rows.iter_mut().zip(seen) {
                // With one shard the weight is 1: n · mean / n may differ from the mean in the last bit.
                let weight = statistics.count as f64;
                let weight = if tree.leaves() == 1 { weight.min(1.0) } else { weight };
                values.push((&statistics.mean * weight)?);
                values.push((statistics.unbiased_variance()? * weight)?);
                weights.push(weight);
            }
        }
        let rows = rows.into_iter().map(|(mut values, weights)| {
            values.push(Tensor::new(weights, &device)?);
            Tensor::cat(&values, 0)?.to_device(rank.device())
        });
        let sum = tree.sum(rank, &rows.collect::<Result<Vec<_>>>()?)?;

        // The mean of a layer is the layer's sum divided by the layer's weight.
        let weights = sum.narrow(0, sum.elem_count() - layers.len(), layers.len())?;
        let weights = weights.to_vec1::<f64>()?;
        if weights.contains(&0.0) {
            return Ok(()); // The global batch is empty.
        }
        let (sum, mut start, mut moves) = (sum.to_device(&device)?, 0, Vec::new());
        for (Layer { mean, variance, .. }, weight) in layers.iter().zip(weights) {
            for running in [mean, variance] {
                let channels = running.elem_count();
                moves.push((running, sum.narrow(0, start, channels)?, 1.0 / weight));
                start += channels;
            }
        }
        let averages =
            moves.iter().map(|&(running, ref fresh, scale)| Average { running, fresh, scale });
        Ok(average_all(&averages.collect::<Vec<_>>(), MOMENTUM)?)
    }
    // ANCHOR_END: fold
}

impl BatchNorm {
    // ANCHOR: synchronised
    /// Normalises images by the statistics of all ranks' images. Returns the normalised images and the statistics.
    ///
    /// Forward, each rank sends its mean, variance and count to all ranks. Backward, the ranks add up the two sums of the
    /// gradient. The gradients of weight and bias are of this rank's images alone: the wrapper sums them later.
    fn synchronised(
        &self,
        x: &Tensor,
        rank: SharedCommunicator,
        merge: &Merge,
        counts: bool,
    ) -> Result<(Tensor, Statistics)> {
        let (relu, inputs) = (self.relu, [x, &self.weight, &self.bias]);
        let [x, weight, bias] = inputs.map(Tensor::detach);
        let statistics = merge(&rank, &x, counts)?;
        let y = batch_norm_with(&x, &weight, &bias, &statistics, EPSILON, relu)?;
        let of_all = statistics.clone();
        let y = record_copy("synchronised batch_norm", &y, inputs, move |y, grad| {
            let output = relu.then(|| y.detach());
            let dy = OutputGradient::new(&x, output.as_ref(), grad)?;
            let own = dy.sums(&of_all, EPSILON)?;
            let own = if counts { own } else { own.zeros_like()? };
            let all = rank.all_reduce(&own.to_device(rank.device())?, Algorithm::OneShot);
            let all = all.map_err(candle_core::Error::wrap)?;
            // The statistics do not depend on images that do not count.
            let dx = match counts {
                true => dy.of_input(&weight, &of_all, &all, EPSILON)?,
                false => x.zeros_like()?,
            };
            // Weight and bias have the same type.
            let parameter = |row: usize| own.get(row)?.to_dtype(weight.dtype());
            Ok([Some(dx), Some(parameter(1)?), Some(parameter(0)?)])
        })?;
        Ok((y, statistics))
    }
    // ANCHOR_END: synchronised
}

// ANCHOR: merged
/// Merges all ranks' statistics into the statistics of the global batch, in rank order. All ranks have the same bits. Fails on
/// all ranks when the values of some ranks are not finite: the message names the first of these ranks.
pub fn merged(rank: &SharedCommunicator, images: &Tensor, counts: bool) -> Result<Statistics> {
    let own = Statistics::of(images)?;
    let (channels, world_size) = (own.mean.elem_count(), rank.world_size());
    let count = if counts { own.count } else { 0 };
    let count = Tensor::new(&[count as f64], &Device::Cpu)?;
    let to_cpu = |tensor: &Tensor| tensor.to_device(&Device::Cpu);
    let mine = Tensor::cat(&[to_cpu(&own.mean)?, to_cpu(&own.variance)?, count], 0)?;
    let (row, mine) = (mine.elem_count(), mine.to_device(rank.device())?);
    let all = rank.all_gather(&mine, row * world_size).map_err(candle_core::Error::wrap)?;
    let rows = all.reshape((world_size, row))?.to_vec2::<f64>()?;
    let is_bad = |row: &Vec<f64>| row.iter().any(|value| !value.is_finite());
    let is_ordinary = |row: &Vec<f64>| row.iter().all(|value| value.abs() < RUNNING_AWAY);
    // After the merge all ranks would have a NaN.
    if let Some(bad) = rows.iter().position(is_bad)
        && rows.iter().any(is_ordinary)
    {
        let bad = rank.world_rank(bad);
        bail!("a batch norm got a value that is not finite from the images of rank {bad}");
    }
    let mut parts = Vec::new();
    for row in rows.iter().filter(|row| row[2 * channels] > 0.0) {
        let tensor = |values: &[f64]| Tensor::new(values, own.mean.device());
        let (mean, variance) = (tensor(&row[..channels])?, tensor(&row[channels..2 * channels])?);
        parts.push(Statistics { mean, variance, count: row[2 * channels] as usize });
    }
    // If all images stand in for empty shards, there are no statistics.
    if parts.is_empty() { Ok(Statistics { count: 0, ..own }) } else { Statistics::merge(&parts) }
}
// ANCHOR_END: merged

#[cfg(test)]
mod tests {
    use candle_core::{Device, Module as _};
    use devices::DevicePlan;
    use ops::backward::backward_from;
    use ops::difference::relative_difference;
    use ops::update::overwrite;
    use params_and_allreduce::thread::{DEFAULT_TIMEOUT, Rank, run_ranks};

    use super::*;
    use crate::Network;
    use crate::model::stand_in_loss;

    fn images() -> Tensor {
        let values: Vec<f64> = (0..96).map(|i| f64::from(i * 37 % 101) / 7.0).collect();
        Tensor::from_vec(values, (4, 2, 3, 4), &Device::Cpu).unwrap()
    }

    fn network() -> Network<BatchNorm> {
        let build = |vb: &VarBuilder<'_>, norms: &Norms| BatchNorm::new(2, true, norms, vb);
        Network::new(1, DType::F64, &Device::Cpu, build).unwrap()
    }

    fn running(network: &Network<BatchNorm>) -> Vec<Vec<f64>> {
        let buffers = network.weights().buffers.iter();
        buffers.map(|buffer| buffer.tensor.to_vec1().unwrap()).collect()
    }

    #[test]
    fn a_step_moves_running_statistics_by_a_tenth_and_a_test_uses_them() {
        let (network, images) = (network(), images());
        let trained = network.forward_training(&images).unwrap();
        let seen = Statistics::of(&images).unwrap();
        let [mean, variance] = [&seen.mean, &seen.unbiased_variance().unwrap()]
            .map(|tensor| tensor.to_vec1::<f64>().unwrap());
        let [means, variances] = &running(&network)[..] else { panic!("two buffers") };
        for channel in 0..2 {
            assert!((means[channel] - 0.1 * mean[channel]).abs() < 1e-12);
            assert!((variances[channel] - (0.9 + 0.1 * variance[channel])).abs() < 1e-12);
        }
        let tested = network.forward(&images).unwrap();
        assert!(relative_difference(&tested, &trained).unwrap() > 0.1);
    }

    #[test]
    fn tested_by_batch_a_network_and_its_replicas_normalise_as_in_training() {
        let (network, images) = (network(), images());
        network.norms().test_by_batch();
        let before = running(&network);
        for network in [&network, &network.replica(&Device::Cpu).unwrap()] {
            let tested = network.forward(&images).unwrap();
            assert_eq!(running(network), before);
            let trained = network.forward_training(&images).unwrap();
            assert_eq!(relative_difference(&tested, &trained).unwrap(), 0.0);
            assert_ne!(running(network), before);
        }
    }

    /// Constant channels with a relu behind them: an error in the last bit of a mean would pass the relu as a gradient. With
    /// weights of both signs, an error in either direction passes.
    #[test]
    fn a_constant_channel_is_normalised_as_on_one_device() {
        let shards = [&[3, 1][..], &[1, 2, 5], &[4, 1, 1, 2], &[1, 7, 3, 2, 2]];
        for (shards, weight) in shards.iter().flat_map(|shards| [(shards, 1.0), (shards, -1.0)]) {
            let count = shards.iter().sum();
            let x = Tensor::new(&[0.1, 1.0 / 3.0], &Device::Cpu).unwrap().reshape((1, 2, 1, 1));
            let x = x.unwrap().broadcast_as((count, 2, 3, 4)).unwrap().contiguous().unwrap();
            let gradient = (&images().narrow(0, 0, 1).unwrap() + 1.0).unwrap();
            let plan = DevicePlan::slices(shards.len()).unwrap();
            let outcomes = run_ranks(&plan, DEFAULT_TIMEOUT, |rank: &Rank| {
                let network = network();
                overwrite(
                    &network.weights().parameters[0].tensor,
                    &Tensor::new(&[weight; 2], rank.device())?,
                )?;
                network.norms().synchronise(Arc::new(rank.clone()), Arc::new(merged));
                let first = shards[..rank.rank()].iter().sum::<usize>();
                let x = Var::from_tensor(&x.narrow(0, first, shards[rank.rank()])?)?;
                let y = network.forward_training(&x)?;
                let found = backward_from(&y, &gradient.broadcast_as(y.shape())?)?;
                let largest = |tensor: &Tensor| tensor.abs()?.max_all()?.to_scalar::<f64>();
                let dx = found.get(&x).map_or(Ok(0.0), largest)?;
                Ok::<_, communicator::Error>((largest(&y)?, dx))
            });
            assert_eq!(outcomes.unwrap(), vec![(0.0, 0.0); shards.len()], "{shards:?}");
        }
    }

    #[test]
    fn an_empty_global_batch_changes_no_statistics() {
        let plan = DevicePlan::slices(2).unwrap();
        let ended = run_ranks(&plan, DEFAULT_TIMEOUT, |rank: &Rank| {
            for by_shard in [false, true] {
                let network = network();
                let before = running(&network);
                match by_shard {
                    true => network.norms().by_shard(),
                    false => network.norms().synchronise(Arc::new(rank.clone()), Arc::new(merged)),
                }
                network.norms().stand_in(true);
                let y = network.forward_training(&images().narrow(0, 0, 1)?)?;
                let loss = stand_in_loss(&y)?;
                let gradients = network.gradients(&loss)?;
                if by_shard {
                    network.norms().fold(rank, &FixedTree::new(2, 2)?)?;
                }
                assert_eq!(loss.to_scalar::<f64>()?, 0.0);
                for gradient in gradients {
                    assert_eq!(gradient.to_vec1::<f64>()?, [0.0; 2]);
                }
                assert_eq!(running(&network), before);
            }
            Ok::<_, communicator::Error>(())
        });
        ended.unwrap();
    }

    #[test]
    fn one_value_for_each_channel_is_refused() {
        let network = network();
        let one = Tensor::ones((1, 2, 1, 1), DType::F64, &Device::Cpu).unwrap();
        let told = network.forward_training(&one).unwrap_err().to_string();
        assert!(told.contains("one value for each channel of [1, 2, 1, 1]"), "{told}");
        network.forward_training(&images().narrow(0, 0, 1).unwrap()).unwrap();
        network.forward(&one).unwrap();
    }

    #[test]
    fn the_rank_whose_statistics_are_not_finite_is_named() {
        let plan = DevicePlan::slices(3).unwrap();
        let failure = run_ranks(&plan, DEFAULT_TIMEOUT, |rank: &Rank| {
            let network = network();
            network.norms().synchronise(Arc::new(rank.clone()), Arc::new(merged));
            let images = if rank.rank() == 1 { (images() * f64::NAN)? } else { images() };
            Ok::<_, communicator::Error>(network.forward_training(&images).map(drop)?)
        });
        let told = failure.unwrap_err().to_string();
        assert!(told.contains("not finite from the images of rank 1"), "{told}");
    }
}

#[cfg(test)]
mod tests_by_shard {
    use std::result::Result;

    use devices::DevicePlan;
    use params_and_allreduce::communicator::Error;
    use params_and_allreduce::thread::{DEFAULT_TIMEOUT, run_ranks};

    use super::*;
    use crate::network::Network;

    const SHARDS: usize = 5;
    const CHANNELS: usize = 16;

    /// The images of a shard, `[2 + shard, 16, 1, 3]`. Each shard has another number of images and another scale.
    fn images(shard: usize) -> Tensor {
        let shape = (2 + shard, CHANNELS, 1, 3);
        let value = |i: usize| ((shard * 37 + i * 11) % 101) as f64 / 7.0 * 3f64.powi(shard as i32);
        let values: Vec<f64> = (0..3 * CHANNELS * (2 + shard)).map(value).collect();
        Tensor::from_vec(values, shape, &Device::Cpu).unwrap()
    }

    fn layer(device: &Device) -> candle_core::Result<Network<BatchNorm>> {
        Network::new(1, DType::F64, device, |vb, norms| BatchNorm::new(CHANNELS, false, norms, vb))
    }

    /// Its running means and variances.
    fn running(network: &Network<BatchNorm>) -> candle_core::Result<[Vec<f64>; 2]> {
        let buffers = &network.weights().buffers;
        Ok([buffers[0].tensor.to_vec1()?, buffers[1].tensor.to_vec1()?])
    }

    /// Returns the running means and variances after one step of one layer, with the shards in this order. Shard 3 replaces
    /// an empty shard.
    fn step(order: &[usize]) -> Result<[Vec<f64>; 2], String> {
        let plan = DevicePlan::slices(1).unwrap();
        let ended = run_ranks(&plan, DEFAULT_TIMEOUT, |rank| {
            let network = layer(rank.device())?;
            let norms = network.norms();
            norms.by_shard();
            for &shard in order {
                norms.shard(shard);
                norms.stand_in(shard == 3);
                network.forward_training(&images(shard))?;
            }
            norms.fold(rank, &FixedTree::new(SHARDS, 1)?)?;
            Ok::<_, Error>(running(&network)?)
        });
        ended.map(|mut ended| ended.remove(0)).map_err(|failure| failure.to_string())
    }

    #[test]
    fn shards_weigh_what_they_count_and_one_that_stands_in_nothing() {
        let [means, variances] = step(&[0, 1, 2, 3, 4]).unwrap();
        for channel in 0..CHANNELS {
            let (mut mean, mut variance, mut count) = (0.0, 0.0, 0.0);
            for shard in [0, 1, 2, 4] {
                let images = images(shard).narrow(1, channel, 1).unwrap();
                let values = images.flatten_all().unwrap().to_vec1::<f64>().unwrap();
                let n = values.len() as f64;
                let of_shard = values.iter().sum::<f64>() / n;
                let squares: f64 = values.iter().map(|value| (value - of_shard).powi(2)).sum();
                (mean, count) = (mean + n * of_shard, count + n);
                variance += n * squares / (n - 1.0);
            }
            let expected = [MOMENTUM * mean / count, 1.0 - MOMENTUM + MOMENTUM * variance / count];
            for (found, expected) in [means[channel], variances[channel]].into_iter().zip(expected)
            {
                assert!((found / expected - 1.0).abs() < 1e-14, "{found} and {expected}");
            }
        }
    }

    #[test]
    fn the_bits_do_not_depend_on_the_order_of_the_shards() {
        let bits = |order: &[usize]| -> Vec<u64> {
            step(order).unwrap().concat().into_iter().map(f64::to_bits).collect()
        };
        let expected = bits(&[0, 1, 2, 3, 4]);
        for order in [[4, 3, 2, 1, 0], [2, 0, 4, 3, 1], [3, 1, 4, 0, 2]] {
            assert_eq!(bits(&order), expected, "{order:?}");
        }
    }

    #[test]
    fn the_statistics_of_one_shard_are_those_of_a_plain_batch_to_the_last_bit() {
        for shard in 0..SHARDS {
            let after = |folds: bool| {
                let plan = DevicePlan::slices(1).unwrap();
                let ended = run_ranks(&plan, DEFAULT_TIMEOUT, |rank| {
                    let network = layer(rank.device())?;
                    if folds {
                        network.norms().by_shard();
                    }
                    network.forward_training(&images(shard))?;
                    match folds {
                        true => network.norms().fold(rank, &FixedTree::new(1, 1)?)?,
                        false => network.norms().average()?,
                    }
                    Ok::<_, Error>(running(&network)?)
                });
                ended.unwrap().remove(0)
            };
            assert_eq!(after(true), after(false), "{shard}");
        }
    }

    #[test]
    fn every_shard_is_seen_once() {
        let told = |order: &[usize]| step(order).unwrap_err();
        let missing = told(&[0, 4, 2, 1]);
        assert!(missing.contains("saw shards [0, 1, 2, 4], and the rank hosts 5"), "{missing}");
        let twice = told(&[0, 1, 2, 3, 1]);
        assert!(twice.contains("saw shards [0, 1, 1, 2, 3], and the rank hosts 5"), "{twice}");
    }
}
