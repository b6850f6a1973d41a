//! What can be disturbed, and what has to come of it.

use candle_core::{Device, Tensor};
use params_and_allreduce::all_reduce::FixedTree;
use params_and_allreduce::collective::{
    all_gather, barrier, broadcast, chunk_range, reduce_scatter,
};
use params_and_allreduce::communicator::{Communicator, Error};
use params_and_allreduce::{Algorithm, allreduce};

use crate::trial::Trial;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collective {
    AllReduce(Algorithm),
    FixedTree,
    ReduceScatter,
    AllGather,
    Broadcast,
    Barrier,
}

pub const COLLECTIVES: [Collective; 9] = [
    Collective::AllReduce(Algorithm::OneShot),
    Collective::AllReduce(Algorithm::Naive),
    Collective::AllReduce(Algorithm::Tree),
    Collective::AllReduce(Algorithm::Ring),
    Collective::FixedTree,
    Collective::ReduceScatter,
    Collective::AllGather,
    Collective::Broadcast,
    Collective::Barrier,
];

impl Collective {
    pub fn run(self, rank: &impl Communicator, trial: &Trial) -> Result<Vec<f32>, Error> {
        let mine = contribution(rank.rank(), trial.len);
        let tensor = Tensor::new(mine.as_slice(), &Device::Cpu)?;
        let result = match self {
            Self::AllReduce(algorithm) => allreduce(rank, &tensor, algorithm)?,
            // One leaf on each rank.
            Self::FixedTree => FixedTree::new(trial.ranks, trial.ranks)?.sum(rank, &[tensor])?,
            Self::ReduceScatter => reduce_scatter(rank, &tensor)?,
            Self::AllGather => {
                let chunk = chunk_range(trial.len, trial.ranks, rank.rank());
                all_gather(rank, &tensor.narrow(0, chunk.start, chunk.len())?, trial.len)?
            }
            Self::Broadcast => broadcast(rank, &tensor, trial.root)?,
            Self::Barrier => {
                barrier(rank)?;
                return Ok(Vec::new());
            }
        };
        Ok(result.to_vec1()?)
    }

    /// What a rank must get.
    pub fn expected(self, rank: usize, trial: &Trial) -> Vec<f32> {
        match self {
            Self::AllReduce(_) | Self::FixedTree => plain_sum(trial),
            Self::ReduceScatter => {
                plain_sum(trial)[chunk_range(trial.len, trial.ranks, rank)].to_vec()
            }
            Self::AllGather => (0..trial.ranks)
                .flat_map(|rank| {
                    let chunk = chunk_range(trial.len, trial.ranks, rank);
                    contribution(rank, trial.len)[chunk].to_vec()
                })
                .collect(),
            Self::Broadcast => contribution(trial.root, trial.len),
            Self::Barrier => Vec::new(),
        }
    }
}

/// Whole numbers: every order of adding gives the same sum.
fn contribution(rank: usize, len: usize) -> Vec<f32> {
    (0..len).map(|i| ((rank + 1) * (i + 2) % 17) as f32).collect()
}

fn plain_sum(trial: &Trial) -> Vec<f32> {
    let mut sum = vec![0.0; trial.len];
    for rank in 0..trial.ranks {
        sum.iter_mut().zip(contribution(rank, trial.len)).for_each(|(sum, number)| *sum += number);
    }
    sum
}
