//! Contributions of ranks to a sum. A wrong sum shows which rank is missing.
//!
//! Rank r contributes 2^r times 1, 2, 3, …. Like the binary digits of a number, every set of ranks has a different sum: three
//! ranks give 7, 14, 21, …, and only ranks 0 and 1 give 3, 6, 9, …. All numbers are whole, so the order of additions does not
//! matter.

use candle_core::{DType, Device, Result, Shape, Tensor};

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expectation::numbers;

    #[test]
    fn the_sum_is_that_of_the_contributions() {
        let mut total = contribution(0, (2, 3)).unwrap();
        for rank in 1..5 {
            total = (total + contribution(rank, (2, 3)).unwrap()).unwrap();
        }
        let sum = sum(5, (2, 3)).unwrap();
        assert_eq!(numbers(&sum).unwrap(), numbers(&total).unwrap());
        assert_eq!(numbers(&sum).unwrap(), [31.0, 62.0, 93.0, 124.0, 155.0, 186.0]);
        assert_eq!(contribution(3, 0).unwrap().dims(), [0]);
    }

    #[test]
    fn a_wrong_sum_tells_what_went_into_it() {
        let guess = guess(3);
        assert_eq!(guess(14.0, 6.0).unwrap(), "that is the sum without rank 2");
        assert_eq!(guess(14.0, 4.0).unwrap(), "that is the sum without rank 0 and rank 2");
        assert_eq!(guess(7.0, 9.0).unwrap(), "that is the sum with rank 1 added twice");
        assert_eq!(guess(21.0, 7.0).unwrap(), "that is the sum divided by 3: the mean");
        // Rounded in f32, nothing is missing.
        assert_eq!(guess(7.0, 7.0 + 1e-7), None);
        assert_eq!(guess(7.0, 1.3), None);
        assert_eq!(guess(7.0, f64::NAN), None);
    }
}
