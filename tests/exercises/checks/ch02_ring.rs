//! Chapter 2, `book/src/ch02-all-reduce.md`: all-reduce around a ring.
//!
//! The ring runs where a send waits for its receiver, on numbers that show which rank is missing.

use crate::contributions::{contribution, guess, sum};
use crate::prelude::*;
use crate::ranks::Sent;
use harness::report::counted;

/// A rank and its tensor; the sum over all ranks.
pub type Answer = fn(&Rank, &Tensor) -> Result<Tensor, Error>;

/// The laws of an answer.
pub const LAWS: &[Law<Answer>] = laws![
    even_chunks,
    a_length_that_is_no_multiple_of_k,
    fewer_elements_than_ranks,
    any_shape_and_a_single_rank,
    the_sum_is_nobody_elses_memory,
    a_rank_sends_one_chunk_in_each_step,
    the_same_bits_on_every_rank_and_the_sum_of_stage_2,
    errors_are_passed_on
];

const SUM: &str = "after the all-gather every rank has every chunk's whole sum";
const CHUNKS: &str = "every element is in exactly one chunk, and chunks differ by at most one element; all ranks \
                      cut alike";
const FEWER: &str = "with fewer elements than ranks some chunks are empty";
const KIND: &str = "the sum has the shape and the element type of the input";
const OWN: &str = "the sum has its own memory: a write into the input does not change the sum";
const STEPS: &str =
    "k − 1 steps of reduce-scatter and k − 1 of all-gather, one message from every rank in each";
const NEIGHBOURS: &str =
    "rank r sends to rank r + 1 only, and the last one to rank 0: a ring needs no other link";

/// A part of every failure in which the answer panicked.
const PANICKED: &str = " panicked: ";

const BETWEEN_RANKS: [(&str, &str); 6] = [
    (ranks::PROMISE_BROKEN, ranks::PROMISE),
    (
        "deadlock: ",
        "a send waits until it is received: somewhere in the ring a rank has to receive first, and somewhere one \
         has to send first",
    ),
    (" is still at work", STEPS),
    (" returned early", STEPS),
    (" returned without receiving", STEPS),
    (", but rank ", "a rank expects the chunk that the one before it sends"),
];

/// The number that a law writes into a tensor after the call. No sum, mean or difference of contributions is as low.
const WRITTEN: f32 = -1000.0;

struct Outcome {
    sum: Tensor,
    sent: Sent,
}

#[track_caller]
fn run<R: Send + 'static>(
    answer: Answer,
    world_size: usize,
    shape: &[usize],
    work: impl Fn(&Rank) -> Result<R, Error> + Send + Sync + 'static,
) -> Vec<R> {
    match ranks::attempt(world_size, Sends::WaitForReceiver, work) {
        Ok(results) => results,
        Err(failure) => {
            let law = if failure.contains(PANICKED) {
                law_of_a_panic(answer, world_size, shape)
            } else {
                let known = BETWEEN_RANKS.iter().find(|(part, _)| failure.contains(part));
                Some(law(answer, world_size, shape, known.map_or(SUM, |(_, law)| law)))
            };
            let law = law.map_or_else(String::new, |law| format!("\n  law: {law}"));
            panic!("{}: {failure}{law}", given(world_size, shape))
        }
    }
}

fn given(world_size: usize, shape: &[usize]) -> String {
    format!("shape {shape:?} on {}", counted(world_size, "rank"))
}

fn law_of_chunks(world_size: usize, shape: &[usize]) -> Option<&'static str> {
    match shape.iter().product::<usize>() {
        elements if elements < world_size => Some(FEWER),
        elements if elements % world_size > 0 => Some(CHUNKS),
        _ => None,
    }
}

fn with_even_chunks(answer: Answer, world_size: usize) -> Result<Vec<Tensor>, String> {
    ranks::attempt(world_size, Sends::WaitForReceiver, move |rank| {
        answer(rank, &contribution(rank.rank(), 2 * world_size)?)
    })
}

/// The law that is broken with this shape: a law about chunks if even chunks become sums, else `other`.
fn law(answer: Answer, world_size: usize, shape: &[usize], other: &'static str) -> &'static str {
    let Some(law) = law_of_chunks(world_size, shape) else { return other };
    let read = |tensor: &Tensor| numbers(tensor).expect("a sum of contributions is made of f32");
    let expected = sum(world_size, 2 * world_size).expect("a sum of contributions can be made");
    let sums = with_even_chunks(answer, world_size);
    let right = sums.is_ok_and(|sums| sums.iter().all(|got| read(got) == read(&expected)));
    if right { law } else { other }
}

/// The law that a panic breaks: a law about chunks if the answer does not panic on even chunks.
fn law_of_a_panic(answer: Answer, world_size: usize, shape: &[usize]) -> Option<&'static str> {
    let law = law_of_chunks(world_size, shape)?;
    let even = with_even_chunks(answer, world_size);
    even.err().is_none_or(|failure| !failure.contains(PANICKED)).then_some(law)
}

#[track_caller]
fn outcomes(answer: Answer, world_size: usize, shape: &'static [usize]) -> Vec<Outcome> {
    run(answer, world_size, shape, move |rank| {
        let sum = answer(rank, &contribution(rank.rank(), shape)?)?;
        Ok(Outcome { sum, sent: rank.sent() })
    })
}

#[track_caller]
fn check_sum(world_size: usize, shape: &[usize], rank: usize, got: &Tensor, law: &str) {
    let expected = sum(world_size, shape).expect("a sum of contributions can be made");
    let kind = |tensor: &Tensor| (tensor.dtype(), tensor.dims().to_vec());
    let law = if kind(got) == kind(&expected) { law } else { KIND };
    Expectation::of(format!("{}: the sum on rank {rank}", given(world_size, shape)))
        .law(law)
        .guess(|expected, got| match got == f64::from(WRITTEN) {
            true => Some("this number was written into the input after the call".to_owned()),
            false => guess(world_size)(expected, got),
        })
        .check_tensor(&expected, got);
}

