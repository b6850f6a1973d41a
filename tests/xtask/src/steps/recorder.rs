//! A communicator that records every message, and numbers that name the contributions in a message.
//!
//! In hexadecimal, digit r of an element is 0 without the contribution of rank r; otherwise the digit is one more than the
//! element's chunk. A sum needs no carry. Eight ranks and eight chunks fit into 32 bits:
//!
//! ```text
//! 0x0003   chunk 2, the contribution of rank 0
//! 0x3003   chunk 2, the contributions of ranks 0 and 3
//! 0x3006   no such sum: the contribution of rank 0 is in it twice
//! ```

use std::collections::VecDeque;
use std::sync::Mutex;

use candle_core::{DType, Error::Msg, Shape, Tensor};
use harness::lock::locked;
use itertools::Itertools as _;
use params_and_allreduce::collectives::chunk_range;
use params_and_allreduce::communicator::{Communicator, Error};
use params_and_allreduce::forward;
use params_and_allreduce::thread::Rank;

use super::Message;

/// The smallest number that two to eight ranks can cut into equal chunks.
pub const ELEMENTS: usize = 840;

/// An event of a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// The rank sent this message.
    Sent(Message),
    /// The rank took the next message from this rank.
    Took(usize),
}

/// A rank's communicator that records every message.
pub struct Recorder<'a> {
    rank: &'a Rank,
    pub(super) events: Mutex<VecDeque<Event>>,
}

impl<'a> Recorder<'a> {
    pub(super) fn new(rank: &'a Rank) -> Self {
        Self { rank, events: Mutex::default() }
    }

    fn sent(&self, to: usize, tensor: &Tensor) -> Result<(), Error> {
        let (from, elements) = (self.rank(), tensor.flatten_all()?.to_vec1::<u32>()?);
        let Some((chunks, sum_of)) = read(&elements, self.world_size()) else {
            let what = "something else than whole chunks of one partial sum";
            return Err(Msg(format!("rank {from} sends rank {to} {what}")).into());
        };
        let bytes = size_of_val(elements.as_slice()) as u64;
        locked(&self.events).push_back(Event::Sent(Message { from, to, chunks, sum_of, bytes }));
        Ok(())
    }
}

impl Communicator for Recorder<'_> {
    forward!(rank: rank, world_size, device, background);

    fn send(&self, to: usize, tensor: &Tensor) -> Result<(), Error> {
        self.sent(to, tensor)?;
        self.rank.send(to, tensor)
    }

    fn send_shared(&self, to: usize, tensor: &Tensor) -> Result<(), Error> {
        self.sent(to, tensor)?;
        self.rank.send_shared(to, tensor)
    }

    fn recv(&self, from: usize, shape: &Shape, dtype: DType) -> Result<Tensor, Error> {
        let tensor = self.rank.recv(from, shape, dtype)?;
        locked(&self.events).push_back(Event::Took(from));
        Ok(tensor)
    }
}

/// Returns these chunks of the sum of these ranks' contributions.
pub(super) fn sum(chunks: &[usize], sum_of: &[usize], ranks: usize) -> Vec<u32> {
    let ones: u32 = sum_of.iter().map(|rank| 1 << (4 * rank)).sum();
    let elements = |&chunk: &usize| {
        let len = chunk_range(ELEMENTS, ranks, chunk).len();
        std::iter::repeat_n((chunk as u32 + 1) * ones, len)
    };
    chunks.iter().flat_map(elements).collect()
}

/// Returns the chunks of these numbers, and the ranks whose contributions are added up in them. `None` unless the numbers
/// are whole chunks of one partial sum.
fn read(numbers: &[u32], ranks: usize) -> Option<(Vec<usize>, Vec<usize>)> {
    let digit = |number: u32, rank: usize| (number >> (4 * rank) & 0xf) as usize;
    let first = *numbers.first()?;
    let sum_of: Vec<usize> = (0..ranks).filter(|&rank| digit(first, rank) != 0).collect();
    let any = *sum_of.first()?;
    let chunk = |&number: &u32| digit(number, any).checked_sub(1).filter(|chunk| *chunk < ranks);
    let chunks = numbers.iter().map(chunk).dedup().collect::<Option<Vec<_>>>()?;
    (sum(&chunks, &sum_of, ranks) == numbers).then_some((chunks, sum_of))
}
