//! Chapter 2, `book/src/ch02b-ranks.md`: all-reduce with few bytes between hosts.
//!
//! The ranks bring numbers that show which rank is missing. All messages between hosts are counted.

use std::fmt;

use params_and_allreduce::all_reduce::two_levels;
use params_and_allreduce::communicator::SharedCommunicator;

use crate::prelude::*;

/// A rank, the number of ranks on each host, and the rank's tensor; the sum over all ranks.
pub type Answer = fn(&SharedCommunicator, usize, &Tensor) -> Result<Tensor, Error>;

/// The laws of an answer.
pub const LAWS: &[Law<Answer>] = laws![
    two_hosts: sums in [Case(2, 2, &[8]), Case(2, 3, &[6])],
    any_number_of_hosts: sums in [Case(3, 2, &[12]), Case(3, 1, &[3]), Case(1, 3, &[6]), Case(1, 1, &[2])],
    any_number_of_elements: sums in
        [Case(2, 2, &[7]), Case(2, 3, &[8]), Case(3, 2, &[1]), Case(2, 2, &[0])],
    any_shape: sums in [Case(2, 2, &[2, 3]), Case(2, 2, &[]), Case(1, 1, &[2, 2])],
    few_bytes_between_hosts in COUNTED,
    ranks_of_a_host_share_the_bytes in COUNTED,
    the_sum_is_nobody_elses_memory in [Case(2, 2, &[6]), Case(1, 2, &[6]), Case(2, 1, &[6]), Case(1, 1, &[6])],
    the_same_bits_on_every_rank_and_the_sum_of_stage_2 in [Case(2, 2, &[11]), Case(3, 2, &[11])],
    errors_are_passed_on
];

/// The elements can be shared equally by all ranks.
const COUNTED: [Case; 5] =
    [Case(2, 2, &[12]), Case(2, 3, &[12]), Case(3, 2, &[12]), Case(2, 1, &[8]), Case(1, 4, &[8])];

const SUM: &str = "every rank gets the sum of the tensors of all ranks on all hosts";
const KIND: &str = "the sum has the shape and the element type of the input";
const OWN: &str = "the sum has its own memory: a write into the input does not change the sum";
const TAKE_PART: &str =
    "all members make a group with the same list, and call its collectives in the same order";
const CHUNKS: &str =
    "chunks differ by up to one element, so an all-gather needs the length of the whole tensor";
const FEW: &str =
    "h hosts: a host sends 2(h − 1)/h of the tensor to other hosts, as a rank in a ring of h ranks";
const SHARED: &str = "the ranks of a host share the bytes to other hosts equally";

/// The number that a law writes into a tensor after the call. No sum, mean or difference of contributions is as low.
const WRITTEN: f32 = -1000.0;

/// A number of hosts, the ranks on each, and the shape of their tensors.
#[derive(Clone, Copy)]
struct Case(usize, usize, &'static [usize]);

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (hosts, ranks) = (counted(self.0, "host"), counted(self.1, "rank"));
        write!(f, "shape {:?} on {hosts} with {ranks} each", self.2)
    }
}

impl Case {
    fn run<R: Send + 'static>(
        self,
        work: impl Fn(&Rank) -> Result<R, Error> + Send + Sync + 'static,
    ) -> Outcome<Vec<R>> {
        let is_even = self.2.iter().product::<usize>().is_multiple_of(self.1);
        let sizes = if is_even { TAKE_PART } else { CHUNKS };
        let failures = [(", but rank ", sizes), (" panicked: ", ""), (" failed: ", SUM)];
        let results = ranks::run(self.0 * self.1, Sends::Buffered, work);
        results.map_err(|it| ranks::all_take_part(TAKE_PART, false)(it.law_by(&failures)))
    }

    fn compare(self, rank: usize, got: &Tensor, law: &str) -> Outcome {
        let expected = sum(self.0 * self.1, self.2)?;
        let is_alike = (got.dtype(), got.dims()) == (expected.dtype(), expected.dims());
        Expectation::of(format!("the sum on rank {rank}"))
            .law(if is_alike { law } else { KIND })
            .guess(guess(self.0 * self.1))
            .compare_tensors(&expected, got)
    }

    /// For each rank, the bytes that it sends to other hosts.
    fn sent_to_other_hosts(self, answer: Answer) -> Outcome<Vec<u64>> {
        let Self(_, each, shape) = self;
        self.run(move |rank| {
            answer(&rank.into(), each, &contribution(rank.rank(), shape)?)?;
            let (host, sent) = (rank.rank() / each, rank.sent());
            let to_others = sent.iter().filter(|message| message.to / each != host);
            Ok(to_others.map(|message| message.bytes).sum())
        })
    }

    /// The bytes that a host may send to other hosts.
    fn of_a_host(self) -> u64 {
        (4 * 2 * (self.0 - 1) * self.2[0] / self.0) as u64
    }
}

