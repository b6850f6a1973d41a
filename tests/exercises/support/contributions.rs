//! Contributions of ranks to a sum. A wrong sum shows which rank is missing.
//!
//! Rank r contributes 2^r times 1, 2, 3, …. Like the binary digits of a number, every set of ranks has a different sum: three
//! ranks give 7, 14, 21, …, and only ranks 0 and 1 give 3, 6, 9, …. All numbers are whole, so the order of additions does not
//! matter.

use candle_core::{DType, Device, Shape, Tensor, Var};
use params_and_allreduce::communicator::{Communicator as _, Error};

use crate::expectation::{Expectation, numbers};
use crate::outcome::{Outcome, in_a_row};
use crate::ranks::Rank;

type Result<T, E = candle_core::Error> = std::result::Result<T, E>;

/// What [`reduced`] writes into a tensor after the call. No sum, mean or difference of contributions is as low.
const WRITTEN: f64 = -1000.0;

/// The tensor that a rank contributes, in f32: 2^rank · (1, 2, 3, …).
pub fn contribution(rank: usize, shape: impl Into<Shape>) -> Result<Tensor> {
    counted(1 << rank, shape)
}

/// The sum of all contributions: (2^world size − 1) · (1, 2, 3, …).
pub fn sum(world_size: usize, shape: impl Into<Shape>) -> Result<Tensor> {
    counted((1 << world_size) - 1, shape)
}

/// A guess at the terms of a wrong sum.
pub fn guess(world_size: usize) -> impl Fn(f64, f64) -> Option<String> {
    move |expected, got| {
        let all = f64::from((1u32 << world_size) - 1);
        // The factor of the numbers 1, 2, 3, ….
        let count = got / expected * all;
        let (rounded, names) = (count.round(), |count| names(count, world_size));
        if (got * world_size as f64 - expected).abs() < 1e-4 * expected.abs() {
            Some(format!("that is the sum divided by {world_size}: the mean"))
        } else if (count - rounded).abs() >= 1e-4
            || !(0.0..=2.0 * all).contains(&rounded)
            || rounded == all
        {
            None
        } else if rounded < all {
            Some(format!("that is the sum without {}", names(all - rounded)))
        } else {
            Some(format!("that is the sum with {} added twice", names(rounded - all)))
        }
    }
}

/// The law about an answer that writes to its input, by the error of [`reduced`].
pub const INPUT: (&str, &str) =
    ("has written to its input", "the sum is the result, and the input keeps its numbers");

/// The result of `answer` for the contribution of a rank, which is written to afterwards, as an optimizer does.
/// Fails with [`INPUT`], too.
pub fn reduced(
    rank: &Rank,
    shape: &[usize],
    answer: impl FnOnce(&Tensor) -> Result<Tensor, Error>,
) -> Result<Tensor, Error> {
    let own = Var::from_tensor(&contribution(rank.rank(), shape)?)?;
    let sum = answer(own.as_tensor())?;
    let [before, after] = [contribution(rank.rank(), shape)?, own.as_detached_tensor()];
    let [before, after] = [numbers(&before)?, numbers(&after)?].map(in_a_row);
    if before != after {
        let told = format!("the answer {}: the caller's {before} became {after}", INPUT.0);
        return Err(Error::Other(told));
    }
    own.set(&Tensor::full(WRITTEN as f32, shape, rank.device())?)?;
    Ok(sum)
}

/// Demands that every rank has the sum of all contributions, from [`reduced`]. The `law` is about wrong numbers.
pub fn are_sums(shape: &[usize], sums: &[Tensor], law: &str) -> Outcome {
    let expected = sum(sums.len(), shape)?;
    sums.iter().enumerate().try_for_each(|(rank, got)| {
        let is_alike = (got.dtype(), got.dims()) == (expected.dtype(), expected.dims());
        let law = match numbers(got)?.contains(&WRITTEN) {
            _ if !is_alike => "the sum has the shape and the element type of the input",
            true => "the sum has its own memory: here it changes when the caller writes -1000 into its input",
            false => law,
        };
        Expectation::of(format!("the sum on rank {rank}"))
            .law(law)
            .guess(guess(sums.len()))
            .compare_tensors(&expected, got)
    })
}

/// A contribution of numbers that round: another order of additions gives other bits.
pub fn rounding(rank: usize, shape: &[usize], dtype: DType) -> Result<Tensor> {
    let numbers = contribution(0, shape)?.to_dtype(DType::F64)?;
    numbers.affine(7.0, (13 * rank * rank + 3) as f64)?.recip()?.to_dtype(dtype)
}

/// Demands that the sums of [`rounding`] have the same bits on every rank, and are right up to the rounding of their type.
pub fn same_bits(what: &str, sums: &[&Tensor]) -> Outcome {
    let (shape, dtype) = (sums[0].dims(), sums[0].dtype());
    let each = (0..sums.len()).map(|rank| rounding(rank, shape, DType::F64));
    let exact = each.reduce(|sum, next| sum? + next?).expect("there is a rank")?;
    sums.iter().enumerate().try_for_each(|(rank, got)| {
        let sum = || Expectation::of(format!("{what} on rank {rank}"));
        sum()
            .law("all ranks go on from equal numbers, to the last bit: rank 0's are expected")
            .compare_tensors(sums[0], got)?;
        sum()
            .law("tensors are added in their own type")
            .up_to(if dtype == DType::F64 { 1e-14 } else { 1e-6 })
            .compare_tensors(&exact.to_dtype(dtype)?, got)
    })
}

/// `rank 0 and rank 2` for 5 = 2⁰ + 2².
fn names(count: f64, world_size: usize) -> String {
    let count = count as u64;
    let ranks = (0..world_size).filter(|rank| count >> rank & 1 == 1);
    let names: Vec<String> = ranks.map(|rank| format!("rank {rank}")).collect();
    names.join(" and ")
}

fn counted(times: u32, shape: impl Into<Shape>) -> Result<Tensor> {
    let shape = shape.into();
    let numbers = Tensor::arange(1u32, shape.elem_count() as u32 + 1, &Device::Cpu)?;
    (numbers.to_dtype(DType::F32)? * f64::from(times))?.reshape(shape)
}