#[track_caller]
fn check_sums(answer: Answer, world_size: usize, shape: &'static [usize]) {
    let law = law(answer, world_size, shape, SUM);
    for (rank, outcome) in outcomes(answer, world_size, shape).iter().enumerate() {
        check_sum(world_size, shape, rank, &outcome.sum, law);
    }
}

fn even_chunks(answer: Answer) {
    for (world_size, shape) in [(2, &[4]), (3, &[3]), (4, &[8]), (5, &[10])] {
        check_sums(answer, world_size, shape);
    }
}

fn a_length_that_is_no_multiple_of_k(answer: Answer) {
    for (world_size, shape) in [(2, &[3]), (3, &[7]), (4, &[10]), (4, &[5]), (5, &[13])] {
        check_sums(answer, world_size, shape);
    }
}

fn fewer_elements_than_ranks(answer: Answer) {
    for (world_size, shape) in [(2, &[1]), (5, &[3]), (4, &[1]), (3, &[0])] {
        check_sums(answer, world_size, shape);
    }
}

fn any_shape_and_a_single_rank(answer: Answer) {
    for (world_size, shape) in [(3, &[2, 3, 4][..]), (2, &[]), (1, &[5]), (1, &[2, 2])] {
        check_sums(answer, world_size, shape);
    }
}

/// An optimizer writes into the memory of its tensors.
fn the_sum_is_nobody_elses_memory(answer: Answer) {
    for world_size in [3, 2, 1] {
        let shape: &[usize] = &[6];
        let sums = run(answer, world_size, shape, move |rank| {
            let own = Var::from_tensor(&contribution(rank.rank(), shape)?)?;
            let sum = answer(rank, own.as_tensor())?;
            own.set(&Tensor::full(WRITTEN, shape, rank.device())?)?;
            Ok(sum)
        });
        for (rank, got) in sums.iter().enumerate() {
            let written = numbers(got).is_ok_and(|all| all.contains(&f64::from(WRITTEN)));
            check_sum(world_size, shape, rank, got, if written { OWN } else { SUM });
        }
    }
}

/// Ten elements on four ranks make chunks of 3, 3, 2 and 2.
fn a_rank_sends_one_chunk_in_each_step(answer: Answer) {
    let one_chunk =
        "a step sends one chunk, never the whole tensor, and chunks differ by at most one element";
    for (world_size, shape, largest_chunk) in
        [(2, &[8], 4), (3, &[12], 4), (4, &[10], 3), (5, &[3], 1), (1, &[4], 0)]
    {
        let steps = 2 * (world_size - 1) as u64;
        for (rank, outcome) in outcomes(answer, world_size, shape).iter().enumerate() {
            let who = format!("{}: rank {rank} sent", given(world_size, shape));
            let Sent { traffic, largest_message, smallest_message, receivers, .. } = &outcome.sent;
            assert!(
                *largest_message <= 4 * largest_chunk,
                "{who} a message of {largest_message} bytes\n  expected at most {}: \
                 {largest_chunk} f32 numbers\n  law: {one_chunk}",
                4 * largest_chunk
            );
            let messages = traffic.messages;
            assert!(
                messages == steps,
                "{who} {messages} messages\n  expected {steps}\n  law: {STEPS}"
            );
            let smallest_chunk = (shape[0] / world_size) as u64;
            if let Some(bytes) = smallest_message {
                assert!(
                    *bytes >= 4 * smallest_chunk,
                    "{who} a message of {bytes} bytes\n  expected at least {}: {smallest_chunk} \
                     f32 numbers\n  law: {one_chunk}",
                    4 * smallest_chunk
                );
            }
            let next = (rank + 1) % world_size;
            assert!(
                receivers.iter().all(|&to| to == next),
                "{who} something to ranks {}\n  expected rank {next} alone\n  law: {NEIGHBOURS}",
                in_a_row(&receivers.iter().collect::<Vec<_>>())
            );
        }
    }
}

/// Numbers that round, in f64: a chunk is summed once and then copied, so all ranks have the same bits.
fn the_same_bits_on_every_rank_and_the_sum_of_stage_2(answer: Answer) {
    let own = |rank: usize| {
        let numbers: Vec<f64> =
            (0..11).map(|i| 1.0 / f64::from(3 * i + 7 * rank as u32 + 1)).collect();
        Tensor::new(numbers, &Device::Cpu)
    };
    let mine = run(answer, 5, &[11], move |rank| answer(rank, &own(rank.rank())?));
    let theirs = ranks::run(5, Sends::Buffered, move |rank| {
        rank.all_reduce(&own(rank.rank())?, Algorithm::Ring)
    });
    assert_eq!(theirs[0].dtype(), DType::F64);
    for (rank, (got, theirs)) in mine.iter().zip(&theirs).enumerate() {
        let what = format!("11 elements on 5 ranks: the sum on rank {rank}");
        Expectation::of(&what)
            .law("replicas stay equal only if all ranks get the same bits: rank 0's are expected")
            .check_tensor(&mine[0], got);
        Expectation::of(&what)
            .law("it is what params_and_allreduce::all_reduce::ring computes, up to rounding")
            .up_to(1e-14)
            .check_tensor(theirs, got);
    }
}

fn errors_are_passed_on(answer: Answer) {
    ranks::errors_are_passed_on(&given(3, &[7]), 3, Sends::WaitForReceiver, move |rank| {
        answer(rank, &contribution(rank.rank(), 7)?)
    });
}
