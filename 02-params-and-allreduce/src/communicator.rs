//! The operations of a rank: send a tensor, receive a tensor, and the collectives that are made of both.
//!
//! Devices that work together are numbered: each has a *rank*, from 0 to the *world size* minus one. A
//! [`Communicator`] is one rank's end of the connections to all other ranks. It is PyTorch's process group in small.
//!
//! # Who owns a tensor
//!
//! 1. [`send`](Communicator::send) copies. [`send_shared`](Communicator::send_shared) does not: nobody may write to the
//!    tensor before its receivers have read it. A received tensor is for reading.
//! 2. When a collective returns its result, no other rank reads its input. The caller may write to the input again.
//! 3. The result of a collective owns its memory on every rank.

pub mod all_reduce;
pub mod collectives;
mod forward;

use std::sync::Arc;

use candle_core::{DType, Device, Shape, Tensor};
use devices::Handover;

use crate::forward;
use all_reduce::Algorithm;

/// A communicator that several owners hold, and call from any thread.
pub type SharedCommunicator = Arc<dyn Communicator>;

// ANCHOR: communicator
/// One rank's end of the connections to all other ranks.
pub trait Communicator: Send + Sync {
    /// This rank, from 0.
    fn rank(&self) -> usize;

    /// The number of ranks.
    fn world_size(&self) -> usize;

    /// The device of the tensors that this rank receives. On the connection of [`background`](Self::background), they are
    /// in CPU memory.
    fn device(&self) -> &Device;

    /// Sends a copy of a tensor, and returns without waiting for the receiver. Fails when the rank `to` does not exist, is
    /// this rank itself, or has ended.
    fn send(&self, to: usize, tensor: &Tensor) -> Result<(), Error>;

    /// Waits for the next tensor from a rank. The tensor is for reading: copy it before you write to it. Fails when the rank
    /// `from` does not exist, is this rank itself, has ended, sends nothing in time, or sends a tensor of another shape or
    /// type.
    fn recv(&self, from: usize, shape: &Shape, dtype: DType) -> Result<Tensor, Error>;
    // ANCHOR_END: communicator

    // ANCHOR: shared
    /// Sends a tensor without a copy, where ranks share memory. Nobody may write to it before its receiver has read it.
    /// Fails as [`send`](Self::send) does.
    fn send_shared(&self, to: usize, tensor: &Tensor) -> Result<(), Error> {
        self.send(to, tensor)
    }

    /// Whether ranks that share a tensor read it where it lies, in CPU memory. All ranks return the same answer.
    fn shares_memory(&self) -> bool {
        false
    }
    // ANCHOR_END: shared

    // ANCHOR: collectives
    /// Adds up the tensors of all ranks. Every rank gets the same bits.
    ///
    /// Numbers are added in their own type, as in NCCL: a partial sum of bf16 is rounded to bf16. NCCL and MPI replace this
    /// method, because they have an all-reduce of their own: [`Algorithm::Native`]. Fails when the tensors differ in length
    /// or type, when another rank ends or sends nothing in time, or when there is no native all-reduce.
    fn all_reduce(&self, tensor: &Tensor, algorithm: Algorithm) -> Result<Tensor, Error> {
        all_reduce::all_reduce(self, tensor, algorithm)
    }

    /// Gives every rank the tensor of the rank `root`. All ranks pass a tensor of the same shape and type. Fails when there
    /// is no rank `root`, or a message fails.
    fn broadcast(&self, tensor: &Tensor, root: usize) -> Result<Tensor, Error> {
        collectives::broadcast(self, tensor, root)
    }

    /// Joins the chunks of all ranks, in rank order: `[length of the chunk]` → `[len]`. Rank r passes the numbers of the
    /// range [`chunk_range`](collectives::chunk_range)`(len, world_size, r)`. Fails when a chunk has another length, or a
    /// message fails.
    fn all_gather(&self, chunk: &Tensor, len: usize) -> Result<Tensor, Error> {
        collectives::all_gather(self, chunk, len)
    }

    /// Adds up the tensors of all ranks, and gives rank r chunk r of the flattened sum. Fails when the tensors differ in
    /// length or type, or a message fails.
    fn reduce_scatter(&self, tensor: &Tensor) -> Result<Tensor, Error> {
        collectives::reduce_scatter(self, tensor)
    }

