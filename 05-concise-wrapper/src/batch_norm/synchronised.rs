//! Batch normalisation by the statistics of all ranks' images together.
//!
//! Forward, every rank tells the others its mean, variance and count, and merges all of them in rank
//! order: so all ranks have the same statistics, to the last bit, and a rank with fewer images weighs
//! less. Backward, the two sums of the gradient's first half are added up over the ranks. Both messages
//! are a few numbers for each channel, but every layer has to wait for them.
//!
//! The gradients of weight and bias stay what the rank's own images give: they are added up over the
//! ranks later, with all others.

use candle_core::{Device, Result, Tensor};
use ops::batch_norm::{GradientSums, Statistics, batch_norm_with, input_gradient};
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::SharedCommunicator;

use super::EPSILON;
use ops::backward::record_copy;

/// The normalised images, and the statistics of all ranks' images that count.
pub(super) fn batch_norm(
    x: &Tensor,
    weight: &Tensor,
    bias: &Tensor,
    relu: bool,
    communicator: SharedCommunicator,
    counts: bool,
) -> Result<(Tensor, Statistics)> {
    let own = Statistics::of(&x.detach())?;
    let statistics = merged(&communicator, &own, counts)?;
    let y =
        batch_norm_with(&x.detach(), &weight.detach(), &bias.detach(), &statistics, EPSILON, relu)?;
    let op = Synchronised { statistics: statistics.clone(), relu, communicator, counts };
    let (of_x, of_weight) = (x.clone(), weight.clone());
    let y = record_copy("synchronised batch_norm", &y, [x, weight, bias], move |y, grad| {
        op.backward(&of_x, &of_weight, y, grad)
    })?;
    Ok((y, statistics))
}

/// All ranks' statistics as those of one batch.
// ANCHOR: merged
fn merged(rank: &SharedCommunicator, own: &Statistics, counts: bool) -> Result<Statistics> {
    let (channels, world_size) = (own.mean.elem_count(), rank.world_size());
    let count = if counts { own.count } else { 0 };
    let count = Tensor::new(&[count as f64], &Device::Cpu)?;
    let to_cpu = |tensor: &Tensor| tensor.to_device(&Device::Cpu);
    let mine = Tensor::cat(&[to_cpu(&own.mean)?, to_cpu(&own.variance)?, count], 0)?;
    let row = mine.elem_count();
    let all = rank.all_gather(&mine.to_device(rank.device())?, row * world_size);
    let all = all.map_err(candle_core::Error::wrap)?.to_device(&Device::Cpu)?;
    let mut parts = Vec::with_capacity(world_size);
    for other in 0..world_size {
        let part = all.narrow(0, other * row, row)?;
        let count = part.get(row - 1)?.to_scalar::<f64>()? as usize;
        if count > 0 {
            let mean = part.narrow(0, 0, channels)?.to_device(own.mean.device())?;
            let variance = part.narrow(0, channels, channels)?.to_device(own.mean.device())?;
            parts.push(Statistics { mean, variance, count });
        }
    }
    Statistics::merge(&parts)
}
// ANCHOR_END: merged

struct Synchronised {
    statistics: Statistics,
    relu: bool,
    communicator: SharedCommunicator,
    counts: bool,
}

impl Synchronised {
    /// Computes the gradients of the images, of the weight and of the bias.
    fn backward(
        &self,
        x: &Tensor,
        weight: &Tensor,
        y: &Tensor,
        grad: &Tensor,
    ) -> Result<[Option<Tensor>; 3]> {
        let (x, output) = (x.detach(), self.relu.then(|| y.detach()));
        let output = output.as_ref();
        let mut own = GradientSums::of(&x, output, grad, &self.statistics, EPSILON)?;
        if !self.counts {
            own = GradientSums::new(own.as_tensor().zeros_like()?)?;
        }
        let all = self.sum(&own)?;
        let dx = if self.counts {
            input_gradient(&x, output, grad, &weight.detach(), &self.statistics, &all, EPSILON)?
        } else {
            // It did not count in the statistics, so no gradient comes back to it through them.
            x.zeros_like()?
        };
        // Weight and bias have the same type.
        let parameter = |gradient: Tensor| gradient.to_dtype(weight.dtype());
        Ok([Some(dx), Some(parameter(own.weight()?)?), Some(parameter(own.bias()?)?)])
    }

    /// The sums over all ranks' images.
    fn sum(&self, own: &GradientSums) -> Result<GradientSums> {
        let own = own.as_tensor().to_device(self.communicator.device())?;
        let all = self.communicator.all_reduce(&own, Algorithm::OneShot);
        GradientSums::new(all.map_err(candle_core::Error::wrap)?)
    }
}
