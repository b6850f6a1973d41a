//! Stage 4's bugs, in a wrapped model. `own-shuffle` and `leave-early` are in [`Breakage::options`], the options of a loop.

use candle_core::{ModuleT, Tensor};
use params_and_allreduce::Algorithm;
use scratch_data_parallel::breakage::{Breakage, lone_broadcast};

use super::Ddp;
use crate::Error;
use crate::model::{Model as _, Progress};

// ANCHOR: broken
/// Whether the ranks sum their gradients. If not, each backward pass sends nothing, as within PyTorch's `no_sync`.
pub(super) fn sums_gradients(breakage: Option<Breakage>) -> bool {
    !matches!(breakage, Some(Breakage::SkipAllreduce | Breakage::ReduceParams))
}

/// Divides the gradients of a step by the number of ranks, if that is the bug.
pub(super) fn divide(
    breakage: Option<Breakage>,
    ranks: usize,
    gradients: Vec<Tensor>,
) -> candle_core::Result<Vec<Tensor>> {
    match breakage {
        Some(Breakage::MeanForSum) => gradients.iter().map(|sum| sum / ranks as f64).collect(),
        _ => Ok(gradients),
    }
}

/// The messages of a rank before the first step and after each update. Pass it to [`train`](crate::train()). Fails when
/// another rank stops or stalls.
pub fn after_step<M: ModuleT>(model: &Ddp<M>, progress: Progress<'_>) -> Result<(), Error> {
    match model.breakage {
        Some(Breakage::LoneBroadcast) => lone_broadcast(&*model.rank)?,
        Some(Breakage::ReduceParams) if progress.last.is_some() => {
            for named in &model.weights().parameters {
                let sum = model.rank.all_reduce(&named.tensor.detach(), Algorithm::Ring)?;
                ops::update::overwrite(&named.tensor, &sum)?;
            }
        }
        _ => {}
    }
    Ok(())
}
// ANCHOR_END: broken

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};
    use datasets::Split;
    use datasets::synthetic::dataset;
    use devices::DevicePlan;
    use params_and_allreduce::thread::{DEFAULT_TIMEOUT, run_ranks};

    use params_and_allreduce::communicator::Communicator as _;

    use split_batch::loader::LocalBatch;

    use super::*;
    use crate::Network;
    use crate::ddp::Reduction;
    use crate::resnet::ResNet18;

    /// Returns the running mean of the first batch norm on two ranks, after a step on different images.
    fn running_means(breakage: Breakage, synchronised: bool) -> Vec<Vec<f32>> {
        let plan = DevicePlan::slices(2).unwrap();
        let images = dataset(Split::Train, 4);
        let network =
            Network::new(1, DType::F32, &Device::Cpu, |vb, norms| ResNet18::new(2, norms, vb));
        let network = network.unwrap();
        let means = run_ranks(&plan, DEFAULT_TIMEOUT, |rank| {
            let mine = [2 * rank.rank() as u32, 2 * rank.rank() as u32 + 1];
            let model = Ddp::new(network.replica(rank.device())?, rank, Reduction::default())?;
            let model = if synchronised { model.synchronise_norms()? } else { model };
            let model = model.broken(breakage);
            model.backward(&LocalBatch {
                samples: 4,
                shards: vec![images.batch(&mine, DType::F32)?],
            })?;
            Ok::<_, Error>(model.weights().buffers[0].tensor.to_vec1()?)
        });
        means.unwrap()
    }

    #[test]
    fn a_network_that_was_never_wrapped_keeps_what_its_batch_norms_saw() {
        for breakage in [Breakage::SkipAllreduce, Breakage::ReduceParams] {
            let local = running_means(breakage, false);
            assert!(local.iter().flatten().all(|mean| *mean != 0.0), "{breakage:?}: {local:?}");
            assert_ne!(local[0], local[1], "{breakage:?}");
            let synchronised = running_means(breakage, true);
            assert_eq!(synchronised[0], synchronised[1], "{breakage:?}");
            assert_ne!(synchronised[0], local[0], "{breakage:?}");
        }
    }
}
