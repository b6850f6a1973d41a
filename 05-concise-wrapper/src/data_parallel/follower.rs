//! What one device of a data-parallel model does: it waits for orders.

use std::sync::Arc;

use candle_core::{Module as _, ModuleT, Tensor};
use datasets::Batch;
use devices::move_view;
use harness::report::trace::{COMMUNICATION, COMPUTE};
use ops::backward::no_grad;
use params_and_allreduce::communicator::Communicator as _;
use params_and_allreduce::thread::{Rank, RankFailure};
use scratch_data_parallel::evaluate::part_of;
use single_gpu::evaluate::evaluate_part;
use tracing::info_span;

use super::counter::{Answer, Follower, Order};
use crate::model::{gradients_of, loss_of};
use crate::weights::Named;
use crate::{Error, Network};

/// Follows orders until there are no more. A failure is the leader's to hear of, and then the other devices'.
pub(super) fn follow<M: ModuleT>(
    rank: &Rank,
    leader: &Network<M>,
    ends: &Follower,
) -> Result<(), Error> {
    obey(rank, leader, ends).inspect_err(|error| {
        ends.fail(RankFailure::new(rank.rank(), error).to_string());
    })
}

fn obey<M: ModuleT>(rank: &Rank, leader: &Network<M>, ends: &Follower) -> Result<(), Error> {
    let replica = leader.replica(rank.device())?;
    for order in &ends.orders {
        let answer = match order {
            Order::Backward(shard) => backward(rank, leader, &replica, &shard)?,
            Order::Predict(images) => {
                replicate(leader, &replica)?;
                Answer::Logits(predict(&replica, &images)?)
            }
            Order::Evaluate(images) => {
                replicate(leader, &replica)?;
                let (part, dtype) = (part_of(rank), replica.dtype());
                Answer::Sums(evaluate_part(&replica, &images, part, dtype, rank.device())?)
            }
            Order::SynchroniseNorms => {
                replica.norms().synchronise(Arc::new(rank.clone()));
                Answer::Done
            }
        };
        if !ends.answer(answer) {
            break;
        }
    }
    Ok(())
}

/// Copies the leader's weights. It waits meanwhile, and changes nothing.
fn replicate<M: ModuleT>(leader: &Network<M>, replica: &Network<M>) -> candle_core::Result<()> {
    let _span = info_span!(target: COMMUNICATION, "replicate").entered();
    replica.weights().copy_from(leader.weights())
}

fn backward<M: ModuleT>(
    rank: &Rank,
    leader: &Network<M>,
    replica: &Network<M>,
    shard: &Batch,
) -> Result<Answer, Error> {
    replicate(leader, replica)?;
    let (loss, unread) = loss_of(replica, shard)?;
    let gradients = gradients_of(replica, &loss)?;
    let sums = unread.read()?;
    let gradients = gathered(rank, gradients)?;
    if rank.rank() == 0 {
        // As in PyTorch, the first replica's running statistics are the ones to keep.
        for (Named { tensor, .. }, of_replica) in
            leader.weights().buffers.iter().zip(&replica.weights().buffers)
        {
            ops::parameters::overwrite(tensor, &of_replica.tensor)?;
        }
    }
    Ok(Answer::Gradients(sums, gradients))
}

/// The sums over all ranks, in rank order, on the first; nothing on the others.
fn gathered(rank: &Rank, gradients: Vec<Tensor>) -> Result<Vec<Tensor>, Error> {
    let _span = info_span!(target: COMMUNICATION, "gather gradients").entered();
    if rank.rank() > 0 {
        for gradient in &gradients {
            // Nobody writes to a gradient.
            rank.send_shared(0, gradient)?;
        }
        return Ok(Vec::new());
    }
    let mut sums = gradients;
    for other in 1..rank.world_size() {
        for sum in &mut sums {
            let gradient = rank.recv(other, sum.shape(), sum.dtype())?;
            *sum = ops::sum(sum, &gradient)?;
        }
    }
    Ok(sums)
}

fn predict<M: ModuleT>(replica: &Network<M>, images: &Tensor) -> Result<Option<Tensor>, Error> {
    let _span = info_span!(target: COMPUTE, "forward").entered();
    if images.dim(0)? == 0 {
        return Ok(None);
    }
    let images = move_view(images, replica.device())?;
    // Nobody asks for gradients.
    Ok(Some(no_grad(|| replica.forward(&images))?.detach()))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use candle_core::{DType, Device, Result};
    use datasets::synthetic::dataset;
    use datasets::{CLASSES, PIXELS, Split};
    use devices::DevicePlan;
    use ops::{flatten, linear};

    use super::*;
    use crate::{DataParallel, Model as _};

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

    #[test]
    fn devices_keep_nothing_of_a_forward_pass_that_nobody_differentiates() {
        let counts = Arc::new([0, 0].map(AtomicUsize::new));
        let counted = Arc::clone(&counts);
        let network = Network::new(1, DType::F32, &Device::Cpu, move |vb, _| {
            let (weight, bias) = (vb.get((PIXELS, CLASSES), "weight")?, vb.get(CLASSES, "bias")?);
            Ok(Counted { weight, bias, counts: Arc::clone(&counted) })
        });
        let plan = DevicePlan::slices(2).unwrap();
        let model = DataParallel::new(network.unwrap(), &plan).unwrap();
        let counted = || counts.each_ref().map(|count| count.load(Ordering::SeqCst));
        // A batch for each device.
        let images = dataset(Split::Test, 300);
        assert_eq!(model.evaluate(&images).unwrap().unwrap().samples, 300);
        assert_eq!(counted(), [0, 2]);
        let batch = images.batch(&[0, 1, 2], DType::F32).unwrap();
        assert_eq!(model.predict(&batch.images).unwrap().dims(), [3, CLASSES]);
        assert_eq!(counted(), [0, 4]);
    }
}
