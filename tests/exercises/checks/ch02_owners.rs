//! Chapter 2, `book/src/ch02-all-reduce.md`: every tensor is summed on its own owner.
//!
//! The owners are of tensors of many sizes, and the sums are of numbers that show which rank is missing.

use crate::contributions::{contribution, guess, sum};
use crate::prelude::*;
use crate::ranks::Sent;

/// The two functions.
#[derive(Clone, Copy)]
pub struct Answer {
    /// The sizes of the tensors in bytes and the number of ranks; the owner of each tensor.
    pub owners: fn(&[usize], usize) -> Vec<usize>,
    /// A rank, its tensors and their owners; the sums over all ranks.
    pub allreduce: fn(&Rank, &[Tensor], &[usize]) -> Result<Vec<Tensor>, Error>,
}

/// The laws of an answer.
pub const LAWS: &[Law<Answer>] = laws![
    each_tensor_has_one_owner,
    the_owners_are_balanced,
    every_rank_has_every_sum,
    only_owners_receive_and_send_back,
    no_contribution_waits_for_a_sum,
    the_owners_make_no_difference_to_the_bits,
    errors_are_passed_on
];

const BALANCE: &str =
    "moving one tensor to another rank never makes the larger of the two ranks' bytes smaller";
const SUM: &str = "the owner adds up the tensors of all ranks, and every rank gets this sum";
const BYTES: &str = "every other rank sends its tensor to the owner, and the owner sends the sum to every other rank";
const CHAIN: &str = "a rank sends its tensors to their owners before it waits for a sum: then all owners work at once";
const BITS: &str =
    "the order of the additions depends on the ranks' numbers, and not on the rank that adds";

/// The sizes of LeNet's parameters in f32.
const LENET: [usize; 8] = [720, 80, 100_000, 200, 409_600, 512, 5_120, 40];

/// Sizes of tensors, and a number of ranks.
fn cases() -> Vec<(Vec<usize>, usize)> {
    let mut cases = vec![
        (LENET.to_vec(), 2),
        (LENET.to_vec(), 4),
        (vec![100, 20, 4000, 80], 2),
        // The largest come last: taken in this order, the small ones are where they should not be.
        (vec![1, 5, 10], 2),
        (vec![4, 8, 12, 16, 40, 44, 300], 3),
        // As many tensors on each rank are not as many bytes.
        (vec![900, 8, 700, 8, 600, 8], 2),
        (vec![12; 7], 3),
        (vec![16, 24], 5),
        (vec![0, 8, 0, 4], 2),
        (vec![0, 0], 3),
        (vec![], 4),
        (LENET.to_vec(), 1),
    ];
    let spread: Vec<usize> = (0..60).map(|tensor| 4 + 4 * (tensor * 37 % 101)).collect();
    cases.extend([2, 3, 8].map(|ranks| (spread.clone(), ranks)));
    cases
}

/// The answer's owners, each of which is a rank.
fn owners(answer: Answer, bytes: &[usize], ranks: usize) -> Vec<usize> {
    let (given, sizes) = (about(bytes, ranks), bytes.to_vec());
    let owners = within(&given, move || (answer.owners)(&sizes, ranks));
    let law = "each tensor has exactly one owner, a rank";
    if owners.len() != bytes.len() {
        let (expected, got) = (bytes.len().to_string(), owners.len().to_string());
        fail(&format!("{given}: the number of owners"), &expected, &got, law);
    }
    if let Some(tensor) = owners.iter().position(|&owner| owner >= ranks) {
        let what = format!("{given}: the owner of tensor {tensor} is no rank");
        fail(&what, &format!("0 to {}", ranks - 1), &owners[tensor].to_string(), law);
    }
    owners
}

fn about(bytes: &[usize], ranks: usize) -> String {
    let sizes = if bytes.len() > 12 { "60 sizes".to_owned() } else { format!("{bytes:?} bytes") };
    format!("{sizes}, {}", harness::report::counted(ranks, "rank"))
}

fn each_tensor_has_one_owner(answer: Answer) {
    for (bytes, ranks) in cases() {
        let once = owners(answer, &bytes, ranks);
        let again = owners(answer, &bytes, ranks);
        if once != again {
            let what = format!("{}: two calls give different owners", about(&bytes, ranks));
            let law = "every rank computes the owners by itself, and gets the same ones";
            fail(&what, &in_a_row(&once), &in_a_row(&again), law);
        }
    }
}

fn the_owners_are_balanced(answer: Answer) {
    for (bytes, ranks) in cases() {
        let owners = owners(answer, &bytes, ranks);
        let mut loads = vec![0; ranks];
        for (&owner, size) in owners.iter().zip(&bytes) {
            loads[owner] += size;
        }
        for (tensor, (&owner, &size)) in owners.iter().zip(&bytes).enumerate() {
            let better = |&to: &usize| size > 0 && loads[to] + size < loads[owner];
            if let Some(to) = (0..ranks).find(better) {
                let what = format!("{}: the owners are not balanced", about(&bytes, ranks));
                let expected = format!(
                    "better: tensor {tensor}, {size} bytes, on rank {to}; then rank {to} has {} and rank {owner} {}",
                    loads[to] + size,
                    loads[owner] - size
                );
                let got = format!("ranks with {} bytes", in_a_row(&loads));
                fail(&what, &expected, &got, BALANCE);
            }
        }
    }
}

/// Tensors of two types, one without elements, and one without dimensions.
const TENSORS: [(&[usize], DType); 5] = [
    (&[2, 3], DType::F32),
    (&[5], DType::F64),
    (&[0], DType::F32),
    (&[], DType::F32),
    (&[3], DType::F32),
];

