//! Batch normalisation by the statistics of all ranks' images together.
//!
//! Forward, every rank tells the others its mean, variance and count, and merges all of them in rank
//! order: so all ranks have the same statistics, to the last bit, and a rank with fewer images weighs
//! less. Backward, the two sums of the gradient's first half are added up over the ranks. Both messages
//! are a few numbers for each channel, but every layer has to wait for them.
//!
//! The gradients of weight and bias stay what the rank's own images give: they are added up over the
//! ranks later, with all others.

use candle_core::{CpuStorage, CudaStorage, CustomOp3, Device, Layout, Result, Shape, Tensor};
use ops::batch_norm::{GradientSums, Statistics, batch_norm_with, input_gradient};
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::SharedCommunicator;

use super::EPSILON;
use ops::backward::{Given, apply3};

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
    let result = Given::new(&y);
    let op = Synchronised { result, statistics: statistics.clone(), relu, communicator, counts };
    Ok((apply3(x, weight, bias, op)?, statistics))
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
    result: Given,
    statistics: Statistics,
    relu: bool,
    communicator: SharedCommunicator,
    counts: bool,
}

impl CustomOp3 for Synchronised {
    fn name(&self) -> &'static str {
        "synchronised batch_norm"
    }

    fn cpu_fwd(
        &self,
        _x: &CpuStorage,
        _: &Layout,
        _weight: &CpuStorage,
        _: &Layout,
        _bias: &CpuStorage,
        _: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        self.result.take_cpu()
    }

    fn cuda_fwd(
        &self,
        _x: &CudaStorage,
        _: &Layout,
        _weight: &CudaStorage,
        _: &Layout,
        _bias: &CudaStorage,
        _: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        self.result.take_cuda()
    }

    fn bwd(
        &self,
        x: &Tensor,
        weight: &Tensor,
        bias: &Tensor,
        y: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
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
        let (d_weight, d_bias) =
            (own.weight()?.to_dtype(weight.dtype())?, own.bias()?.to_dtype(bias.dtype())?);
        Ok((Some(dx), Some(d_weight), Some(d_bias)))
    }
}

impl Synchronised {
    /// The sums over all ranks' images.
    fn sum(&self, own: &GradientSums) -> Result<GradientSums> {
        let own = own.as_tensor().to_device(self.communicator.device())?;
        let all = self.communicator.all_reduce(&own, Algorithm::OneShot);
        GradientSums::new(all.map_err(candle_core::Error::wrap)?)
    }
}
