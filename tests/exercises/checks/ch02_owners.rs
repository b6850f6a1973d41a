//! Chapter 2, `book/src/ch02-all-reduce.md`: every tensor is summed on its own owner.
//!
//! The check asks for the owners of tensors of many sizes. A wrong sum shows which rank is missing.

use crate::contributions::rounding;
use crate::prelude::*;

/// The two functions.
#[derive(Clone, Copy)]
pub struct Answer {
    /// The sizes of the tensors in bytes and the number of ranks; the owner of each tensor.
    pub owners: fn(&[usize], usize) -> Vec<usize>,
    /// A rank, its tensors and their owners; the sums over all ranks.
    pub allreduce: fn(&Rank, &[Tensor], &[usize]) -> Result<Vec<Tensor>, Error>,
}

pub const LAWS: &[Law<Answer>] = laws![
    the_owners_are_balanced in sizes(),
    every_rank_has_every_sum in OWNERS,
    only_owners_receive_and_send_back in OWNERS,
    no_message_to_an_owner_waits in OWNERS,
    the_owners_make_no_difference_to_the_bits in [Owned(2, [0; 5]), Owned(4, [0; 5]), Owned(5, [0; 5])],
    errors_are_passed_on => (3, Sends::Buffered) |answer, rank|
        (answer.allreduce)(rank, &[contribution(rank.rank(), 4)?, contribution(rank.rank(), 2)?], &[1, 0]),
];

const OWNER: &str = "each tensor has exactly one owner, a rank";
const ALIKE: &str = "every rank computes the owners by itself, and gets the same ones";
const BALANCE: &str =
    "moving one tensor to another rank never makes the larger of the two ranks' bytes smaller";
const SUM: &str = "the owner adds up the tensors of all ranks, and every rank gets this sum";
const BYTES: &str = "every other rank sends its tensor to the owner, and the owner sends the sum to every other rank";
const CHAIN: &str = "a rank sends all its tensors to their owners before it waits for anything: then all owners work at once";
const ORDER: &str = "messages from one rank to another arrive in the order in which they were sent: first all tensors, then the sums";
const BITS: &str = "the order of the additions depends on the ranks' numbers, not on the owner";

/// The laws about failures of ranks.
const FAILURES: [(&str, &str); 5] = [
    ("deadlock: ", CHAIN),
    (", but rank ", ORDER),
    (" never received", BYTES),
    (" returned early", BYTES),
    ("exchange messages with", BYTES),
];

/// The sizes of LeNet's parameters in f32.
const LENET: [usize; 8] = [720, 80, 100_000, 200, 409_600, 512, 5_120, 40];

/// Sizes of tensors, and a number of ranks.
struct Sizes(Vec<usize>, usize);

shown!(Sizes(bytes, ranks) => "{}, {}", match bytes.len() {
    ..=12 => format!("{bytes:?} bytes"),
    many => format!("{many} sizes"),
}, counted(*ranks, "rank"));

fn sizes() -> impl Iterator<Item = Sizes> {
    let few: [(&[usize], &[usize]); 9] = [
        (&LENET, &[2, 4, 1]),
        (&[100, 20, 4000, 80], &[2]),
        // The largest come last: taken in this order, the small ones are where they should not be.
        (&[1, 5, 10], &[2]),
        (&[4, 8, 12, 16, 40, 44, 300], &[3]),
        // Equal numbers of tensors are not equal numbers of bytes.
        (&[900, 8, 700, 8, 600, 8], &[2]),
        (&[12; 7], &[3]),
        (&[16, 24], &[5]),
        (&[0, 8, 0, 4], &[2]),
        (&[], &[4]),
    ];
    let spread: Vec<usize> = (0..60).map(|tensor| 4 + 4 * (tensor * 37 % 101)).collect();
    let few = few.map(|(bytes, ranks)| (bytes.to_vec(), ranks)).into_iter();
    few.chain([(spread, &[2, 3, 8][..])])
        .flat_map(|(bytes, ranks)| ranks.iter().map(move |&ranks| Sizes(bytes.clone(), ranks)))
}

