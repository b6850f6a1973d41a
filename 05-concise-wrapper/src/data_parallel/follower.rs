//! What one device of a data-parallel model does: it waits for orders.

use std::sync::Arc;

use candle_core::{Module as _, ModuleT, Tensor};
use params_and_allreduce::communicator::Communicator as _;
use params_and_allreduce::thread::{Rank, RankFailure};
use scratch_data_parallel::evaluate::part_of;
use single_gpu::data::Batch;
use single_gpu::device::move_view;
use single_gpu::evaluate::evaluate_part;
use single_gpu::report::trace::{COMMUNICATION, COMPUTE};
use tracing::info_span;

use super::counter::{Answer, Follower, Order};
use crate::model::{gradients_of, loss_of};
use crate::weights::Named;
use crate::{Error, Network};

/// Follows orders until there are no more. A failure is the leader's to hear of, and then the other devices'.
pub(super) fn follow<M: ModuleT>(
    rank: &Rank<'_>,
    leader: &Network<M>,
    ends: &Follower,
) -> Result<(), Error> {
    obey(rank, leader, ends).inspect_err(|error| {
        ends.fail(RankFailure::new(rank.rank(), error).to_string());
    })
}

fn obey<M: ModuleT>(rank: &Rank<'_>, leader: &Network<M>, ends: &Follower) -> Result<(), Error> {
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
                replica.norms().synchronise(Arc::new(rank.line()));
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
    rank: &Rank<'_>,
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
            single_gpu::parameters::overwrite(tensor, &of_replica.tensor)?;
        }
    }
    Ok(Answer::Gradients(sums, gradients))
}

/// The sums over all ranks, in rank order, on the first; nothing on the others.
fn gathered(rank: &Rank<'_>, gradients: Vec<Tensor>) -> Result<Vec<Tensor>, Error> {
    let _span = info_span!(target: COMMUNICATION, "gather gradients").entered();
    if rank.rank() > 0 {
        for gradient in &gradients {
            // Nobody writes to a gradient.
            rank.share(0, gradient)?;
        }
        return Ok(Vec::new());
    }
    let mut sums = gradients;
    for other in 1..rank.world_size() {
        for sum in &mut sums {
            let gradient = rank.borrow(other, sum.shape(), sum.dtype())?;
            *sum = (&*sum + &*gradient)?;
        }
    }
    Ok(sums)
}

fn predict<M: ModuleT>(replica: &Network<M>, images: &Tensor) -> Result<Option<Tensor>, Error> {
    let _span = info_span!(target: COMPUTE, "forward").entered();
    if images.dim(0)? == 0 {
        return Ok(None);
    }
    Ok(Some(replica.forward(&move_view(images, replica.device())?)?.detach()))
}
