//! Chapter 2, `book/src/ch02-all-reduce.md`: all-reduce around a ring.
//!
//! Each send of the ring waits for its receiver. A wrong sum shows which rank is missing.

use crate::prelude::*;

/// A rank and its tensor; the sum over all ranks.
pub type Answer = fn(&Rank, &Tensor) -> Result<Tensor, Error>;

pub const LAWS: &[Law<Answer>] = laws![
    even_chunks: sums in [Case(2, &[4]), Case(3, &[3]), Case(4, &[8]), Case(5, &[10])],
    a_length_that_is_no_multiple_of_k: sums in
        [Case(2, &[3]), Case(3, &[7]), Case(4, &[10]), Case(4, &[5]), Case(5, &[13])],
    fewer_elements_than_ranks: sums in [Case(2, &[1]), Case(5, &[3]), Case(4, &[1]), Case(3, &[0])],
    any_shape_and_a_single_rank: sums in
        [Case(3, &[2, 3, 4]), Case(2, &[]), Case(1, &[5]), Case(1, &[2, 2])],
    a_rank_sends_one_chunk_in_each_step in
        [Case(2, &[8]), Case(3, &[12]), Case(4, &[10]), Case(5, &[3]), Case(1, &[4]), Case(2, &[3, 5])],
    the_same_bits_on_every_rank in [Case(5, &[11])],
    errors_are_passed_on => (3, Sends::WaitForReceiver)
        |answer, rank| answer(rank, &contribution(rank.rank(), 7)?),
];

const SUM: &str = "after the all-gather every rank has every chunk's whole sum";
const ALL_GATHER: &str = "after the all-gather every rank has every chunk's whole sum; each sum is whole on a rank, so the reduce-scatter is right";
const OFF_BY_ONE: &str = "after the all-gather every rank has every chunk's whole sum; all ranks have the same partial sums: is the all-gather off by one? It begins with the chunk that has just become whole";
const CHUNKS: &str = "every element is in exactly one chunk, and chunks differ by at most one element; all ranks cut alike";
const FEWER: &str = "with fewer elements than ranks some chunks are empty";
const STEPS: &str = "k − 1 steps of reduce-scatter, then k − 1 of all-gather, a message in each";
const NEIGHBOURS: &str = "rank r sends to rank r + 1 only, and the last rank to rank 0";
const ONE_CHUNK: &str = "a step sends one chunk, never the whole tensor; chunks differ by 0 or 1";
const WAITS: &str = "a send waits until it is received: at least one rank has to receive first, and at least one to send first";

/// The laws about failures of ranks.
const FAILURES: [(&str, &str); 8] = [
    contributions::INPUT,
    (ranks::PROMISE_BROKEN, ranks::PROMISE),
    ("deadlock: ", WAITS),
    (" is still at work", STEPS),
    (" returned early", STEPS),
    (" never received", STEPS),
    (", but rank ", "a rank expects the chunk that the one before it sends"),
    (" failed: ", SUM),
];

/// A number of ranks, and the shape of their tensors.
#[derive(Clone, Copy)]
struct Case(usize, &'static [usize]);

shown!(Case(ranks, shape) => "shape {shape:?} on {}", counted(*ranks, "rank"));

impl Case {
    fn run<R: Send + 'static>(
        self,
        work: impl Fn(&Rank) -> Result<R, Error> + Send + Sync + 'static,
    ) -> Outcome<Vec<R>> {
        ranks::run(self.0, Sends::WaitForReceiver, work).map_err(|it| it.law_by(&FAILURES))
    }

    fn has_sums(self, answer: Answer) -> Outcome {
        let sum =
            move |rank: &Rank| contributions::reduced(rank, self.1, |tensor| answer(rank, tensor));
        let sums = self.run(sum)?;
        contributions::are_sums(self.1, &sums, self.law(&sums)?)
    }

    /// The law of wrong sums, with a guess at the half of the ring that is wrong.
    fn law(self, sums: &[Tensor]) -> Result<&'static str> {
        let right = numbers(&contributions::sum(self.0, self.1)?)?;
        let found = sums.iter().map(numbers).collect::<Result<Vec<_>>>()?;
        let is_whole = |at: usize| found.iter().any(|sum| sum.get(at) == Some(&right[at]));
        let is_partial = |(right, got): (&f64, &f64)| {
            guess(self.0)(*right, *got).is_some_and(|told| told.contains(" without "))
        };
        Ok(match () {
            () if (0..right.len()).all(is_whole) => ALL_GATHER,
            () if found.iter().any(|sum| *sum != found[0]) => SUM,
            () if right.iter().zip(&found[0]).all(is_partial) => OFF_BY_ONE,
            () => SUM,
        })
    }
}

/// If even chunks become sums, a wrong sum is about the chunks.
fn sums(answer: Answer, &case: &Case) -> Outcome {
    static TWO_EACH: [[usize; 1]; 5] = [[2], [4], [6], [8], [10]];
    case.has_sums(answer).map_err(|finding| {
        let Case(ranks, shape) = case;
        let elements = shape.iter().product::<usize>();
        let is_even = elements % ranks == 0 && elements > 0;
        match !is_even && Case(ranks, &TWO_EACH[ranks - 1]).has_sums(answer).is_ok() {
            true => finding.law(if elements < ranks { FEWER } else { CHUNKS }),
            false => finding,
        }
    })
}

fn a_rank_sends_one_chunk_in_each_step(answer: Answer, &case: &Case) -> Outcome {
    let Case(ranks, shape) = case;
    let sent = case.run(move |rank| {
        answer(rank, &contribution(rank.rank(), shape)?)?;
        Ok(rank.sent())
    })?;
    let elements = shape.iter().product::<usize>();
    let [least, most] = [elements / ranks, elements.div_ceil(ranks)];
    for (rank, sent) in sent.iter().enumerate() {
        for &Message { to, bytes, .. } in sent {
            let is_chunk = (4 * least..=4 * most).contains(&(bytes as usize));
            let chunks = format!("chunks of {least} to {most} f32 numbers of 4 bytes");
            let what = format!("rank {rank} sent a message of {bytes} bytes");
            expect(is_chunk, what, (chunks, format!("{bytes} bytes")), ONE_CHUNK)?;
            same(format!("rank {rank} sent to rank"), (rank + 1) % ranks, to, NEIGHBOURS)?;
        }
        same(format!("messages of rank {rank}"), 2 * (ranks - 1), sent.len(), STEPS)?;
    }
    Ok(())
}

/// A chunk is summed once and then copied.
fn the_same_bits_on_every_rank(answer: Answer, &case: &Case) -> Outcome {
    let own = move |rank: &Rank| contributions::rounding(rank.rank(), case.1, DType::F64);
    let sums = case.run(move |rank| answer(rank, &own(rank)?))?;
    contributions::same_bits("the sum", &sums.iter().collect::<Vec<_>>())
}
