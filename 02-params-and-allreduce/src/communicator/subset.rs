//! Some of the ranks, as a world of their own.
//!
//! Where ranks form a grid, those of a row do some things together and those of a column others. Nothing is
//! connected anew for that: a subset renumbers its members from 0, in the order in which they are listed, and
//! passes everything on.
//!
//! ```text
//! all ranks       0   1   2   3   4   5
//! members             1       3       5
//! in the subset       0       1       2
//! ```
//!
//! Messages of a subset and of the whole world go through the same connections. That does no harm as long as
//! every two ranks agree on the order of the messages between them.

use std::sync::Arc;

use candle_core::{DType, Device, Shape, Tensor};

use super::{Communicator, Error, Received, SharedCommunicator};

/// One rank's end of the connections to some of the others. Errors of messages name ranks by their number in the
/// whole world.
pub struct Subset {
    all: SharedCommunicator,
    members: Vec<usize>,
    rank: usize,
}

impl Subset {
    /// The world of `members`, of which `all`'s rank is one; each of them makes the same list.
    ///
    /// # Errors
    ///
    /// When the rank is not a member, or a member is no rank of `all` or is listed twice.
    pub fn new(all: SharedCommunicator, members: Vec<usize>) -> Result<Self, Error> {
        let (me, world_size) = (all.rank(), all.world_size());
        let Some(rank) = members.iter().position(|&member| member == me) else {
            let text = format!("rank {me} is none of the ranks {members:?}");
            return Err(Error::Other(text));
        };
        for (position, &member) in members.iter().enumerate() {
            if member >= world_size || members[..position].contains(&member) {
                let text =
                    format!("{members:?} are no ranks of a world of {world_size}, each once");
                return Err(Error::Other(text));
            }
        }
        Ok(Self { all, members, rank })
    }

    /// The world of this rank alone.
    pub fn alone(all: SharedCommunicator) -> Self {
        let members = vec![all.rank()];
        Self { all, members, rank: 0 }
    }

    /// A member's number in the whole world.
    fn member(&self, other: usize) -> Result<usize, Error> {
        let outside =
            || Error::NoSuchRank { rank: self.rank, other, world_size: self.members.len() };
        self.members.get(other).copied().ok_or_else(outside)
    }
}

impl Communicator for Subset {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.members.len()
    }

    fn device(&self) -> &Device {
        self.all.device()
    }

    fn number_of(&self, rank: usize) -> usize {
        self.members.get(rank).map_or(rank, |&member| self.all.number_of(member))
    }

    fn shares_memory(&self) -> bool {
        self.all.shares_memory()
    }

    fn send(&self, to: usize, tensor: &Tensor) -> Result<(), Error> {
        self.all.send(self.member(to)?, tensor)
    }

    fn share(&self, to: usize, tensor: &Tensor) -> Result<(), Error> {
        self.all.share(self.member(to)?, tensor)
    }

    fn lend(&self, to: usize, tensor: &Tensor) -> Result<(), Error> {
        self.all.lend(self.member(to)?, tensor)
    }

    fn reclaim(&self) -> Result<(), Error> {
        self.all.reclaim()
    }

    fn recv(&self, from: usize, shape: &Shape, dtype: DType) -> Result<Tensor, Error> {
        self.all.recv(self.member(from)?, shape, dtype)
    }

    fn borrow(&self, from: usize, shape: &Shape, dtype: DType) -> Result<Received, Error> {
        self.all.borrow(self.member(from)?, shape, dtype)
    }
}