fn the_owners_are_balanced(answer: Answer, Sizes(bytes, ranks): &Sizes) -> Outcome {
    let owners = (answer.owners)(bytes, *ranks);
    same("the number of owners", bytes.len(), owners.len(), OWNER)?;
    let again = in_a_row((answer.owners)(bytes, *ranks));
    same("two calls give different owners", in_a_row(&owners), again, ALIKE)?;
    let mut loads = vec![0; *ranks];
    for (tensor, (&owner, size)) in owners.iter().zip(bytes).enumerate() {
        let (what, all) = (format!("the owner of tensor {tensor} is no rank"), 0..*ranks);
        expect(owner < *ranks, what, (format!("one of {all:?}"), owner), OWNER)?;
        loads[owner] += size;
    }
    for (tensor, (&owner, &size)) in owners.iter().zip(bytes).enumerate() {
        let better = |&to: &usize| size > 0 && loads[to] + size < loads[owner];
        if let Some(to) = (0..*ranks).find(better) {
            let (more, less) = (loads[to] + size, loads[owner] - size);
            let expected = format!(
                "better: tensor {tensor}, {size} bytes, on rank {to}; then rank {to} has {more} and rank {owner} {less}"
            );
            let got = format!("ranks with {} bytes", in_a_row(&loads));
            expect(false, "the owners are not balanced", (expected, got), BALANCE)?;
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

shown!(Owned(ranks, owners) => "owners {} of {}", in_a_row(owners), counted(*ranks, "rank"));

fn whole(rank: usize, shape: &[usize], dtype: DType) -> Result<Tensor> {
    contribution(rank, shape)?.to_dtype(dtype)
}

impl Owned {
    /// For each rank, the sums and the messages. The tensors come from a rank's number, a shape and a type.
    fn found(
        self,
        answer: Answer,
        own: fn(usize, &[usize], DType) -> Result<Tensor>,
    ) -> Outcome<Vec<(Vec<Tensor>, Vec<Message>)>> {
        let Self(ranks, owners) = self;
        let found = ranks::run(ranks, Sends::Buffered, move |rank| {
            let own = TENSORS.iter().map(|&(shape, dtype)| own(rank.rank(), shape, dtype));
            let sums = (answer.allreduce)(rank, &own.collect::<Result<Vec<_>>>()?, &owners)?;
            Ok((sums, rank.sent()))
        });
        let found = found.map_err(|it| it.law_by(&FAILURES))?;
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
        let told = |mut messages: Vec<(usize, u64)>| {
            messages.sort_unstable();
            let each = messages.iter().map(|(to, bytes)| format!("{bytes} bytes to rank {to}"));
            let each = each.collect::<Vec<_>>().join(", ");
            format!("{}: {each}", counted(messages.len(), "message"))
        };
        let sent = sent.iter().map(|message| (message.to, message.bytes)).collect();
        same(format!("rank {rank} sent"), told(expected), told(sent), BYTES)?;
    }
    Ok(())
}

fn no_message_to_an_owner_waits(answer: Answer, case: &Owned) -> Outcome {
    let found = case.found(answer, whole)?;
    let longest = found.iter().flat_map(|(_, sent)| sent).map(|message| message.chain).max();
    let what =
        "messages in the longest chain, each sent after its sender has received the one before";
    let sides = ("at most 2: a tensor to its owner, then the sum", longest.unwrap_or(0));
    expect(sides.1 <= 2, what, sides, CHAIN)
}

fn the_owners_make_no_difference_to_the_bits(answer: Answer, &case: &Owned) -> Outcome {
    let first = case.found(answer, rounding)?;
    for owner in 0..case.0 {
        let found = Owned(case.0, [owner; 5]).found(answer, rounding)?;
        for number in 0..TENSORS.len() {
            let sums: Vec<&Tensor> = found.iter().map(|(sums, _)| &sums[number]).collect();
            contributions::same_bits(&format!("the sum of tensor {number}"), &sums)?;
            Expectation::of(format!("two sums of tensor {number}"))
                .between("if rank 0 is the owner", &format!("if rank {owner} is the owner"))
                .law(BITS)
                .compare_tensors(&first[0].0[number], sums[0])?;
        }
    }
    Ok(())
}
