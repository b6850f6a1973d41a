//! Chapter 2, `book/src/ch02-all-reduce.md`: every tensor is summed on its own owner.
//!
//! The owners are of tensors of many sizes, and the sums are of numbers that show which rank is missing.

use std::fmt;

use crate::prelude::*;

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
    each_tensor_has_one_owner in sizes(),
    the_owners_are_balanced in sizes(),
    every_rank_has_every_sum in OWNERS,
    only_owners_receive_and_send_back in OWNERS,
    no_message_to_an_owner_waits in OWNERS,
    the_owners_make_no_difference_to_the_bits in [Owned(2, [0; 5]), Owned(4, [0; 5]), Owned(5, [0; 5])],
    errors_are_passed_on
];

const BALANCE: &str =
    "moving one tensor to another rank never makes the larger of the two ranks' bytes smaller";
const SUM: &str = "the owner adds up the tensors of all ranks, and every rank gets this sum";
const BYTES: &str = "every other rank sends its tensor to the owner, and the owner sends the sum to every other rank";
const CHAIN: &str = "a rank sends all its tensors to their owners before it waits for anything: then all owners work at once";
const BITS: &str =
    "the order of the additions depends on the ranks' numbers, and not on the rank that adds";

/// The sizes of LeNet's parameters in f32.
const LENET: [usize; 8] = [720, 80, 100_000, 200, 409_600, 512, 5_120, 40];

/// Sizes of tensors, and a number of ranks.
struct Sizes(Vec<usize>, usize);

impl fmt::Display for Sizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(bytes, ranks) = self;
        match bytes.len() {
            ..=12 => write!(f, "{bytes:?} bytes, {}", counted(*ranks, "rank")),
            many => write!(f, "{many} sizes, {}", counted(*ranks, "rank")),
        }
    }
}

fn sizes() -> Vec<Sizes> {
    let spread: Vec<usize> = (0..60).map(|tensor| 4 + 4 * (tensor * 37 % 101)).collect();
    let few: [(&[usize], usize); 15] = [
        (&LENET, 2),
        (&LENET, 4),
        (&[100, 20, 4000, 80], 2),
        // The largest come last: taken in this order, the small ones are where they should not be.
        (&[1, 5, 10], 2),
        (&[4, 8, 12, 16, 40, 44, 300], 3),
        // As many tensors on each rank are not as many bytes.
        (&[900, 8, 700, 8, 600, 8], 2),
        (&[12; 7], 3),
        (&[16, 24], 5),
        (&[0, 8, 0, 4], 2),
        (&[0, 0], 3),
        (&[], 4),
        (&LENET, 1),
        (&spread, 2),
        (&spread, 3),
        (&spread, 8),
    ];
    few.map(|(bytes, ranks)| Sizes(bytes.to_vec(), ranks)).into()
}

/// The answer's owners, each of which is a rank.
fn owners(answer: Answer, Sizes(bytes, ranks): &Sizes) -> Outcome<Vec<usize>> {
    let owners = (answer.owners)(bytes, *ranks);
    let law = "each tensor has exactly one owner, a rank";
    same("the number of owners", bytes.len(), owners.len(), law)?;
    let no_rank = owners.iter().position(|owner| owner >= ranks);
    no_rank.map_or(Ok(()), |tensor| {
        let what = format!("the owner of tensor {tensor} is no rank");
        Err(Finding::new(what).expected(format!("0 to {}", ranks - 1), owners[tensor]).law(law))
    })?;
    Ok(owners)
}

fn each_tensor_has_one_owner(answer: Answer, sizes: &Sizes) -> Outcome {
    let [once, again] = [owners(answer, sizes)?, owners(answer, sizes)?].map(in_a_row);
    let law = "every rank computes the owners by itself, and gets the same ones";
    same("two calls give different owners", once, again, law)
}

fn the_owners_are_balanced(answer: Answer, sizes: &Sizes) -> Outcome {
    let (owners, Sizes(bytes, ranks)) = (owners(answer, sizes)?, sizes);
    let mut loads = vec![0; *ranks];
    owners.iter().zip(bytes).for_each(|(&owner, size)| loads[owner] += size);
    for (tensor, (&owner, &size)) in owners.iter().zip(bytes).enumerate() {
        let better = |&to: &usize| size > 0 && loads[to] + size < loads[owner];
        if let Some(to) = (0..*ranks).find(better) {
            let (more, less) = (loads[to] + size, loads[owner] - size);
            let expected = format!(
                "better: tensor {tensor}, {size} bytes, on rank {to}; then rank {to} has {more} and rank {owner} {less}"
            );
            let got = format!("ranks with {} bytes", in_a_row(&loads));
            return Err(Finding::new("the owners are not balanced")
                .expected(expected, got)
                .law(BALANCE));
        }
    }
    Ok(())
}

/// Tensors of two types, one without elements, and one without dimensions.
const TENSORS: [(&[usize], DType); 5] = [
    (&[2, 3], DType::F32),
    (&[5], DType::F64),
    (&[0], DType::F32),
    (&[], DType::F32),
    (&[3], DType::F32),
];

/// A number of ranks, and the owners of [`TENSORS`].
#[derive(Clone, Copy)]
struct Owned(usize, [usize; 5]);

/// One rank owns all, one owns none, and others.
const OWNERS: [Owned; 7] = [
    Owned(1, [0, 0, 0, 0, 0]),
    Owned(2, [0, 1, 0, 1, 1]),
    Owned(2, [1, 1, 1, 1, 1]),
    Owned(3, [2, 0, 1, 1, 2]),
    Owned(3, [0, 0, 0, 0, 0]),
    Owned(4, [3, 1, 0, 1, 3]),
    Owned(4, [0, 1, 2, 3, 0]),
];