fn sums(answer: Answer, &case: &Case) -> Outcome {
    let sums =
        case.run(move |rank| answer(&rank.into(), case.1, &contribution(rank.rank(), case.2)?))?;
    sums.iter().enumerate().try_for_each(|(rank, got)| case.compare(rank, got, SUM))
}

fn few_bytes_between_hosts(answer: Answer, &case: &Case) -> Outcome {
    let sent = case.sent_to_other_hosts(answer)?;
    let (most, tensor) = (case.of_a_host(), 4 * case.2[0]);
    sent.chunks(case.1).enumerate().try_for_each(|(host, sent)| {
        let bytes = sent.iter().sum::<u64>();
        demand(bytes <= most, || {
            Finding::new(format!(
                "bytes from host {host} to other hosts, for a tensor of {tensor} bytes"
            ))
            .expected(format!("at most {most}"), bytes)
            .law(FEW)
        })
    })
}

fn ranks_of_a_host_share_the_bytes(answer: Answer, &case: &Case) -> Outcome {
    let most = case.of_a_host() / case.1 as u64;
    case.sent_to_other_hosts(answer)?.into_iter().enumerate().try_for_each(|(rank, bytes)| {
        demand(bytes <= most, || {
            Finding::new(format!("bytes from rank {rank} to other hosts"))
                .expected(format!("at most {most}"), bytes)
                .law(SHARED)
        })
    })
}

/// An optimizer writes into the memory of its tensors.
fn the_sum_is_nobody_elses_memory(answer: Answer, &case: &Case) -> Outcome {
    let sums = case.run(move |rank| {
        let own = Var::from_tensor(&contribution(rank.rank(), case.2)?)?;
        let sum = answer(&rank.into(), case.1, own.as_tensor())?;
        own.set(&Tensor::full(WRITTEN, case.2, rank.device())?)?;
        Ok(sum)
    })?;
    sums.iter().enumerate().try_for_each(|(rank, got)| {
        let written = numbers(got)?.contains(&f64::from(WRITTEN));
        case.compare(rank, got, if written { OWN } else { SUM })
    })
}

/// Numbers that round, in f64.
fn the_same_bits_on_every_rank_and_the_sum_of_stage_2(answer: Answer, &case: &Case) -> Outcome {
    let own = move |rank: usize| {
        let numbers = contribution(0, case.2)?.to_dtype(DType::F64)?;
        numbers.affine(3.0, (7 * rank) as f64)?.recip()
    };
    let mine = case.run(move |rank| answer(&rank.into(), case.1, &own(rank.rank())?))?;
    let theirs = case
        .run(move |rank| two_levels(&rank.into(), case.1, &own(rank.rank())?, Algorithm::Ring))?;
    mine.iter().zip(&theirs).enumerate().try_for_each(|(rank, (got, theirs))| {
        let sum = || Expectation::of(format!("the sum on rank {rank}"));
        sum()
            .law("replicas stay equal only if all ranks get the same bits: rank 0's are expected")
            .compare_tensors(&mine[0], got)?;
        sum().law("tensors are added in their own type").up_to(1e-14).compare_tensors(theirs, got)
    })
}

fn errors_are_passed_on(answer: Answer) -> Outcome {
    ranks::errors_are_passed_on(4, Sends::Buffered, move |rank| {
        answer(&rank.into(), 2, &contribution(rank.rank(), 7)?)
    })
}