    /// Waits until every rank has called this. Fails when a message fails.
    fn barrier(&self) -> Result<(), Error> {
        collectives::barrier(self)
    }
    // ANCHOR_END: collectives

    // ANCHOR: rest
    /// Adds up tensors of all ranks that another thread of each rank has handed over, as [`all_reduce`](Self::all_reduce)
    /// does. The sum is in CPU memory. NCCL's sum is on the rank's GPU.
    fn all_reduce_handed_over(
        &self,
        tensor: Handover,
        algorithm: Algorithm,
    ) -> Result<Tensor, Error> {
        self.all_reduce(&tensor.receive()?, algorithm)
    }

    /// Returns a second connection of the same ranks, for a second thread that communicates. Messages of the two
    /// connections never meet. Fails when there is none.
    fn background(&self) -> Result<SharedCommunicator, Error> {
        Err(Error::Other("these ranks have no background connection".to_owned()))
    }

    /// Waits until no other rank reads memory of this connection. All ranks call this together, before they drop a connection
    /// that has added up with [`Algorithm::Native`]. Fails when a message fails.
    fn leave(&self) -> Result<(), Error> {
        Ok(())
    }

    /// Returns a rank's number in the whole world, for error messages. In a [`Group`], a rank has another number.
    fn world_rank(&self, rank: usize) -> usize {
        rank
    }
    // ANCHOR_END: rest
}

// ANCHOR: error
/// The reason why a call of a communicator failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A tensor operation failed.
    #[error(transparent)]
    Tensor(#[from] candle_core::Error),
    /// A rank has ended, so a message that depends on it will never come.
    #[error("rank {rank} {why}, and rank {waiting} still needed it")]
    RankStopped {
        /// The rank that ended first.
        rank: usize,
        /// How it ended.
        why: String,
        /// The rank that returns this error.
        waiting: usize,
    },
    /// A rank sent nothing in time.
    #[error("rank {waiting} waited {seconds:.1} s: rank {rank} is alive but sends nothing")]
    TimedOut {
        /// The rank at the end of the chain of ranks that wait for each other.
        rank: usize,
        /// The time that the waiting rank waited.
        seconds: f64,
        /// The rank that returns this error.
        waiting: usize,
    },
    /// Ranks wait for each other in a circle.
    #[error("deadlock: {}", circle_in_words(circle))]
    Deadlock {
        /// Each rank waits for the next, and the last for the first. The smallest comes first.
        circle: Vec<usize>,
    },
    /// A message has another shape or type than its receiver expects.
    #[error("rank {rank} sent {found}, but rank {waiting} expected {expected}")]
    Mismatch {
        /// The sender.
        rank: usize,
        /// The type and shape of the message.
        found: String,
        /// The type and shape that the receiver expects.
        expected: String,
        /// The receiver.
        waiting: usize,
    },
    /// A rank that does not exist, or the rank itself.
    #[error("rank {rank} cannot exchange messages with rank {other} in a world of {world_size}")]
    NoSuchRank {
        /// The caller.
        rank: usize,
        /// The rank that it named.
        other: usize,
        /// The number of ranks.
        world_size: usize,
    },
    /// Another reason, in words.
    #[error("{0}")]
    Other(String),
}

/// Follows ranks that wait for each other, beginning with `first`. `next` returns the rank that the last rank of the chain
/// waits for, if the last rank waits. Returns the chain, each rank once, and the circle in which it ends, if it does: the
/// smallest rank of a circle comes first.
pub fn wait_chain(
    first: usize,
    mut next: impl FnMut(&[usize]) -> Option<usize>,
) -> (Vec<usize>, Option<Vec<usize>>) {
    let mut chain = vec![first];
    while let Some(rank) = next(&chain) {
        if let Some(start) = chain.iter().position(|&earlier| earlier == rank) {
            let mut circle = chain[start..].to_vec();
            let smallest = (0..circle.len()).min_by_key(|&position| circle[position]);
            circle.rotate_left(smallest.unwrap_or(0));
            return (chain, Some(circle));
        }
        chain.push(rank);
    }
    (chain, None)
}

