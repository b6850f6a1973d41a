use std::sync::Barrier;
use std::sync::atomic::AtomicBool;

use candle_core::{DType, Device, Shape, Tensor};

use super::*;

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

fn recv_number(rank: &Rank, from: usize) -> Result<f32, Error> {
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
fn everyone_names_the_rank_that_misbehaved() {
    type Misbehaviour = fn() -> Result<(), Error>;
    let fails = || Err(Error::Other("disk full".to_owned()));
    let stalls = || {
        thread::sleep(5 * SHORT);
        Ok(())
    };
    let misbehaviours: [(Duration, Misbehaviour, &str); 4] = [
        (LONG, || panic!("on purpose"), "rank 3 panicked: on purpose"),
        (LONG, fails, "rank 3 failed: disk full"),
        (LONG, || Ok(()), "rank 3 returned early"),
        (SHORT, stalls, "rank 3"),
    ];
    for (timeout, misbehave, says) in misbehaviours {
        for complaint in chain(timeout, misbehave) {
            assert!(complaint.contains(says), "{complaint}");
        }
    }
}

/// A rank that sleeps looks again every [`STRETCH`]. The end of another rank wakes it before.
#[test]
fn an_end_is_noticed_at_once() {
    let noticed_after = || {
        let ended = Mutex::new(Instant::now());
        let outcome = run_ranks(&plan(2), LONG, |rank| {
            if rank.rank() == 0 {
                thread::sleep(STRETCH / 10);
                *locked(&ended) = Instant::now();
                return Ok(Duration::ZERO);
            }
            recv_number(rank, 0).unwrap_err();
            Ok::<_, Error>(locked(&ended).elapsed())
        });
        outcome.unwrap()[1]
    };
    // On a busy machine, a thread may get no core for long.
    let times: Vec<Duration> = (0..10).map(|_| noticed_after()).collect();
    assert!(times.iter().any(|&time| time < STRETCH / 2), "{times:?}");
}

thread_local! {
    /// The rank whose thread cannot be started, for calls of this thread.
    pub(super) static NO_THREAD_FOR: std::cell::Cell<Option<usize>> = const { std::cell::Cell::new(None) };
}

#[test]
fn everyone_names_the_rank_whose_thread_cannot_start() {
    let complaints = std::sync::Mutex::new(Vec::new());
    NO_THREAD_FOR.set(Some(2));
    let outcome = run_ranks(&plan(3), LONG, |rank| {
        let outcome = recv_number(rank, 2);
        if let Err(error) = &outcome {
            complaints.lock().unwrap().push(error.to_string());
        }
        outcome
    });
    NO_THREAD_FOR.set(None);
    assert_eq!(outcome.unwrap_err().rank, 2);
    for complaint in complaints.into_inner().unwrap() {
        assert!(complaint.starts_with("rank 2 failed: "), "{complaint}");
    }
}

/// A thread of a rank that goes on communicating when the rank itself has returned.
#[test]
fn a_rank_that_has_ended_blames_no_other_rank() {
    let clones = run_ranks(&plan(2), LONG, |rank| Ok::<_, Error>(rank.clone())).unwrap();
    let own_end = |rank: usize, outcome: Result<(), Error>| match outcome.unwrap_err() {
        Error::RankStopped { rank: stopped, why, waiting } => {
            assert_eq!((stopped, why.as_str(), waiting), (rank, "has ended", rank));
        }
        other => panic!("{other}"),
    };
    for rank in &clones {
        let other = 1 - rank.rank();
        own_end(rank.rank(), rank.send(other, &number(1.0)));
        own_end(rank.rank(), rank.recv(other, &Shape::from(()), DType::F32).map(drop));
        own_end(rank.rank(), rank.background().unwrap().send(other, &number(1.0)));
    }
}

/// A rank waits in a second thread when its own work ends.
#[test]
fn a_pending_call_of_a_rank_that_ends_fails_with_its_end() {
    let (to, from) = std::sync::mpsc::channel();
    let outcome = run_ranks(&plan(2), LONG, |rank| {
        if rank.rank() == 0 {
            let (rank, to) = (rank.clone(), to.clone());
            thread::spawn(move || to.send(recv_number(&rank, 1).unwrap_err().to_string()));
        }
        thread::sleep(SHORT);
        Ok::<_, Error>(())
    });
    outcome.unwrap();
    let told = from.recv_timeout(LONG).unwrap();
    assert!(
        told.starts_with("rank 0 has ended") || told.starts_with("rank 1 returned early"),
        "{told}"
    );
}

#[test]
fn messages_that_were_sent_before_the_end_arrive() {
    let received = run_ranks(&plan(3), LONG, |rank| {
        if rank.rank() == 0 {
            rank.send(1, &number(1.0))?;
            return Ok(vec![]);
        }
        thread::sleep(SHORT);
        let first = if rank.rank() == 1 { recv_number(rank, 0)? } else { 0.0 };
        let error = recv_number(rank, 0).unwrap_err().to_string();
        assert!(error.contains("rank 0 returned early"), "{error}");
        assert!(rank.send(0, &number(2.0)).is_err());
        Ok::<_, Error>(vec![first])
    });
    assert_eq!(received.unwrap()[1], [1.0]);
}

/// Handles the failure of rank 2, then fails for another reason.
#[test]
fn a_failure_that_was_handled_is_not_the_cause_of_a_later_one() {
    let complaint = std::sync::Mutex::new(String::new());
    let outcome = run_ranks(&plan(3), LONG, |rank| match rank.rank() {
        0 => {
            let outcome = recv_number(rank, 1);
            *complaint.lock().unwrap() = outcome.as_ref().unwrap_err().to_string();
            outcome
        }
        1 => {
            recv_number(rank, 2).unwrap_err();
            Err(Error::Other("the disk is full".to_owned()))
        }
        _ => Err(Error::Other("on purpose".to_owned())),
    });
    assert_eq!(outcome.unwrap_err().rank, 2);
    let complaint = complaint.into_inner().unwrap();
    assert!(complaint.contains("rank 1 failed: the disk is full"), "{complaint}");
}

#[test]
fn many_ranks_exchange_messages() {
    const MANY: usize = 200;
    let numbers = run_ranks(&plan(MANY), LONG, |rank| {
        let (next, previous) = ((rank.rank() + 1) % MANY, (rank.rank() + MANY - 1) % MANY);
        rank.send(next, &number(rank.rank() as f32))?;
        recv_number(rank, previous)
    });
    assert_eq!(numbers.unwrap()[0], MANY as f32 - 1.0);
}

#[test]
fn a_mailbox_gives_up_in_time_awake_or_asleep() {
    let mailbox = Mailbox::default();
    for timeout in [Duration::ZERO, AWAKE / 2, AWAKE, 100 * AWAKE, STRETCH + AWAKE] {
        let started = Instant::now();
        assert!(mailbox.wait(timeout, |messages| messages.remove(&1)).is_none());
        let waited = started.elapsed();
        assert!(waited >= timeout && waited < LONG, "{waited:?} of {timeout:?}");
    }
}

#[test]
fn early_and_late_messages_are_seen() {
    for delay in [Duration::ZERO, AWAKE / 2, 100 * AWAKE] {
        let mailbox = Mailbox::default();
        let started = Instant::now();
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(delay);
                mailbox.put(3, number(7.0));
            });
            let found = mailbox.wait(LONG, |messages| messages.get_mut(&3)?.pop_front());
            assert_eq!(found.unwrap().to_scalar::<f32>().unwrap(), 7.0);
        });
        assert!(started.elapsed() < LONG, "after {delay:?}");
    }
}

