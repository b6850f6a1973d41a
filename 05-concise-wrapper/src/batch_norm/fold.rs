//! Running statistics that do not depend on the number of devices.
//!
//! In reproducible mode a device may work through several shards in a step, one after the other. If each
//! moved the running statistics, their values would depend on who hosts which shard. So the statistics of
//! all shards are kept back until the step's end, added up over the same fixed tree as the gradients,
//! weighted by their counts, and averaged in once.

use candle_core::{DType, Device, IndexOp as _, Tensor};
use ops::batch_norm::{Average, average_all};
use params_and_allreduce::communicator::{Communicator, Error};
use scratch_data_parallel::FixedTree;

use super::{MOMENTUM, Norms};

impl Norms {
    /// Averages the statistics of all ranks' shards, kept back since the last call, into every rank's
    /// running statistics; all ranks call this together.
    ///
    /// The mean of everything is the mean of the shards' means, weighted by their counts. The running variance is taken
    /// from the shards' own, which are estimated by n − 1, in the same way: the spread between their means is not in it.
    ///
    /// # Errors
    ///
    /// When a layer has not seen each of this rank's shards once, or another rank stops or stalls.
    pub fn fold(&self, rank: &(impl Communicator + ?Sized), tree: &FixedTree) -> Result<(), Error> {
        let mut shared = self.lock();
        let hosted = tree.held_by(rank.rank()).len();
        let mut rows: Vec<Vec<Tensor>> = vec![Vec::new(); hosted];
        let mut counts: Vec<Vec<f64>> = vec![Vec::new(); hosted];
        for layer in &mut shared.layers {
            let seen = std::mem::take(&mut layer.of_shards);
            if !seen.keys().copied().eq(0..hosted) {
                let seen: Vec<usize> = seen.into_keys().collect();
                let text = format!("a batch norm saw shards {seen:?}, and the rank hosts {hosted}");
                return Err(Error::Other(text));
            }
            // In the order of their numbers.
            for ((row, counts), statistics) in
                rows.iter_mut().zip(&mut counts).zip(seen.into_values())
            {
                // One shard's mean is the mean of everything, to the last bit: n · mean / n may be its neighbour.
                let weight = if tree.leaves() == 1 { 1.0 } else { statistics.count as f64 };
                row.push((&statistics.mean * weight)?);
                row.push((statistics.unbiased_variance()? * weight)?);
                counts.push(weight);
            }
        }
        let running = shared.layers.iter().map(|layer| [&layer.mean, &layer.variance]);
        let Some(device) = shared.layers.first().map(|layer| layer.mean.device()) else {
            return Ok(());
        };
        // Behind the values of all layers, their counts.
        let leaves = rows.into_iter().zip(counts).map(|(mut row, counts)| {
            row.push(Tensor::new(counts, device)?);
            Tensor::cat(&row, 0)?.to_device(rank.device())
        });
        let sum = tree.sum(rank, &leaves.collect::<candle_core::Result<Vec<_>>>()?)?;
        let means = divided(&sum, running.clone().map(|[mean, _]| 2 * mean.elem_count()))?;
        let means = means.to_device(device)?;

        let mut offset = 0;
        let fresh = running.flatten().map(|running| {
            let channels = running.elem_count();
            offset += channels;
            Ok((running, means.narrow(0, offset - channels, channels)?))
        });
        let fresh = fresh.collect::<candle_core::Result<Vec<_>>>()?;
        let averages = fresh.iter().map(|(running, fresh)| Average { running, fresh, scale: 1.0 });
        Ok(average_all(&averages.collect::<Vec<_>>(), MOMENTUM)?)
    }
}

/// Sums of several layers, `values` of each, over their counts, which come behind them all; on the CPU.
fn divided(
    sums: &Tensor,
    values: impl Iterator<Item = usize> + Clone,
) -> candle_core::Result<Tensor> {
    let sums = sums.to_device(&Device::Cpu)?.to_dtype(DType::F64)?;
    let counts = sums.i(values.clone().sum()..)?.to_vec1::<f64>()?;
    let mut offset = 0;
    let means = values.zip(counts).map(|(values, count)| {
        offset += values;
        sums.narrow(0, offset - values, values)? / count
    });
    Tensor::cat(&means.collect::<candle_core::Result<Vec<_>>>()?, 0)
}

#[cfg(test)]
mod tests {
    use devices::DevicePlan;
    use params_and_allreduce::thread::{DEFAULT_TIMEOUT, run_ranks};

    use super::*;
    use crate::batch_norm::BatchNorm;
    use crate::network::Network;

    const SHARDS: usize = 5;
    const CHANNELS: usize = 16;

    /// The images of a shard, `[2 + shard, 16, 1, 3]`: of another number and scale than those of the others.
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

    /// One step of one layer, with the shards in this order; shard 3 stands in for an empty one. The running
    /// means and variances.
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
        assert!(twice.contains("a batch norm saw shard 1 twice in one step"), "{twice}");
    }
}