/// `rank 0 waits for rank 2, which waits for rank 0`
fn circle_in_words(circle: &[usize]) -> String {
    let ranks = circle.iter().chain(circle.first()).map(|rank| format!("rank {rank}"));
    ranks.collect::<Vec<_>>().join(", which waits for ").replacen(", which", "", 1)
}
// ANCHOR_END: error

/// Checks that a rank can exchange messages with the rank `other`. Fails when there is no such rank, and when it is the rank
/// itself.
pub fn check_other(comm: &(impl Communicator + ?Sized), other: usize) -> Result<(), Error> {
    let (rank, world_size) = (comm.rank(), comm.world_size());
    let exists = other != rank && other < world_size;
    exists.then_some(()).ok_or(Error::NoSuchRank { rank, other, world_size })
}

/// Some of the ranks, such as a row of a mesh, as a world of their own. A group renumbers its members from 0, in the order of
/// their list, and passes every message on:
///
/// ```text
/// all ranks       0   1   2   3   4   5
/// members             1       3       5
/// in the group        0       1       2
/// ```
///
/// Messages of the group use the connections of the whole world: every two ranks have to agree on the order of all messages
/// between them. Errors name ranks by their number in the whole world.
pub struct Group {
    comm: SharedCommunicator,
    members: Vec<usize>,
    rank: usize,
}

impl Group {
    /// Makes the group of `members`. The rank of `comm` is one of them, and every member makes the same list. Fails when
    /// the rank is not a member, or a member is no rank of `comm` or is listed twice.
    pub fn new(comm: SharedCommunicator, members: Vec<usize>) -> Result<Self, Error> {
        let (rank, world_size) = (comm.rank(), comm.world_size());
        let Some(position) = members.iter().position(|&member| member == rank) else {
            return Err(Error::Other(format!("rank {rank} is none of the ranks {members:?}")));
        };
        let again = |place: usize| members[..place].contains(&members[place]);
        if (0..members.len()).any(|place| members[place] >= world_size || again(place)) {
            let text = format!("{members:?} are no ranks of a world of {world_size}, each once");
            return Err(Error::Other(text));
        }
        Ok(Self { comm, members, rank: position })
    }

    fn member(&self, other: usize) -> Result<usize, Error> {
        let (rank, world_size) = (self.rank, self.members.len());
        self.members.get(other).copied().ok_or(Error::NoSuchRank { rank, other, world_size })
    }
}

impl Communicator for Group {
    forward!(comm: device, shares_memory);

    fn rank(&self) -> usize {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.members.len()
    }

    fn send(&self, to: usize, tensor: &Tensor) -> Result<(), Error> {
        self.comm.send(self.member(to)?, tensor)
    }

    fn send_shared(&self, to: usize, tensor: &Tensor) -> Result<(), Error> {
        self.comm.send_shared(self.member(to)?, tensor)
    }

    fn recv(&self, from: usize, shape: &Shape, dtype: DType) -> Result<Tensor, Error> {
        self.comm.recv(self.member(from)?, shape, dtype)
    }

    fn background(&self) -> Result<SharedCommunicator, Error> {
        let (members, rank) = (self.members.clone(), self.rank);
        Ok(Arc::new(Self { comm: self.comm.background()?, members, rank }))
    }

    fn world_rank(&self, rank: usize) -> usize {
        self.members.get(rank).map_or(rank, |&member| self.comm.world_rank(member))
    }
}

/// A world of one rank, with its device. No message goes anywhere.
pub struct Alone(pub Device);

impl Communicator for Alone {
    fn rank(&self) -> usize {
        0
    }

    fn world_size(&self) -> usize {
        1
    }

    fn device(&self) -> &Device {
        &self.0
    }

    fn send(&self, to: usize, _: &Tensor) -> Result<(), Error> {
        check_other(self, to)
    }

    fn recv(&self, from: usize, _: &Shape, _: DType) -> Result<Tensor, Error> {
        Err(Error::NoSuchRank { rank: 0, other: from, world_size: 1 })
    }
}

