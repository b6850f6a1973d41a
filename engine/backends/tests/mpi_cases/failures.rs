//! Ranks that misbehave.

use std::process::{self, Command};
use std::thread::sleep;
use std::time::Duration;

use candle_core::{DType, Device, Shape, Tensor};
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::{Error, SharedCommunicator as Rank};

use super::LONG;

fn zeros(shape: &[usize], dtype: DType) -> Result<Tensor, Error> {
    Ok(Tensor::zeros(shape, dtype, &Device::Cpu)?)
}

/// Each rank waits for the next, and the last misbehaves.
fn chain(rank: &Rank, misbehave: impl FnOnce() -> Result<(), Error>) -> Result<(), Error> {
    let next = rank.rank() + 1;
    if next == rank.world_size() {
        return misbehave();
    }
    let number = rank.recv(next, &Shape::from(()), DType::F32)?;
    match rank.rank() {
        0 => Ok(()),
        rank_ => rank.send(rank_ - 1, &number),
    }
}

fn sends_but_is_expected(
    rank: &Rank,
    sent: (&[usize], DType),
    expected: (&[usize], DType),
) -> Result<(), Error> {
    if rank.rank() == 0 {
        rank.send(1, &zeros(sent.0, sent.1)?)?;
        // Waits for the end of the job.
        return rank.recv(1, &Shape::from(1), DType::F32).map(|_| ());
    }
    rank.recv(0, &Shape::from(expected.0), expected.1).map(|_| ())
}

pub fn wrong_shape(rank: &Rank) -> Result<(), Error> {
    sends_but_is_expected(rank, (&[2, 3], DType::F32), (&[3, 2], DType::F32))
}

pub fn wrong_type(rank: &Rank) -> Result<(), Error> {
    sends_but_is_expected(rank, (&[2], DType::F64), (&[2], DType::I64))
}

/// Rank 0 is the first to wait, so it reports the failure while the other ranks still wait.
fn one_after_the_other(rank: &Rank) {
    sleep(rank.rank() as u32 * Duration::from_millis(300));
}

pub fn stall(rank: &Rank) -> Result<(), Error> {
    one_after_the_other(rank);
    chain(rank, || {
        sleep(LONG);
        Ok(())
    })
}

pub fn stall_native(rank: &Rank) -> Result<(), Error> {
    one_after_the_other(rank);
    if rank.rank() + 1 == rank.world_size() {
        sleep(LONG);
    }
    rank.all_reduce(&zeros(&[3], DType::F64)?, Algorithm::Native).map(|_| ())
}

/// A rank that waits for an all-reduce in vain, and goes on without the sum.
pub fn sum_given_up(rank: &Rank) -> Result<(), Error> {
    if rank.rank() == 0 {
        let outcome = rank.all_reduce(&zeros(&[3], DType::F64)?, Algorithm::Native);
        assert!(matches!(outcome, Err(Error::TimedOut { rank: 1, .. })), "{outcome:?}");
        return Ok(());
    }
    sleep(LONG);
    Ok(())
}

/// MPI does not compare the shapes of what it adds up.
pub fn other_size(rank: &Rank) -> Result<(), Error> {
    let len = 100_000 * (rank.rank() + 1);
    rank.all_reduce(&zeros(&[len], DType::F64)?, Algorithm::Native)?;
    // MPI noticed nothing.
    sleep(LONG);
    Ok(())
}

/// `kill` is a program as well: no unsafe call is needed.
fn signal(name: &str) -> Result<(), Error> {
    let status = Command::new("kill").args([name, &process::id().to_string()]).status();
    assert!(status.unwrap().success());
    sleep(LONG);
    Ok(())
}

pub fn stopped(rank: &Rank) -> Result<(), Error> {
    chain(rank, || signal("-STOP"))
}

/// A ring of messages that leave when they are fetched, with a rank that never fetches.
pub fn stopped_in_a_ring(rank: &Rank) -> Result<(), Error> {
    rank.barrier()?;
    if rank.rank() + 1 == rank.world_size() {
        signal("-STOP")?;
    }
    rank.all_reduce(&zeros(&[6_000_000], DType::F32)?, Algorithm::Ring).map(drop)
}

/// Rank 0 sends a large message to the stopped rank 2, which never fetches it, and then a message to rank 1. Ranks 0 and 1
/// finish their work: a stopped rank delays only the ranks that need its messages. In the end both wait for rank 2.
pub fn stopped_before_another(rank: &Rank) -> Result<(), Error> {
    const MOMENT: Duration = Duration::from_millis(150);
    rank.barrier()?;
    let number = zeros(&[], DType::F32)?;
    match rank.rank() {
        0 => {
            sleep(MOMENT);
            rank.send(2, &zeros(&[6_000_000], DType::F32)?)?;
            sleep(MOMENT);
            rank.send(1, &number)?;
            rank.recv(1, number.shape(), DType::F32)?;
            rank.recv(2, number.shape(), DType::F32).map(drop)
        }
        1 => {
            rank.recv(0, number.shape(), DType::F32)?;
            rank.send(0, &number)?;
            rank.recv(2, number.shape(), DType::F32).map(drop)
        }
        _ => signal("-STOP"),
    }
}

pub fn killed(rank: &Rank) -> Result<(), Error> {
    chain(rank, || signal("-KILL"))
}

pub fn deadlock(rank: &Rank) -> Result<(), Error> {
    let other = 1 - rank.rank();
    rank.recv(other, &Shape::from(()), DType::F32)?;
    rank.send(other, &zeros(&[], DType::F32)?)
}

pub fn early(rank: &Rank) -> Result<(), Error> {
    chain(rank, || Ok(()))
}

pub fn error(rank: &Rank) -> Result<(), Error> {
    chain(rank, || Err(candle_core::Error::Msg("disk full".to_owned()).into()))
}

pub fn panic(rank: &Rank) -> Result<(), Error> {
    chain(rank, || panic!("out of paper"))
}

/// The whole job is stopped for longer than rank 0 waits, and goes on.
pub fn paused(rank: &Rank) -> Result<(), Error> {
    let own = Tensor::new(&[process::id()], &Device::Cpu)?;
    let ranks = rank.all_gather(&own, rank.world_size())?.to_vec1::<u32>()?;
    let number = zeros(&[], DType::F32)?;
    if rank.rank() == 0 {
        return rank.recv(1, number.shape(), DType::F32).map(drop);
    }
    let ranks = ranks.iter().map(u32::to_string).collect::<Vec<_>>().join(" ");
    let script = format!("kill -STOP {ranks}; sleep 4; kill -CONT {ranks}");
    let status = Command::new("sh").args(["-c", &script]).status();
    assert!(status.unwrap().success());
    rank.send(0, &number)
}
