use std::sync::Barrier;

use candle_core::{DType, Device, Shape, Tensor};

use super::link::Link;
use super::*;
use crate::communicator::Communicator as _;

/// Nobody waits this long, unless something is wrong.
const LONG: Duration = Duration::from_secs(30);

/// Soon over, for the test in which everybody does wait.
const SHORT: Duration = Duration::from_millis(300);

fn plan(ranks: usize) -> DevicePlan {
    DevicePlan::slices(ranks).unwrap()
}

fn number(value: f32) -> Tensor {
    Tensor::new(value, &Device::Cpu).unwrap()
}

fn recv_number(rank: &Rank<'_>, from: usize) -> Result<f32, Error> {
    Ok(rank.recv(from, &Shape::from(()), DType::F32)?.to_scalar()?)
}

/// Rank 0 waits for 1, 1 for 2, …; the last rank misbehaves. Returns each rank's complaint.
fn chain(timeout: Duration, misbehave: impl Fn() -> Result<(), Error> + Sync) -> Vec<String> {
    let complaints = std::sync::Mutex::new(vec![String::new(); 4]);
    let outcome = run_ranks(&plan(4), timeout, |rank| {
        let next = rank.rank() + 1;
        if next == rank.world_size() {
            return misbehave();
        }
        let outcome = recv_number(rank, next);
        if let Err(error) = &outcome {
            complaints.lock().unwrap()[rank.rank()] = error.to_string();
        }
        outcome.map(|_| ())
    });
    assert!(outcome.is_err());
    let mut complaints = complaints.into_inner().unwrap();
    complaints.pop();
    complaints
}

#[test]
fn results_come_in_rank_order() {
    let squares = run_ranks(&plan(5), LONG, |rank| Ok::<_, Error>(rank.rank() * rank.rank()));
    assert_eq!(squares.unwrap(), [0, 1, 4, 9, 16]);
}

#[test]
fn a_message_is_the_value_at_the_time_it_was_sent() {
    let received = run_ranks(&plan(2), LONG, |rank| {
        if rank.rank() == 0 {
            let value = candle_core::Var::from_tensor(&number(1.0))?;
            rank.send(1, &value)?;
            value.set(&number(2.0))?;
            rank.send(1, &value)?;
            return Ok(vec![]);
        }
        Ok::<_, Error>(vec![recv_number(rank, 0)?, recv_number(rank, 0)?])
    });
    assert_eq!(received.unwrap()[1], [1.0, 2.0]);
}

#[test]
fn everyone_names_the_rank_that_panicked() {
    for complaint in chain(LONG, || panic!("on purpose")) {
        assert!(complaint.contains("rank 3 panicked: on purpose"), "{complaint}");
    }
}

#[test]
fn everyone_names_the_rank_that_failed() {
    for complaint in chain(LONG, || Err(candle_core::Error::Msg("disk full".into()).into())) {
        assert!(complaint.contains("rank 3 failed: disk full"), "{complaint}");
    }
}

#[test]
fn everyone_names_the_rank_that_returned_early() {
    for complaint in chain(LONG, || Ok(())) {
        assert!(complaint.contains("rank 3 returned early"), "{complaint}");
    }
}

#[test]
fn everyone_names_the_rank_that_stalled() {
    let stall = || {
        std::thread::sleep(5 * SHORT);
        Ok(())
    };
    for complaint in chain(SHORT, stall) {
        assert!(complaint.contains("rank 3"), "{complaint}");
    }
}

/// Is let go of slowly: others have time to notice what was let go of before.
struct Slow;

impl Drop for Slow {
    fn drop(&mut self) {
        thread::sleep(SHORT);
    }
}

#[test]
fn everyone_names_the_rank_whose_thread_cannot_start() {
    let complaints = std::sync::Mutex::new(Vec::new());
    // No machine has room for such a stack.
    let thread_of = |rank| match rank {
        2 => thread::Builder::new().stack_size(isize::MAX as usize),
        _ => thread::Builder::new(),
    };
    let slow = vec![Slow, Slow, Slow];
    let outcome = run_in_threads(&plan(3), LONG, slow, thread_of, None, |rank, _slow| {
        let outcome = recv_number(rank, 2);
        if let Err(error) = &outcome {
            complaints.lock().unwrap().push(error.to_string());
        }
        outcome
    });
    assert_eq!(outcome.unwrap_err().rank, 2);
    for complaint in complaints.into_inner().unwrap() {
        assert!(complaint.starts_with("rank 2 failed: "), "{complaint}");
    }
}

