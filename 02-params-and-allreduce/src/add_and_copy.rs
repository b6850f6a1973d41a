//! The least work of an all-reduce between slices of one CPU, to measure an all-reduce against.
//!
//! Each rank adds up its own chunk of all tensors. Then each rank copies the sums of all chunks except its own. Two
//! ranks that hold a and b:
//!
//! ```text
//!         rank 0                 rank 1
//! add     s₀ = a₀ + b₀           s₁ = a₁ + b₁
//! copy    s₁ from rank 1         s₀ from rank 0
//! ```

use std::sync::{PoisonError, RwLock};

use crate::collectives::chunk_range;
use crate::communicator::{Communicator, Error};

/// The tensors and the sums of all ranks, in one place.
#[derive(Debug)]
pub struct AddAndCopy {
    /// The tensor of each rank.
    tensors: Vec<Vec<f32>>,
    /// The sum on each rank, chunk by chunk.
    sums: Vec<Vec<RwLock<Vec<f32>>>>,
}

impl AddAndCopy {
    /// Makes a tensor of `len` ones for each rank.
    pub fn new(world_size: usize, len: usize) -> Self {
        let chunk = |chunk| RwLock::new(vec![0.0; chunk_range(len, world_size, chunk).len()]);
        Self {
            tensors: vec![vec![1.0; len]; world_size],
            sums: (0..world_size).map(|_| (0..world_size).map(chunk).collect()).collect(),
        }
    }

    /// Adds up and copies once. All ranks call this together. Fails when another rank stops or stalls.
    pub fn run(&self, comm: &(impl Communicator + ?Sized)) -> Result<(), Error> {
        let rank = comm.rank();
        self.add(rank);
        comm.barrier()?;
        for chunk in (0..self.sums.len()).filter(|&chunk| chunk != rank) {
            let sum = self.sums[chunk][chunk].read().unwrap_or_else(PoisonError::into_inner);
            let mut mine = self.sums[rank][chunk].write().unwrap_or_else(PoisonError::into_inner);
            mine.copy_from_slice(&sum);
        }
        Ok(())
    }

    /// Adds up the rank's own chunk of all tensors.
    fn add(&self, rank: usize) {
        let mut sum = self.sums[rank][rank].write().unwrap_or_else(PoisonError::into_inner);
        let range = chunk_range(self.tensors[0].len(), self.tensors.len(), rank);
        let mut chunks = self.tensors.iter().map(|tensor| &tensor[range.clone()]);
        match (chunks.next(), chunks.next()) {
            (Some(a), Some(b)) => {
                sum.iter_mut().zip(a).zip(b).for_each(|((sum, a), b)| *sum = a + b);
            }
            (a, _) => sum.copy_from_slice(a.unwrap_or_default()),
        }
        for chunk in chunks {
            sum.iter_mut().zip(chunk).for_each(|(sum, number)| *sum += number);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use devices::DevicePlan;

    use super::*;
    use crate::thread::run_ranks;

    #[test]
    fn it_does_make_the_sum() {
        for (ranks, len) in [(1, 5), (2, 5), (3, 2), (4, 1000)] {
            let plan = DevicePlan::slices(ranks).unwrap();
            let limit = AddAndCopy::new(ranks, len);
            run_ranks(&plan, Duration::from_secs(20), |comm| {
                limit.run(comm)?;
                comm.barrier()?;
                limit.run(comm)
            })
            .unwrap();
            for sums in limit.sums {
                let sum: Vec<f32> =
                    sums.into_iter().flat_map(|chunk| chunk.into_inner().unwrap()).collect();
                assert_eq!(sum, vec![ranks as f32; len]);
            }
        }
    }
}
