//! Processes against threads, and MPI's own all-reduce against a plain sum.

use std::time::Duration;

use backends::check;
use candle_core::{DType, Device, Shape, Tensor};
use devices::DevicePlan;
use params_and_allreduce::Algorithm;
use params_and_allreduce::collectives::chunk_range;
use params_and_allreduce::communicator::{Communicator, Error, SharedCommunicator as Rank};
use params_and_allreduce::thread::run_ranks;

/// Shapes that do not divide evenly, that have fewer elements than there are ranks, that are empty, and that are long.
const SHAPES: [&[usize]; 7] = [&[], &[0], &[1], &[3, 5], &[4, 0, 2], &[1023], &[100_003]];

/// A rank's contribution: numbers that round, in a view with its dimensions in reverse.
fn mine(rank: usize, shape: &[usize], dtype: DType) -> candle_core::Result<Tensor> {
    let number = |i: usize| ((rank * 7919 + i * 104_729) % 10_007) as f64 / 3.0 - 1000.0;
    let values: Vec<f64> = (0..shape.iter().product()).map(number).collect();
    let reversed: Vec<usize> = shape.iter().rev().copied().collect();
    let order: Vec<usize> = (0..shape.len()).rev().collect();
    Tensor::from_vec(values, reversed, &Device::Cpu)?.to_dtype(dtype)?.permute(order)
}

/// All collectives, one after the other.
fn everything(rank: &(impl Communicator + ?Sized)) -> Result<Vec<Tensor>, Error> {
    let mut results = Vec::new();
    for dtype in [DType::F32, DType::F64, DType::BF16, DType::F16] {
        for shape in SHAPES {
            let tensor = mine(rank.rank(), shape, dtype)?;
            for algorithm in Algorithm::OURS {
                results.push(rank.all_reduce(&tensor, algorithm)?);
            }
            results.push(rank.reduce_scatter(&tensor)?);
        }
    }
    for dtype in [DType::U8, DType::U32, DType::I16, DType::I32, DType::I64, DType::F16] {
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

fn bits(tensor: &Tensor) -> candle_core::Result<(DType, Vec<usize>, Vec<u64>)> {
    let numbers = tensor.to_dtype(DType::F64)?.flatten_all()?.to_vec1::<f64>()?;
    Ok((tensor.dtype(), tensor.dims().to_vec(), numbers.into_iter().map(f64::to_bits).collect()))
}

pub fn collectives(rank: &Rank) -> Result<(), Error> {
    let results = everything(&**rank)?;
    let plan = DevicePlan::slices(rank.world_size()).unwrap();
    let threads = run_ranks(&plan, Duration::from_secs(60), everything).unwrap();
    assert_eq!(results.len(), threads[rank.rank()].len());
    for (i, (result, expected)) in results.iter().zip(&threads[rank.rank()]).enumerate() {
        assert!(bits(result)? == bits(expected)?, "result {i}: {:?}", expected.shape());
    }
    Ok(())
}

pub fn native(rank: &Rank) -> Result<(), Error> {
    let plan = DevicePlan::slices(rank.world_size()).unwrap();
    assert_eq!(check(Algorithm::Native, &plan).is_ok(), rank.world_size() > 1);
    for (dtype, tolerance) in [(DType::F32, 1e-6), (DType::F64, 1e-15)] {
        for shape in SHAPES {
            let tensor = mine(rank.rank(), shape, dtype)?;
            let sum = rank.all_reduce(&tensor, Algorithm::Native)?;
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
    // One rank has nothing to add up.
    if rank.world_size() > 1 {
        let bf16 = Tensor::zeros(2, DType::BF16, rank.device())?;
        let refusal = rank.all_reduce(&bf16, Algorithm::Native).unwrap_err().to_string();
        assert!(refusal.contains("f32 and f64, not bf16"), "{refusal}");
    }
    // The sum has memory of its own.
    let ones = Tensor::ones(2, DType::F32, rank.device())?;
    let sum = rank.all_reduce(&ones, Algorithm::Native)?;
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