impl fmt::Display for Owned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "owners {} of {}", in_a_row(self.1), counted(self.0, "rank"))
    }
}

/// A contribution of a rank, from its number, a shape and a type.
type Own = fn(usize, &[usize], DType) -> Result<Tensor>;

fn whole(rank: usize, shape: &[usize], dtype: DType) -> Result<Tensor> {
    contribution(rank, shape)?.to_dtype(dtype)
}

/// Numbers that round: another order of additions gives other bits.
fn rounding(rank: usize, shape: &[usize], dtype: DType) -> Result<Tensor> {
    let numbers = contribution(0, shape)?.to_dtype(DType::F64)?;
    numbers.affine(7.0, (13 * rank * rank + 3) as f64)?.recip()?.to_dtype(dtype)
}

impl Owned {
    /// For each rank, the sums and the messages.
    fn found(self, answer: Answer, own: Own) -> Outcome<Vec<(Vec<Tensor>, Vec<Message>)>> {
        let Self(ranks, owners) = self;
        let found = ranks::run(ranks, Sends::Buffered, move |rank| {
            let own = TENSORS.iter().map(|&(shape, dtype)| own(rank.rank(), shape, dtype));
            let sums = (answer.allreduce)(rank, &own.collect::<Result<Vec<_>>>()?, &owners)?;
            Ok((sums, rank.sent()))
        });
        let found = found.map_err(ranks::all_take_part(BYTES, false))?;
        for (rank, (sums, _)) in found.iter().enumerate() {
            same(format!("the number of sums on rank {rank}"), TENSORS.len(), sums.len(), SUM)?;
        }
        Ok(found)
    }
}

fn every_rank_has_every_sum(answer: Answer, case: &Owned) -> Outcome {
    for (rank, (sums, _)) in case.found(answer, whole)?.iter().enumerate() {
        for (number, (got, (shape, dtype))) in sums.iter().zip(TENSORS).enumerate() {
            Expectation::of(format!("rank {rank}: the sum of tensor {number}"))
                .law(SUM)
                .guess(guess(case.0))
                .compare_tensors(&sum(case.0, shape)?.to_dtype(dtype)?, got)?;
        }
    }
    Ok(())
}

fn only_owners_receive_and_send_back(answer: Answer, case: &Owned) -> Outcome {
    for (rank, (_, sent)) in case.found(answer, whole)?.iter().enumerate() {
        let mut expected = Vec::new();
        for (&owner, (shape, dtype)) in case.1.iter().zip(TENSORS) {
            let bytes = (shape.iter().product::<usize>() * dtype.size_in_bytes()) as u64;
            let to = (0..case.0).filter(|&to| to != rank && (to == owner || rank == owner));
            expected.extend(to.map(|to| (to, bytes)));
        }
        let mut sent: Vec<(usize, u64)> =
            sent.iter().map(|message| (message.to, message.bytes)).collect();
        expected.sort_unstable();
        sent.sort_unstable();
        let told = |messages: &[(usize, u64)]| {
            let each = messages.iter().map(|(to, bytes)| format!("{bytes} bytes to rank {to}"));
            let each = each.collect::<Vec<_>>().join(", ");
            format!("{}: {each}", counted(messages.len(), "message"))
        };
        same(format!("rank {rank} sent"), told(&expected), told(&sent), BYTES)?;
    }
    Ok(())
}

fn no_message_to_an_owner_waits(answer: Answer, case: &Owned) -> Outcome {
    let found = case.found(answer, whole)?;
    let longest = found.iter().flat_map(|(_, sent)| sent).map(|message| message.chain).max();
    demand(longest.unwrap_or(0) <= 2, || {
        let got = longest.unwrap_or(0);
        let what =
            "messages in the longest chain, each sent after its sender has received the one before";
        Finding::new(what)
            .expected("at most 2: a tensor to its owner, then the sum", got)
            .law(CHAIN)
    })
}

/// The sums are those of stage 2, with the same bits on every rank, whichever rank is the owner.
fn the_owners_make_no_difference_to_the_bits(answer: Answer, &case: &Owned) -> Outcome {
    let first = case.found(answer, rounding)?;
    for owner in 0..case.0 {
        for (rank, (sums, _)) in
            Owned(case.0, [owner; 5]).found(answer, rounding)?.iter().enumerate()
        {
            for (number, (got, expected)) in sums.iter().zip(&first[0].0).enumerate() {
                Expectation::of(format!("rank {rank}: two sums of tensor {number}"))
                    .between("if rank 0 is the owner", &format!("if rank {owner} is the owner"))
                    .law(BITS)
                    .compare_tensors(expected, got)?;
                let (shape, dtype) = TENSORS[number];
                let mut exact = rounding(0, shape, DType::F64)?;
                for other in 1..case.0 {
                    exact = (exact + rounding(other, shape, DType::F64)?)?;
                }
                Expectation::of(format!("rank {rank}: the sum of tensor {number}"))
                    .law("tensors are added in their own type")
                    .up_to(if dtype == DType::F64 { 1e-14 } else { 1e-6 })
                    .compare_tensors(&exact.to_dtype(dtype)?, got)?;
            }
        }
    }
    Ok(())
}

fn errors_are_passed_on(answer: Answer) -> Outcome {
    ranks::errors_are_passed_on(3, Sends::Buffered, move |rank| {
        let own = [contribution(rank.rank(), 4)?, contribution(rank.rank(), 2)?];
        (answer.allreduce)(rank, &own, &[1, 0])
    })
}
