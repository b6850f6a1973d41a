//! What can be disturbed, and what has to come of it.

use candle_core::{Device, Tensor};
use params_and_allreduce::Algorithm;
use params_and_allreduce::collectives::chunk_range;
use params_and_allreduce::communicator::{Communicator, Error};

use crate::trial::Trial;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collective {
    AllReduce(Algorithm),
    ReduceScatter,
    AllGather,
    Broadcast,
    Barrier,
}

pub const COLLECTIVES: [Collective; 8] = [
    Collective::AllReduce(Algorithm::OneShot),
    Collective::AllReduce(Algorithm::Naive),
    Collective::AllReduce(Algorithm::Tree),
    Collective::AllReduce(Algorithm::Ring),
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
            Self::AllReduce(algorithm) => rank.all_reduce(&tensor, algorithm)?,
            Self::ReduceScatter => rank.reduce_scatter(&tensor)?,
            Self::AllGather => {
                let chunk = chunk_range(trial.len, trial.ranks, rank.rank());
                rank.all_gather(&tensor.narrow(0, chunk.start, chunk.len())?, trial.len)?
            }
            Self::Broadcast => rank.broadcast(&tensor, trial.root)?,
            Self::Barrier => {
                rank.barrier()?;
                return Ok(Vec::new());
            }
        };
        Ok(result.to_vec1()?)
    }

    pub fn expected(self, rank: usize, trial: &Trial) -> Vec<f32> {
        match self {
            Self::AllReduce(_) => plain_sum(trial),
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
