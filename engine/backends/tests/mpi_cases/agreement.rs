//! Processes against threads, and MPI's own sum against a plain one.

use std::time::Duration;

use backends::mpi::Rank;
use candle_core::{DType, Device, Shape, Tensor};
use devices::DevicePlan;
use params_and_allreduce::all_reduce::{FixedTree, Ranks};
use params_and_allreduce::collectives::{
    all_gather, barrier, broadcast, chunk_range, reduce_scatter,
};
use params_and_allreduce::communicator::{Communicator, Error};
use params_and_allreduce::thread::run_ranks;
use params_and_allreduce::{Algorithm, allreduce};

/// Shapes that do not divide evenly, that are shorter than the ranks are many, that are empty, and that are
/// sent in one piece and in many.
const SHAPES: [&[usize]; 7] = [&[], &[0], &[1], &[3, 5], &[4, 0, 2], &[1023], &[100_003]];

/// What a rank brings: numbers that do round, in a view with its dimensions the other way round.
fn mine(rank: usize, shape: &[usize], dtype: DType) -> candle_core::Result<Tensor> {
    let number = |i: usize| ((rank * 7919 + i * 104_729) % 10_007) as f64 / 3.0 - 1000.0;
    let values: Vec<f64> = (0..shape.iter().product()).map(number).collect();
    let reversed: Vec<usize> = shape.iter().rev().copied().collect();
    let order: Vec<usize> = (0..shape.len()).rev().collect();
    Tensor::from_vec(values, reversed, &Device::Cpu)?.to_dtype(dtype)?.permute(order)
}

/// Everything that ranks do together, one after the other.
fn everything(rank: &impl Communicator) -> Result<Vec<Tensor>, Error> {
    let mut results = Vec::new();
    for dtype in [DType::F32, DType::F64, DType::BF16, DType::F16] {
        for shape in SHAPES {
            let tensor = mine(rank.rank(), shape, dtype)?;
            for algorithm in Algorithm::OURS {
                results.push(rank.all_reduce(&tensor, algorithm)?);
            }
            results.push(rank.reduce_scatter(&tensor)?);
            results.push(by_shard(rank, shape, dtype)?);
        }
    }
    for dtype in [DType::U8, DType::U32, DType::I64, DType::F16] {
        for shape in SHAPES {
            let tensor = mine(rank.rank(), shape, DType::F64)?.abs()?.to_dtype(dtype)?;
            for root in 0..rank.world_size() {
                results.push(rank.broadcast(&tensor, root)?);
            }
            let (flat, len) = (tensor.flatten_all()?, tensor.elem_count());
            let chunk = chunk_range(len, rank.world_size(), rank.rank());
            results.push(rank.all_gather(&flat.narrow(0, chunk.start, chunk.len())?, len)?);
        }
    }
    rank.barrier()?;
    Ok(results)
}

/// Seven shards, along the tree that does not depend on the ranks.
fn by_shard(rank: &impl Communicator, shape: &[usize], dtype: DType) -> Result<Tensor, Error> {
    let tree = FixedTree::new(7, rank.world_size())?;
    let leaves = tree.held_by(rank.rank());
    let leaves = leaves.map(|leaf| mine(leaf, shape, dtype)).collect::<Result<Vec<_>, _>>()?;
    tree.sum(rank, &leaves)
}

fn bits(tensor: &Tensor) -> candle_core::Result<(DType, Vec<usize>, Vec<u64>)> {
    let numbers = tensor.to_dtype(DType::F64)?.flatten_all()?.to_vec1::<f64>()?;
    Ok((tensor.dtype(), tensor.dims().to_vec(), numbers.into_iter().map(f64::to_bits).collect()))
}

pub fn collectives(rank: &Rank<'_>) -> Result<(), Error> {
    let results = everything(rank)?;
    let plan = DevicePlan::slices(rank.world_size()).unwrap();
    let threads = run_ranks(&plan, Duration::from_secs(60), |rank| everything(rank)).unwrap();
    assert_eq!(results.len(), threads[rank.rank()].len());
    for (i, (result, expected)) in results.iter().zip(&threads[rank.rank()]).enumerate() {
        assert!(bits(result)? == bits(expected)?, "result {i}: {:?}", expected.shape());
    }
    Ok(())
}

pub fn native(rank: &Rank<'_>) -> Result<(), Error> {
    let plan = DevicePlan::slices(rank.world_size()).unwrap();
    Algorithm::Mpi.check(&plan, Ranks::Processes)?;
    assert!(Algorithm::Mpi.check(&plan, Ranks::Threads).is_err());
    for (dtype, tolerance) in [(DType::F32, 1e-6), (DType::F64, 1e-15)] {
        for shape in SHAPES {
            let tensor = mine(rank.rank(), shape, dtype)?;
            let sum = rank.all_reduce(&tensor, Algorithm::Mpi)?;
            let (of, dims, sum_bits) = bits(&sum)?;
            assert_eq!((of, dims.as_slice()), (dtype, shape));
            for (i, sum) in sum_bits.iter().map(|bits| f64::from_bits(*bits)).enumerate() {
                let numbers = (0..rank.world_size()).map(|rank| {
                    let of = mine(rank, shape, dtype)?.to_dtype(DType::F64)?.flatten_all()?;
                    of.get(i)?.to_scalar::<f64>()
                });
                let numbers =
                    if i % 997 == 0 { numbers.collect::<Result<Vec<_>, _>>()? } else { continue };
                let size: f64 = numbers.iter().map(|number| number.abs()).sum();
                let error = (numbers.iter().sum::<f64>() - sum).abs();
                assert!(error <= tolerance * size, "number {i} of {shape:?}: off by {error}");
            }
            // Every rank has rank 0's bits.
            let theirs = rank.broadcast(&sum, 0)?;
            assert!(bits(&theirs)?.2 == sum_bits, "{shape:?} {dtype:?}: other bits than rank 0's");
        }
    }
    let bf16 = Tensor::zeros(2, DType::BF16, rank.device())?;
    let refusal = rank.all_reduce(&bf16, Algorithm::Mpi).unwrap_err().to_string();
    assert!(refusal.contains("f32 and f64, not bf16"), "{refusal}");
    let refusal = rank.all_reduce(&bf16, Algorithm::Nccl).unwrap_err().to_string();
    assert!(refusal.contains("there is no NCCL here"), "{refusal}");
    // And what was summed has memory of its own.
    let ones = Tensor::ones(2, DType::F32, rank.device())?;
    let sum = rank.all_reduce(&ones, Algorithm::Mpi)?;
    sum.slice_set(&Tensor::zeros(2, DType::F32, rank.device())?, 0, 0)?;
    assert_eq!(ones.to_vec1::<f32>()?, [1.0, 1.0]);
    if rank.world_size() > 1 {
        let (next, last) = ((rank.rank() + 1) % rank.world_size(), rank.world_size() - 1);
        rank.send(next, &ones)?;
        let before = rank.rank().checked_sub(1).unwrap_or(last);
        rank.recv(before, &Shape::from(2), DType::F32)?;
    }
    Ok(())
}
