//! Chapter 2, `book/src/ch02-all-reduce.md`: all-reduce around a ring.
//!
//! The ring runs where a send waits for its receiver, on numbers that show which rank is missing.

use std::fmt;

use crate::prelude::*;

/// A rank and its tensor; the sum over all ranks.
pub type Answer = fn(&Rank, &Tensor) -> Result<Tensor, Error>;

/// The laws of an answer.
pub const LAWS: &[Law<Answer>] = laws![
    even_chunks: sums in [Case(2, &[4]), Case(3, &[3]), Case(4, &[8]), Case(5, &[10])],
    a_length_that_is_no_multiple_of_k: sums in
        [Case(2, &[3]), Case(3, &[7]), Case(4, &[10]), Case(4, &[5]), Case(5, &[13])],
    fewer_elements_than_ranks: sums in [Case(2, &[1]), Case(5, &[3]), Case(4, &[1]), Case(3, &[0])],
    any_shape_and_a_single_rank: sums in
        [Case(3, &[2, 3, 4]), Case(2, &[]), Case(1, &[5]), Case(1, &[2, 2])],
    the_sum_is_nobody_elses_memory in [Case(3, &[6]), Case(2, &[6]), Case(1, &[6])],
    a_rank_sends_one_chunk_in_each_step in
        [Case(2, &[8]), Case(3, &[12]), Case(4, &[10]), Case(5, &[3]), Case(1, &[4])],
    the_same_bits_on_every_rank_and_the_sum_of_stage_2 in [Case(5, &[11])],
    errors_are_passed_on
];

const SUM: &str = "after the all-gather every rank has every chunk's whole sum";
const CHUNKS: &str = "every element is in exactly one chunk, and chunks differ by at most one element; all ranks cut alike";
const FEWER: &str = "with fewer elements than ranks some chunks are empty";
const KIND: &str = "the sum has the shape and the element type of the input";
const OWN: &str = "the sum has its own memory: a write into the input does not change the sum";
const STEPS: &str =
    "k − 1 steps of reduce-scatter and k − 1 of all-gather, one message from every rank in each";
const NEIGHBOURS: &str =
    "rank r sends to rank r + 1 only, and the last one to rank 0: a ring needs no other link";
const ONE_CHUNK: &str =
    "a step sends one chunk, never the whole tensor, and chunks differ by at most one element";
const WAITS: &str = "a send waits until it is received: somewhere in the ring a rank has to receive first, and somewhere one has \
                     to send first";

/// The laws about failures of ranks.
const FAILURES: [(&str, &str); 7] = [
    (ranks::PROMISE_BROKEN, ranks::PROMISE),
    ("deadlock: ", WAITS),
    (" is still at work", STEPS),
    (" returned early", STEPS),
    (" never received", STEPS),
    (", but rank ", "a rank expects the chunk that the one before it sends"),
    (" failed: ", SUM),
];

/// The number that a law writes into a tensor after the call. No sum, mean or difference of contributions is as low.
const WRITTEN: f32 = -1000.0;

/// A number of ranks, and the shape of their tensors.
#[derive(Clone, Copy)]
struct Case(usize, &'static [usize]);

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "shape {:?} on {}", self.1, counted(self.0, "rank"))
    }
}