/// Makes it shared.
impl From<Subset> for SharedCommunicator {
    fn from(subset: Subset) -> Self {
        Arc::new(subset)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use devices::DevicePlan;
    use ops::parameters::overwrite;

    use super::*;
    use crate::thread::{Rank, run_ranks};
    use crate::{Algorithm, allreduce};

    fn on_six<R: Send>(
        work: impl Fn(&Rank<'_>) -> Result<R, Error> + Sync,
    ) -> Result<Vec<R>, String> {
        let plan = DevicePlan::slices(6).unwrap();
        run_ranks(&plan, Duration::from_secs(20), work).map_err(|failure| failure.to_string())
    }

    /// Rows add up among themselves, then columns: each rank knows its row and its column.
    #[test]
    fn rows_and_columns_of_a_grid_do_not_meet() {
        for algorithm in [Algorithm::OneShot, Algorithm::Naive, Algorithm::Tree, Algorithm::Ring] {
            let sums = on_six(|rank| {
                let (row, column) = (rank.rank() / 3, rank.rank() % 3);
                let line: SharedCommunicator = Arc::new(rank.line());
                let in_row = Subset::new(Arc::clone(&line), (3 * row..3 * row + 3).collect())?;
                let in_column = Subset::new(line, vec![column, column + 3])?;
                assert_eq!((in_row.rank(), in_column.rank()), (column, row));
                let mine = Tensor::new(&[10f64.powi(rank.rank() as i32); 5], rank.device())?;
                let of_row = allreduce(&in_row, &mine, algorithm)?;
                let of_all = allreduce(&in_column, &of_row, algorithm)?;
                Ok((of_row.to_vec1::<f64>()?[4], of_all.to_vec1::<f64>()?[4]))
            });
            let expected =
                [111.0, 111.0, 111.0, 111_000.0, 111_000.0, 111_000.0].map(|row| (row, 111_111.0));
            assert_eq!(sums.unwrap(), expected, "{algorithm}");
        }
    }

    /// The lender may write again as soon as it has its tensor back. Small ones would be copied.
    #[test]
    fn what_a_member_has_lent_comes_back() {
        const LARGE: usize = 10_000;
        let seen = on_six(|rank| {
            let line: SharedCommunicator = Arc::new(rank.line());
            match rank.rank() {
                2 => {
                    let pair = Subset::new(line, vec![2, 5])?;
                    let mine = Tensor::full(1f32, LARGE, rank.device())?;
                    pair.lend(1, &mine)?;
                    pair.reclaim()?;
                    overwrite(&mine, &mine.zeros_like()?)?;
                }
                5 => {
                    let pair = Subset::new(line, vec![2, 5])?;
                    let lent = pair.borrow(0, &Shape::from(LARGE), DType::F32)?;
                    std::thread::sleep(Duration::from_millis(200));
                    return Ok(lent.to_vec1::<f32>()?);
                }
                _ => {}
            }
            Ok(Vec::new())
        });
        assert!(seen.unwrap()[5] == [1.0; LARGE]);
    }

    #[test]
    fn lists_that_make_no_world_are_refused() {
        for (members, told) in [
            (vec![1, 2], "rank 0 is none of the ranks [1, 2]"),
            (vec![0, 6], "[0, 6] are no ranks of a world of 6, each once"),
            (vec![0, 2, 2], "[0, 2, 2] are no ranks of a world of 6, each once"),
        ] {
            let failure = on_six(|rank| match rank.rank() {
                0 => Subset::new(Arc::new(rank.line()), members.clone()).map(drop),
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
            let odd: SharedCommunicator = Subset::new(Arc::new(rank.line()), vec![1, 3, 5])?.into();
            let last: SharedCommunicator = Subset::new(Arc::clone(&odd), vec![2, 1])?.into();
            Ok(vec![rank.number_of(4), odd.number_of(1), last.number_of(0), last.number_of(1)])
        });
        assert_eq!(numbers.unwrap()[5], [4, 3, 5, 3]);
    }

    #[test]
    fn who_is_no_member_cannot_be_reached() {
        let failure = on_six(|rank| match rank.rank() {
            0 => {
                let alone = Subset::alone(Arc::new(rank.line()));
                alone.send(1, &Tensor::new(0f32, rank.device())?)
            }
            _ => Ok(()),
        });
        let told = "rank 0 cannot exchange messages with rank 1 in a world of 1";
        assert!(failure.as_ref().is_err_and(|text| text.contains(told)), "{failure:?}");
    }
}
