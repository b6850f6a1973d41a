//! The largest tensor first, to the rank with the fewest bytes. Each rank sends all its tensors before it waits.

use candle_core::Tensor;
use params_and_allreduce::communicator::{Communicator, Error};

pub fn owners(bytes: &[usize], ranks: usize) -> Vec<usize> {
    let mut largest_first: Vec<usize> = (0..bytes.len()).collect();
    largest_first.sort_by_key(|&tensor| std::cmp::Reverse(bytes[tensor]));
    let (mut owners, mut loads) = (vec![0; bytes.len()], vec![0; ranks]);
    for tensor in largest_first {
        let owner = (0..ranks).min_by_key(|&rank| loads[rank]).unwrap_or_default();
        owners[tensor] = owner;
        loads[owner] += bytes[tensor];
    }
    owners
}

pub fn allreduce(
    rank: &impl Communicator,
    tensors: &[Tensor],
    owners: &[usize],
) -> Result<Vec<Tensor>, Error> {
    let own = rank.rank();
    for (tensor, &owner) in tensors.iter().zip(owners) {
        if owner != own {
            rank.send(owner, tensor)?;
        }
    }
    let mut sums = tensors.to_vec();
    for (sum, &owner) in sums.iter_mut().zip(owners) {
        if owner == own {
            *sum = sum_of_all(rank, sum)?;
            for other in (0..rank.world_size()).filter(|&other| other != own) {
                rank.send_shared(other, sum)?;
            }
        }
    }
    for (sum, &owner) in sums.iter_mut().zip(owners) {
        if owner != own {
            *sum = rank.recv(owner, sum.shape(), sum.dtype())?;
        }
    }
    Ok(sums)
}

/// Adds up the tensors of all ranks in rank order, whichever rank adds.
fn sum_of_all(rank: &impl Communicator, own: &Tensor) -> Result<Tensor, Error> {
    let mut sum = None;
    for other in 0..rank.world_size() {
        let next = match other == rank.rank() {
            true => own.clone(),
            false => rank.recv(other, own.shape(), own.dtype())?,
        };
        sum = Some(match sum {
            None => next,
            Some(sum) => (sum + next)?,
        });
    }
    Ok(sum.unwrap_or_else(|| own.clone()))
}

exercises::check!(ch02_owners, Answer { owners, allreduce }, run);
