//! Chapter 2, `book/src/ch02b-ranks.md`: all-reduce with few bytes between hosts.
//!
//! A wrong sum shows which rank is missing. The check counts all messages between hosts.

use params_and_allreduce::communicator::SharedCommunicator;

use crate::prelude::*;

/// A rank, the number of ranks on each host, and the rank's tensor; the sum over all ranks.
pub type Answer = fn(&SharedCommunicator, usize, &Tensor) -> Result<Tensor, Error>;

pub const LAWS: &[Law<Answer>] = laws![
    two_hosts: sums in [Case(2, 2, &[8]), Case(2, 3, &[6])],
    any_number_of_hosts: sums in [Case(3, 2, &[12]), Case(3, 1, &[3]), Case(1, 3, &[6]), Case(1, 1, &[2])],
    any_number_of_elements: sums in
        [Case(2, 2, &[7]), Case(2, 3, &[8]), Case(3, 2, &[1]), Case(2, 2, &[0])],
    any_shape: sums in [Case(2, 2, &[2, 3]), Case(2, 2, &[]), Case(1, 1, &[2, 2])],
    few_bytes_between_hosts in
        [Case(2, 2, &[12]), Case(2, 3, &[12]), Case(3, 2, &[12]), Case(2, 1, &[8]), Case(1, 4, &[8]), Case(2, 2, &[7])],
    the_same_bits_on_every_rank in [Case(2, 2, &[11]), Case(3, 2, &[11])],
    errors_are_passed_on => (4, Sends::Buffered)
        |answer, rank| answer(&rank.into(), 2, &contribution(rank.rank(), 7)?),
];

const SUM: &str = "every rank gets the sum of the tensors of all ranks on all hosts";
const TAKE_PART: &str =
    "all members make a group with the same list, and call its collectives in the same order";
const CHUNKS: &str =
    "chunks differ by up to one element, so an all-gather needs the length of the whole tensor";
const FEW: &str =
    "h hosts: a host sends 2(h − 1)/h of the tensor to other hosts, as a rank in a ring of h ranks";
const SHARED: &str = "the ranks of a host share the bytes to other hosts equally";

/// A number of hosts, the ranks on each, and the shape of their tensors.
#[derive(Clone, Copy)]
struct Case(usize, usize, &'static [usize]);

shown!(Case(hosts, ranks, shape) =>
    "shape {shape:?} on {} with {} each", counted(*hosts, "host"), counted(*ranks, "rank"));

impl Case {
    fn run<R: Send + 'static>(
        self,
        work: impl Fn(&Rank) -> Result<R, Error> + Send + Sync + 'static,
    ) -> Outcome<Vec<R>> {
        let is_even = self.2.iter().product::<usize>().is_multiple_of(self.1);
        let sizes = if is_even { TAKE_PART } else { CHUNKS };
        let failures =
            [contributions::INPUT, (", but rank ", sizes), (" panicked: ", ""), (" failed: ", SUM)];
        let results = ranks::run(self.0 * self.1, Sends::Buffered, work);
        results.map_err(|it| ranks::all_take_part(TAKE_PART, false)(it.law_by(&failures)))
    }
}

fn sums(answer: Answer, &case: &Case) -> Outcome {
    let Case(_, each, shape) = case;
    let sum = move |rank: &Rank| {
        contributions::reduced(rank, shape, |tensor| answer(&rank.into(), each, tensor))
    };
    contributions::are_sums(shape, &case.run(sum)?, SUM)
}

/// With two hosts, or if all ranks can share the elements equally, the bytes are exact.
fn few_bytes_between_hosts(answer: Answer, &case: &Case) -> Outcome {
    let Case(hosts, each, shape) = case;
    let sent = case.run(move |rank| {
        answer(&rank.into(), each, &contribution(rank.rank(), shape)?)?;
        let (host, sent) = (rank.rank() / each, rank.sent());
        let to_others = sent.iter().filter(|message| message.to / each != host);
        Ok(to_others.map(|message| message.bytes as usize).sum::<usize>())
    })?;
    // A ring sends so many bytes of these elements.
    let ring = |elements: usize| 4 * 2 * (hosts - 1) * elements / hosts;
    let at_most = |most: usize, from: String, bytes: usize, law| {
        let all = 4 * shape[0];
        let what = format!("bytes from {from} to other hosts, for a tensor of {all} bytes");
        expect(bytes <= most, what, (format!("at most {most}"), bytes), law)
    };
    for (host, sent) in sent.chunks(each).enumerate() {
        at_most(ring(shape[0]), format!("host {host}"), sent.iter().sum(), FEW)?;
    }
    sent.into_iter().enumerate().try_for_each(|(rank, bytes)| {
        at_most(ring(shape[0].div_ceil(each)), format!("rank {rank}"), bytes, SHARED)
    })
}

fn the_same_bits_on_every_rank(answer: Answer, &case: &Case) -> Outcome {
    let own = move |rank: &Rank| contributions::rounding(rank.rank(), case.2, DType::F64);
    let sums = case.run(move |rank| answer(&rank.into(), case.1, &own(rank)?))?;
    contributions::same_bits("the sum", &sums.iter().collect::<Vec<_>>())
}