impl Case {
    fn run<R: Send + 'static>(
        self,
        work: impl Fn(&Rank) -> Result<R, Error> + Send + Sync + 'static,
    ) -> Outcome<Vec<R>> {
        ranks::run(self.0, Sends::WaitForReceiver, work).map_err(|it| it.law_by(&FAILURES))
    }

    fn compare(self, rank: usize, got: &Tensor, law: &str) -> Outcome {
        let expected = sum(self.0, self.1)?;
        let is_alike = (got.dtype(), got.dims()) == (expected.dtype(), expected.dims());
        Expectation::of(format!("the sum on rank {rank}"))
            .law(if is_alike { law } else { KIND })
            .guess(|expected, got| match got == f64::from(WRITTEN) {
                true => Some("this number was written into the input after the call".to_owned()),
                false => guess(self.0)(expected, got),
            })
            .compare_tensors(&expected, got)
    }

    fn has_sums(self, answer: Answer) -> Outcome {
        let sums = self.run(move |rank| answer(rank, &contribution(rank.rank(), self.1)?))?;
        sums.iter().enumerate().try_for_each(|(rank, got)| self.compare(rank, got, SUM))
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

/// An optimizer writes into the memory of its tensors.
fn the_sum_is_nobody_elses_memory(answer: Answer, &case: &Case) -> Outcome {
    let sums = case.run(move |rank| {
        let own = Var::from_tensor(&contribution(rank.rank(), case.1)?)?;
        let sum = answer(rank, own.as_tensor())?;
        own.set(&Tensor::full(WRITTEN, case.1, rank.device())?)?;
        Ok(sum)
    })?;
    sums.iter().enumerate().try_for_each(|(rank, got)| {
        let written = numbers(got)?.contains(&f64::from(WRITTEN));
        case.compare(rank, got, if written { OWN } else { SUM })
    })
}

fn a_rank_sends_one_chunk_in_each_step(answer: Answer, &case: &Case) -> Outcome {
    let Case(ranks, shape) = case;
    let [least, most] = [shape[0] / ranks, shape[0].div_ceil(ranks)];
    let sent = case.run(move |rank| {
        answer(rank, &contribution(rank.rank(), shape)?)?;
        Ok(rank.sent())
    })?;
    for (rank, sent) in sent.iter().enumerate() {
        for Message { bytes, .. } in sent {
            let what = format!("rank {rank} sent a message of {bytes} bytes");
            demand((4 * least..=4 * most).contains(&(*bytes as usize)), || {
                let chunks = format!("chunks of {least} to {most} f32 numbers of 4 bytes");
                Finding::new(what).expected(chunks, format!("{bytes} bytes")).law(ONE_CHUNK)
            })?;
        }
        same(format!("messages of rank {rank}"), 2 * (ranks - 1), sent.len(), STEPS)?;
        let next = (rank + 1) % ranks;
        let mut others: Vec<usize> = sent.iter().map(|message| message.to).collect();
        others.sort_unstable();
        others.dedup();
        demand(others.iter().all(|&to| to == next), || {
            let others = in_a_row(&others);
            let what = format!("rank {rank} sent something to ranks {others}");
            Finding::new(what).expected(format!("rank {next} alone"), others).law(NEIGHBOURS)
        })?;
    }
    Ok(())
}

/// Numbers that round, in f64: a chunk is summed once and then copied, so all ranks have the same bits.
fn the_same_bits_on_every_rank_and_the_sum_of_stage_2(answer: Answer, &case: &Case) -> Outcome {
    let own = move |rank: usize| {
        let numbers = contribution(0, case.1)?.to_dtype(DType::F64)?;
        numbers.affine(3.0, (7 * rank) as f64)?.recip()
    };
    let mine = case.run(move |rank| answer(rank, &own(rank.rank())?))?;
    let theirs = ranks::run(case.0, Sends::Buffered, move |rank| {
        rank.all_reduce(&own(rank.rank())?, Algorithm::Ring)
    })?;
    mine.iter().zip(&theirs).enumerate().try_for_each(|(rank, (got, theirs))| {
        let sum = || Expectation::of(format!("the sum on rank {rank}"));
        sum()
            .law("replicas stay equal only if all ranks get the same bits: rank 0's are expected")
            .compare_tensors(&mine[0], got)?;
        sum()
            .law("it is what params_and_allreduce::all_reduce::ring computes, up to rounding")
            .up_to(1e-14)
            .compare_tensors(theirs, got)
    })
}

fn errors_are_passed_on(answer: Answer) -> Outcome {
    ranks::errors_are_passed_on(3, Sends::WaitForReceiver, move |rank| {
        answer(rank, &contribution(rank.rank(), 7)?)
    })
}