impl From<Alone> for SharedCommunicator {
    fn from(alone: Alone) -> Self {
        Arc::new(alone)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use devices::DevicePlan;

    use super::*;
    use crate::thread::{Rank, run_ranks};

    fn on_six<R: Send>(work: impl Fn(&Rank) -> Result<R, Error> + Sync) -> Result<Vec<R>, String> {
        let plan = DevicePlan::slices(6).unwrap();
        run_ranks(&plan, Duration::from_secs(20), work).map_err(|failure| failure.to_string())
    }

    /// Rows add up among themselves, then columns: each rank knows its row and its column.
    #[test]
    fn rows_and_columns_of_a_grid_do_not_meet() {
        for algorithm in [Algorithm::OneShot, Algorithm::Naive, Algorithm::Tree, Algorithm::Ring] {
            let sums = on_six(|rank| {
                let (row, column) = (rank.rank() / 3, rank.rank() % 3);
                let line: SharedCommunicator = Arc::new(rank.clone());
                let in_row = Group::new(Arc::clone(&line), (3 * row..3 * row + 3).collect())?;
                let in_column = Group::new(line, vec![column, column + 3])?;
                assert_eq!((in_row.rank(), in_column.rank()), (column, row));
                let mine = Tensor::new(&[10f64.powi(rank.rank() as i32); 5], rank.device())?;
                let of_row = in_row.all_reduce(&mine, algorithm)?;
                let of_all = in_column.all_reduce(&of_row, algorithm)?;
                Ok((of_row.to_vec1::<f64>()?[4], of_all.to_vec1::<f64>()?[4]))
            });
            let expected =
                [111.0, 111.0, 111.0, 111_000.0, 111_000.0, 111_000.0].map(|row| (row, 111_111.0));
            assert_eq!(sums.unwrap(), expected, "{algorithm}");
        }
    }

    #[test]
    fn lists_that_make_no_world_are_refused() {
        for (members, told) in [
            (vec![1, 2], "rank 0 is none of the ranks [1, 2]"),
            (vec![0, 6], "[0, 6] are no ranks of a world of 6, each once"),
            (vec![0, 2, 2], "[0, 2, 2] are no ranks of a world of 6, each once"),
        ] {
            let failure = on_six(|rank| match rank.rank() {
                0 => Group::new(Arc::new(rank.clone()), members.clone()).map(drop),
                _ => Ok(()),
            });
            assert!(failure.as_ref().is_err_and(|text| text.contains(told)), "{failure:?}");
        }
    }

    #[test]
    fn members_keep_the_number_that_errors_call_them_by() {
        let numbers = on_six(|rank| {
            if rank.rank() != 5 {
                return Ok(Vec::new());
            }
            let odd: SharedCommunicator =
                Arc::new(Group::new(Arc::new(rank.clone()), vec![1, 3, 5])?);
            let last: SharedCommunicator = Arc::new(Group::new(Arc::clone(&odd), vec![2, 1])?);
            Ok(vec![rank.world_rank(4), odd.world_rank(1), last.world_rank(0), last.world_rank(1)])
        });
        assert_eq!(numbers.unwrap()[5], [4, 3, 5, 3]);
    }

    #[test]
    fn alone_a_rank_has_all_there_is() {
        let (alone, mine) = (Alone(Device::Cpu), Tensor::new(&[3f64, 4.0], &Device::Cpu).unwrap());
        let gathered = alone.all_gather(&mine, 2).unwrap();
        for algorithm in Algorithm::OURS {
            for found in [&gathered, &alone.all_reduce(&mine, algorithm).unwrap()] {
                assert_eq!(found.to_vec1::<f64>().unwrap(), [3.0, 4.0]);
            }
        }
        alone.barrier().unwrap();
        for other in [0, 1] {
            let expected =
                format!("rank 0 cannot exchange messages with rank {other} in a world of 1");
            let received = alone.recv(other, mine.shape(), mine.dtype()).map(drop);
            for told in [alone.send(other, &mine), received] {
                assert_eq!(told.unwrap_err().to_string(), expected);
            }
        }
    }

    #[test]
    fn who_is_no_member_cannot_be_reached() {
        let failure = on_six(|rank| match rank.rank() {
            0 => {
                let alone = Group::new(Arc::new(rank.clone()), vec![0])?;
                alone.send(1, &Tensor::new(0f32, rank.device())?)
            }
            _ => Ok(()),
        });
        let told = "rank 0 cannot exchange messages with rank 1 in a world of 1";
        assert!(failure.as_ref().is_err_and(|text| text.contains(told)), "{failure:?}");
    }
}
