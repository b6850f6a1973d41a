//! What a rank lends is read by others where it lies. Nobody notices: once a collective has returned, the
//! caller may write to what it gave and to what it got, and however late the others are, they read what
//! was there when it was called.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the right answer")]

use std::sync::Barrier;
use std::time::{Duration, Instant};

use candle_core::{DType, Device, Shape, Tensor};
use devices::DevicePlan;
use params_and_allreduce::all_reduce::FixedTree;
use params_and_allreduce::collective::{
    all_gather, barrier, broadcast, chunk_range, reduce_scatter,
};
use params_and_allreduce::communicator::{Communicator, Error, Received};
use params_and_allreduce::thread::{Rank, run_ranks};
use params_and_allreduce::{Algorithm, allreduce};

const PATIENT: Duration = Duration::from_secs(30);
const SHORT: Duration = Duration::from_millis(200);
/// How late a rank is: long enough for the others to return and write, if they do not wait for it.
const LATE: Duration = Duration::from_millis(5);
/// So many numbers that even a fifth of them is lent, not copied.
const LEN: usize = 50_000;

fn in_ranks<R: Send>(
    ranks: usize,
    timeout: Duration,
    work: impl Fn(&Rank<'_>) -> Result<R, Error> + Sync,
) -> Vec<R> {
    let plan = DevicePlan::slices(ranks).unwrap();
    run_ranks(&plan, timeout, work).unwrap()
}

fn full_of(number: f32, len: usize) -> Tensor {
    Tensor::full(number, len, &Device::Cpu).unwrap()
}

fn assert_full_of(tensor: &Tensor, number: f32, what: &str) {
    let numbers = tensor.to_vec1::<f32>().unwrap();
    let wrong = numbers.iter().find(|&&found| found != number);
    assert_eq!(wrong, None, "{what}: instead of {number}");
}

/// A rank that reads late whatever arrives.
struct Late<'a>(&'a Rank<'a>);

impl Communicator for Late<'_> {
    fn rank(&self) -> usize {
        self.0.rank()
    }

    fn world_size(&self) -> usize {
        self.0.world_size()
    }

    fn device(&self) -> &Device {
        self.0.device()
    }

    fn shares_memory(&self) -> bool {
        self.0.shares_memory()
    }

    fn send(&self, to: usize, tensor: &Tensor) -> Result<(), Error> {
        self.0.send(to, tensor)
    }

    fn share(&self, to: usize, tensor: &Tensor) -> Result<(), Error> {
        self.0.share(to, tensor)
    }

    fn lend(&self, to: usize, tensor: &Tensor) -> Result<(), Error> {
        self.0.lend(to, tensor)
    }

    fn reclaim(&self) -> Result<(), Error> {
        self.0.reclaim()
    }

    fn recv(&self, from: usize, shape: &Shape, dtype: DType) -> Result<Tensor, Error> {
        std::thread::sleep(LATE);
        self.0.recv(from, shape, dtype)
    }

    fn borrow(&self, from: usize, shape: &Shape, dtype: DType) -> Result<Received, Error> {
        std::thread::sleep(LATE);
        let received = self.0.borrow(from, shape, dtype)?;
        std::thread::sleep(LATE);
        Ok(received)
    }
}

#[derive(Clone, Copy, Debug)]
enum Collective {
    AllReduce(Algorithm),
    FixedTree,
    ReduceScatter,
    AllGather,
    Broadcast,
}

impl Collective {
    fn all() -> impl Iterator<Item = Self> {
        let others = [Self::FixedTree, Self::ReduceScatter, Self::AllGather, Self::Broadcast];
        Algorithm::OURS.into_iter().map(Self::AllReduce).chain(others)
    }

    fn run(self, rank: &impl Communicator, mine: &Tensor) -> Result<Tensor, Error> {
        let (number, ranks) = (rank.rank(), rank.world_size());
        match self {
            Self::AllReduce(algorithm) => allreduce(rank, mine, algorithm),
            Self::FixedTree => FixedTree::new(ranks, ranks)?.sum(rank, std::slice::from_ref(mine)),
            Self::ReduceScatter => reduce_scatter(rank, mine),
            Self::AllGather => {
                let chunk = chunk_range(LEN, ranks, number);
                all_gather(rank, &mine.narrow(0, chunk.start, chunk.len())?, LEN)
            }
            Self::Broadcast => broadcast(rank, mine, 0),
        }
    }
}