/// A thread of a rank's that goes on talking when the rank itself has returned.
#[test]
fn who_talks_after_its_own_end_blames_nobody_else() {
    let roster = Arc::new(Roster::new(2));
    let links = Link::connect(2, &roster, LONG);
    let own_end = |outcome: Result<(), Error>| match outcome.unwrap_err() {
        Error::RankStopped { rank: 0, why, waiting: 0 } => assert_eq!(why, "has ended"),
        other => panic!("{other}"),
    };
    thread::scope(|scope| {
        let waits = scope.spawn(|| links[0].recv(1, &Shape::from(()), DType::F32).map(drop));
        thread::sleep(SHORT);
        links[0].close();
        own_end(links[0].send(1, &number(1.0)));
        links[1].close();
        own_end(waits.join().unwrap());
    });
    let first = roster.accuse(roster::FirstCause::Deadlock { circle: vec![] });
    assert_eq!(first, roster::FirstCause::Deadlock { circle: vec![] }, "nobody was accused before");
}

#[test]
fn what_is_sent_in_the_background_counts_as_well() {
    let traffic = run_ranks(&plan(2), LONG, |rank| {
        let other = 1 - rank.rank();
        rank.send(other, &number(1.0))?;
        let before = rank.traffic();
        rank.background_line().send(other, &number(1.0))?;
        let both = [before, rank.traffic()];
        recv_number(rank, other)?;
        rank.background_line().recv(other, &Shape::from(()), DType::F32)?;
        Ok::<_, Error>(both)
    });
    let sent = |messages| Traffic { messages, bytes: 4 * messages };
    assert_eq!(traffic.unwrap(), [[sent(1), sent(2)]; 2]);
}

/// Three ranks in a ring, of which each waits for the next to send first, and one that waits for them.
#[test]
fn ranks_that_wait_in_a_circle_are_told_so() {
    let (complaints, start) = (std::sync::Mutex::new(Vec::new()), Barrier::new(4));
    let outcome = run_ranks(&plan(4), 5 * SHORT, |rank| {
        let (own, next) = (number(1.0), (rank.rank() + 1) % 3);
        // Nobody's time is up before the last has begun to wait.
        start.wait();
        let outcome = recv_number(rank, next);
        if let Err(error) = &outcome {
            complaints.lock().unwrap().push(error.to_string());
        }
        outcome.and_then(|_| rank.send(next, &own))
    });
    let circle =
        "deadlock: rank 0 waits for rank 1, which waits for rank 2, which waits for rank 0";
    assert_eq!(complaints.into_inner().unwrap(), [circle; 4]);
    let failure = outcome.unwrap_err();
    assert!(matches!(failure.cause, Cause::Error(Error::Deadlock { .. })), "{failure}");
}

#[test]
fn two_loans_that_are_never_read_are_a_deadlock_too() {
    let start = Barrier::new(2);
    let outcome = run_ranks(&plan(2), 5 * SHORT, |rank| {
        start.wait();
        let large = Tensor::zeros(10_000, DType::F32, rank.device())?;
        rank.lend(1 - rank.rank(), &large)?;
        rank.reclaim()
    });
    let failure = outcome.unwrap_err().to_string();
    let circle = "failed: deadlock: rank 0 waits for rank 1, which waits for rank 0";
    assert!(failure.ends_with(circle), "{failure}");
}

#[test]
fn a_rank_that_does_not_exist_is_refused() {
    for other in [0, 2, usize::MAX] {
        let failure = run_ranks(&plan(2), LONG, |rank| match rank.rank() {
            0 => rank.send(other, &number(1.0)),
            _ => Ok(()),
        });
        let failure = failure.unwrap_err();
        assert!(matches!(failure.cause, Cause::Error(Error::NoSuchRank { .. })), "{failure}");
    }
}