/// Numbers of ranks, and owners of [`TENSORS`]: one rank of all, one of none, and others.
const OWNERS: [(usize, [usize; 5]); 7] = [
    (1, [0, 0, 0, 0, 0]),
    (2, [0, 1, 0, 1, 1]),
    (2, [1, 1, 1, 1, 1]),
    (3, [2, 0, 1, 1, 2]),
    (3, [0, 0, 0, 0, 0]),
    (4, [3, 1, 0, 1, 3]),
    (4, [0, 1, 2, 3, 0]),
];

fn given(world_size: usize, owners: &[usize]) -> String {
    format!("owners {} of {}", in_a_row(owners), harness::report::counted(world_size, "rank"))
}

/// The sums on every rank, and what each rank has sent.
#[track_caller]
fn outcomes(
    answer: Answer,
    world_size: usize,
    owners: [usize; 5],
    tensor: fn(usize, &[usize], DType) -> Result<Tensor>,
) -> Vec<(Vec<Tensor>, Sent)> {
    let outcomes = ranks::attempt(world_size, Sends::Buffered, move |rank| {
        let own = TENSORS.iter().map(|&(shape, dtype)| tensor(rank.rank(), shape, dtype));
        let own = own.collect::<Result<Vec<_>>>()?;
        Ok(((answer.allreduce)(rank, &own, &owners)?, rank.sent()))
    });
    let given = given(world_size, &owners);
    outcomes.unwrap_or_else(|failure| ranks::fail(&given, "sums", &failure, BYTES, false))
}

fn of_rank(rank: usize, shape: &[usize], dtype: DType) -> Result<Tensor> {
    contribution(rank, shape)?.to_dtype(dtype)
}

fn every_rank_has_every_sum(answer: Answer) -> Result<()> {
    for (world_size, owners) in OWNERS {
        for (rank, (sums, _)) in outcomes(answer, world_size, owners, of_rank).iter().enumerate() {
            let what = format!("{}: rank {rank}", given(world_size, &owners));
            if sums.len() != TENSORS.len() {
                let (expected, got) = (TENSORS.len().to_string(), sums.len().to_string());
                fail(&format!("{what}: the number of sums"), &expected, &got, SUM);
            }
            for (number, (got, (shape, dtype))) in sums.iter().zip(TENSORS).enumerate() {
                Expectation::of(format!("{what}: the sum of tensor {number}"))
                    .law(SUM)
                    .guess(guess(world_size))
                    .check_tensor(&sum(world_size, shape)?.to_dtype(dtype)?, got);
            }
        }
    }
    Ok(())
}

fn only_owners_receive_and_send_back(answer: Answer) {
    for (world_size, owners) in OWNERS {
        for (rank, (_, sent)) in outcomes(answer, world_size, owners, of_rank).iter().enumerate() {
            let mut expected = Traffic::default();
            for (&owner, (shape, dtype)) in owners.iter().zip(TENSORS) {
                let messages = if owner == rank { world_size as u64 - 1 } else { 1 };
                let bytes = shape.iter().product::<usize>() * dtype.size_in_bytes();
                expected.messages += messages;
                expected.bytes += messages * bytes as u64;
            }
            let told = |traffic: Traffic| {
                let bytes = harness::report::counted(traffic.bytes as usize, "byte");
                format!(
                    "{bytes} in {}",
                    harness::report::counted(traffic.messages as usize, "message")
                )
            };
            if sent.traffic != expected {
                let what = format!("{}: rank {rank} sent", given(world_size, &owners));
                fail(&what, &told(expected), &told(sent.traffic), BYTES);
            }
        }
    }
}

fn no_contribution_waits_for_a_sum(answer: Answer) {
    for (world_size, owners) in OWNERS {
        let outcomes = outcomes(answer, world_size, owners, of_rank);
        let longest = outcomes.iter().map(|(_, sent)| sent.longest_chain).max().unwrap_or(0);
        if longest > 2 {
            let what = format!("{}: a chain of messages", given(world_size, &owners));
            fail(&what, "at most 2: a contribution, then a sum", &longest.to_string(), CHAIN);
        }
    }
}

/// Numbers that round: another order of additions gives other bits.
fn rounding(rank: usize, shape: &[usize], dtype: DType) -> Result<Tensor> {
    let numbers = contribution(0, shape)?.to_dtype(DType::F64)?;
    numbers.affine(7.0, (13 * rank * rank + 3) as f64)?.recip()?.to_dtype(dtype)
}

fn the_owners_make_no_difference_to_the_bits(answer: Answer) -> Result<()> {
    for world_size in [2, 4, 5] {
        let first = outcomes(answer, world_size, [0; 5], rounding);
        let (expected, _) = &first[0];
        for owner in 0..world_size {
            let others = outcomes(answer, world_size, [owner; 5], rounding);
            for (rank, (sums, _)) in others.iter().enumerate() {
                let what = format!("{}: rank {rank}", given(world_size, &[owner; 5]));
                for (number, (got, expected)) in sums.iter().zip(expected).enumerate() {
                    Expectation::of(format!("{what}: two sums of tensor {number}"))
                        .between("if rank 0 is the owner", &format!("if rank {owner} is the owner"))
                        .law(BITS)
                        .check_tensor(expected, got);
                }
            }
        }
    }
    Ok(())
}

fn errors_are_passed_on(answer: Answer) {
    let what = "3 ranks, owners 1 and 0";
    ranks::errors_are_passed_on(what, 3, Sends::Buffered, move |rank| {
        let own = [contribution(rank.rank(), 4)?, contribution(rank.rank(), 2)?];
        (answer.allreduce)(rank, &own, &[1, 0])
    });
}
