//! Running statistics that do not depend on the number of devices.
//!
//! In reproducible mode a device may work through several shards in a step, one after the other. If each
//! moved the running statistics, their values would depend on who hosts which shard. So the statistics of
//! all shards are kept back until the step's end, added up over the same fixed tree as the gradients,
//! weighted by their counts, and averaged in once.

use candle_core::{DType, Device, Tensor};
use params_and_allreduce::all_reduce::FixedTree;
use params_and_allreduce::communicator::{Communicator, Error};
use single_gpu::ops::batch_norm::average_into;

use super::{MOMENTUM, Norms};

impl Norms {
    /// Averages the statistics of all ranks' shards, kept back since the last call, into every rank's
    /// running statistics; all ranks call this together.
    ///
    /// The mean of everything is the mean of the shards' means, weighted by their counts; so is its
    /// variance: what the shards were normalised with, on average.
    ///
    /// # Errors
    ///
    /// When a layer has not seen each of this rank's shards once, or another rank stops or stalls.
    pub fn fold(&self, rank: &impl Communicator, tree: &FixedTree) -> Result<(), Error> {
        let mut shared = self.lock();
        let hosted = tree.held_by(rank.rank()).len();
        let mut rows: Vec<Vec<Tensor>> = vec![Vec::new(); hosted];
        for layer in &mut shared.layers {
            let seen = std::mem::take(&mut layer.of_shards);
            if seen.len() != hosted {
                let text = format!("a batch norm saw {} shards of {hosted}", seen.len());
                return Err(candle_core::Error::Msg(text).into());
            }
            for (row, statistics) in rows.iter_mut().zip(seen) {
                let count = statistics.count as f64;
                row.push((&statistics.mean * count)?);
                row.push((statistics.unbiased_variance()? * count)?);
                row.push(Tensor::new(&[count], statistics.mean.device())?);
            }
        }
        if shared.layers.is_empty() {
            return Ok(());
        }
        let leaves = rows.iter().map(|row| Tensor::cat(row, 0)?.to_device(rank.device()));
        let sum = tree.sum(rank, &leaves.collect::<candle_core::Result<Vec<_>>>()?)?;
        let sum = sum.to_device(&Device::Cpu)?.to_dtype(DType::F64)?;
        let mut offset = 0;
        for layer in &mut shared.layers {
            let channels = layer.mean.elem_count();
            let count = sum.get(offset + 2 * channels)?.to_scalar::<f64>()?;
            let part = |start| sum.narrow(0, start, channels)? / count;
            let device = layer.mean.device();
            average_into(&layer.mean, &part(offset)?.to_device(device)?, MOMENTUM)?;
            let variance = part(offset + channels)?.to_device(device)?;
            average_into(&layer.variance, &variance, MOMENTUM)?;
            offset += 2 * channels + 1;
        }
        Ok(())
    }
}