/// Whatever rank is late: each brings ones, so every number of a sum is the number of ranks.
#[test]
fn after_a_collective_a_rank_may_write_to_what_it_gave_and_got() {
    for collective in Collective::all() {
        for ranks in [1, 2, 3, 5] {
            for late in 0..ranks {
                in_ranks(ranks, PATIENT, |rank| {
                    let what = format!("{collective:?}, rank {} of {ranks}", rank.rank());
                    let mine = full_of(1.0, LEN);
                    let result = match rank.rank() == late {
                        true => collective.run(&Late(rank), &mine)?,
                        false => collective.run(rank, &mine)?,
                    };
                    mine.slice_set(&full_of(-1.0, LEN), 0, 0)?;
                    let expected = match collective {
                        // On the root the result is the tensor that went in.
                        Collective::Broadcast if rank.rank() == 0 => -1.0,
                        Collective::AllGather | Collective::Broadcast => 1.0,
                        _ => ranks as f32,
                    };
                    assert_full_of(&result, expected, &what);
                    let number = 100.0 + rank.rank() as f32;
                    result.slice_set(&full_of(number, result.elem_count()), 0, 0)?;
                    barrier(rank)?;
                    assert_full_of(&result, number, &what);
                    Ok(())
                });
            }
        }
    }
}

/// The two ends of a single loan: rank 0 lends a tensor of ones, rank 1 does something with it.
fn one_loan(
    timeout: Duration,
    lender: impl Fn(&Rank<'_>, &Tensor) -> Result<(), Error> + Sync,
    borrower: impl Fn(&Rank<'_>, &Shape) -> Result<(), Error> + Sync,
) {
    in_ranks(2, timeout, |rank| {
        let ones = full_of(1.0, LEN);
        if rank.rank() == 1 {
            return borrower(rank, ones.shape());
        }
        rank.lend(1, &ones)?;
        lender(rank, &ones)
    });
}

#[test]
fn who_receives_what_was_lent_has_a_copy() {
    let write_after = |rank: &Rank<'_>, ones: &Tensor| {
        rank.reclaim()?;
        Ok(ones.slice_set(&full_of(2.0, LEN), 0, 0)?)
    };
    one_loan(PATIENT, write_after, |rank, shape| {
        let copy = rank.recv(0, shape, DType::F32)?;
        std::thread::sleep(LATE);
        assert_full_of(&copy, 1.0, "a copy");
        Ok(())
    });
    one_loan(PATIENT, write_after, |rank, shape| {
        let owned = rank.borrow(0, shape, DType::F32)?.owned()?;
        std::thread::sleep(LATE);
        assert_full_of(&owned, 1.0, "made its own");
        Ok(())
    });
}

#[test]
fn a_loan_that_does_not_come_back_names_who_has_it() {
    let wait_in_vain = |rank: &Rank<'_>, _: &Tensor| {
        let started = Instant::now();
        let error = rank.reclaim().unwrap_err();
        assert!(matches!(error, Error::TimedOut { rank: 1, .. }), "{error}");
        assert!(started.elapsed() >= SHORT && started.elapsed() < PATIENT);
        Ok(())
    };
    one_loan(SHORT, wait_in_vain, |rank, shape| {
        let held = rank.borrow(0, shape, DType::F32)?;
        std::thread::sleep(5 * SHORT);
        drop(held);
        Ok(())
    });
}

#[test]
fn nobody_waits_for_a_rank_that_left_without_reading() {
    let lent = Barrier::new(2);
    let reclaim = |rank: &Rank<'_>, _: &Tensor| {
        lent.wait();
        rank.reclaim()
    };
    one_loan(PATIENT, reclaim, |_, _| {
        lent.wait();
        Ok(())
    });
}
