//! Collectives between replicas, which share GPUs if there are too few, against plain sums.
//!
//! The values are whole numbers so small that every sum of them is exact even in bf16.

use candle_core::{DType, Device, Result, Tensor};
use params_and_allreduce::Algorithm;
use params_and_allreduce::collectives::chunk_range;
use params_and_allreduce::communicator::{Communicator, Error};
use params_and_allreduce::thread::run_ranks;

use super::{WAIT, gpus};

const TYPES: [DType; 3] = [DType::F64, DType::F32, DType::BF16];

/// None, fewer than ranks, not divisible by their number, and more than one block of a GPU's threads has.
const LENGTHS: [usize; 4] = [0, 1, 5, 1003];

/// What a rank brings.
fn contribution(rank: usize, len: usize) -> Vec<f64> {
    (0..len).map(|i| ((rank + 1) * (i + 3) % 29) as f64 - 14.0).collect()
}

fn sum(ranks: usize, len: usize) -> Vec<f64> {
    let terms = |i: usize| (0..ranks).map(|rank| contribution(rank, len)[i]).sum();
    (0..len).map(terms).collect()
}

fn numbers(tensor: &Tensor) -> Result<Vec<f64>> {
    tensor.to_device(&Device::Cpu)?.to_dtype(DType::F64)?.to_vec1()
}

#[test]
fn every_collective_is_right_for_every_number_of_replicas() {
    for ranks in [1, 2, 3, 4] {
        let Some(plan) = gpus(ranks) else { return };
        run_ranks(&plan, WAIT, |rank| {
            for (dtype, len) in TYPES.into_iter().flat_map(|t| LENGTHS.map(|len| (t, len))) {
                let case = format!("rank {} of {ranks}, {len} of {dtype:?}", rank.rank());
                let tensor = |values: Vec<f64>| {
                    let tensor = Tensor::from_vec(values, len, &Device::Cpu)?.to_dtype(dtype)?;
                    tensor.to_device(rank.device())
                };
                let mine = tensor(contribution(rank.rank(), len))?;
                let expected = sum(ranks, len);
                for algorithm in Algorithm::OURS {
                    let found = rank.all_reduce(&mine, algorithm)?;
                    assert!(found.device().same_device(rank.device()), "{case}, {algorithm}");
                    assert_eq!(numbers(&found)?, expected, "{case}, {algorithm}");
                }
                let chunk = chunk_range(len, ranks, rank.rank());
                let own = rank.reduce_scatter(&mine)?;
                assert_eq!(numbers(&own)?, expected[chunk], "{case}: reduce-scatter");
                assert_eq!(numbers(&rank.all_gather(&own, len)?)?, expected, "{case}: all-gather");
                for root in 0..ranks {
                    let found = numbers(&rank.broadcast(&mine, root)?)?;
                    assert_eq!(found, contribution(root, len), "{case}: broadcast from {root}");
                }
                // Nobody has written into what was brought.
                assert_eq!(numbers(&mine)?, contribution(rank.rank(), len), "{case}");
            }
            Ok::<_, Error>(())
        })
        .unwrap();
    }
}