#[test]
fn what_is_sent_in_the_background_counts_as_well() {
    let traffic = run_ranks(&plan(2), LONG, |rank| {
        let other = 1 - rank.rank();
        rank.send(other, &number(1.0))?;
        let before = rank.traffic();
        rank.background()?.send(other, &number(1.0))?;
        let both = [before, rank.traffic()];
        recv_number(rank, other)?;
        rank.background()?.recv(other, &Shape::from(()), DType::F32)?;
        // A third connection would be the second, where messages could meet.
        assert!(rank.background()?.background().is_err());
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

/// Ranks 1 and 2 often wait for each other at the moment at which rank 0 gives up.
#[test]
fn ranks_that_exchange_messages_are_no_deadlock() {
    let gave_up = AtomicBool::new(false);
    for _ in 0..8 {
        gave_up.store(false, Ordering::SeqCst);
        let failure = run_ranks(&plan(3), SHORT, |rank| {
            if rank.rank() == 0 {
                let outcome = recv_number(rank, 1);
                gave_up.store(true, Ordering::SeqCst);
                return outcome.map(drop);
            }
            let other = 3 - rank.rank();
            while !gave_up.load(Ordering::SeqCst) {
                rank.send(other, &number(1.0))?;
                recv_number(rank, other)?;
            }
            // The other rank may be in its last round.
            rank.send(other, &number(1.0))
        });
        let failure = failure.unwrap_err().to_string();
        assert!(failure.ends_with("is alive but sends nothing"), "{failure}");
    }
}

/// Rank 1 gives up first, and rank 0 while rank 1 has not ended yet.
#[test]
fn everyone_who_waited_in_vain_says_so() {
    let (moment, complaints) = (Duration::from_millis(250), Mutex::new(vec![]));
    let outcome = run_ranks(&plan(3), 4 * moment, |rank| {
        let waiting = rank.rank() as u32;
        if waiting == 2 {
            thread::sleep(10 * moment);
            return Ok(());
        }
        thread::sleep((1 - waiting) * moment);
        let failed = recv_number(rank, rank.rank() + 1).map(drop);
        complaints.lock().unwrap().extend(failed.as_ref().err().map(Error::to_string));
        thread::sleep(2 * waiting * moment);
        failed
    });
    let told = |it| format!("rank {it} waited 1.0 s: rank 2 is alive but sends nothing");
    assert_eq!(complaints.into_inner().unwrap(), [told(1), told(0)]);
    assert_eq!(outcome.unwrap_err().to_string(), format!("rank 0 failed: {}", told(0)));
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
