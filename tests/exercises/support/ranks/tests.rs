//! Messages, deadlocks and failures of ranks. `cargo xtask verify` tries broken promises and errors that are not passed on.

use std::thread as threads;
use std::time::Duration;

use super::*;

const BOTH: [Sends; 2] = [Sends::Buffered, Sends::WaitForReceiver];

fn number(value: f32) -> Tensor {
    Tensor::new(value, &Device::Cpu).unwrap()
}

fn send(rank: &Rank, to: usize) -> Result<(), Error> {
    rank.send(to, &number(rank.rank() as f32))
}

fn receive(rank: &Rank, from: usize) -> Result<f32, Error> {
    Ok(rank.recv(from, &Shape::from(()), DType::F32)?.to_scalar()?)
}

fn neighbours(rank: &Rank) -> (usize, usize) {
    let (own, world_size) = (rank.rank(), rank.world_size());
    ((own + 1) % world_size, (own + world_size - 1) % world_size)
}

/// The message of a run that fails.
fn failure<R: Send + 'static>(
    world_size: usize,
    sends: Sends,
    work: impl Fn(&Rank) -> Result<R, Error> + Send + Sync + 'static,
) -> String {
    run(world_size, sends, work).err().unwrap().to_string()
}

#[test]
fn a_circle_of_waiting_ranks_is_a_deadlock() {
    let receive_first = |rank: &Rank| {
        receive(rank, neighbours(rank).1)?;
        send(rank, neighbours(rank).0)
    };
    let send_first = |rank: &Rank| {
        send(rank, neighbours(rank).0)?;
        receive(rank, neighbours(rank).1)
    };
    let circle =
        "deadlock: rank 0 waits for rank 2, which waits for rank 1, which waits for rank 0";
    for sends in BOTH {
        assert_eq!(failure(3, sends, receive_first), circle, "{sends:?}");
    }
    assert_eq!(run(3, Sends::Buffered, send_first).unwrap(), [2.0, 0.0, 1.0]);
    let circle =
        "deadlock: rank 0 waits for rank 1, which waits for rank 2, which waits for rank 0";
    assert_eq!(failure(3, Sends::WaitForReceiver, send_first), circle);
    // The circle is 1 ↔ 2: rank 0 waits for it, and rank 3 has nothing to do with it.
    let inside = failure(4, Sends::Buffered, |rank| match rank.rank() {
        0 | 2 => receive(rank, 1),
        1 => receive(rank, 2),
        _ => Ok(0.0),
    });
    assert_eq!(inside, "deadlock: rank 1 waits for rank 2, which waits for rank 1");
}

/// Every two ranks are in the middle of an exchange at any time. Either thread of a rank may be slow.
#[test]
fn ranks_that_are_slow_or_use_two_threads_are_no_deadlock() {
    for (sends, slow) in BOTH.into_iter().flat_map(|sends| [(sends, false), (sends, true)]) {
        let exchanges = move |rank: &Rank| {
            let (next, previous) = neighbours(rank);
            for _ in 0..if slow { 3 } else { 500 } {
                threads::scope(|scope| {
                    let sender = scope.spawn(|| send(rank, next));
                    threads::sleep(Duration::from_millis(if slow { 40 } else { 0 }));
                    receive(rank, previous)?;
                    sender.join().unwrap()
                })?;
            }
            Ok(())
        };
        for world_size in [2, 3, 4] {
            run(world_size, sends, exchanges).unwrap();
        }
    }
}

#[test]
fn a_rank_that_fails_panics_or_leaves_too_early_is_named() {
    for sends in BOTH {
        let line = line!() + 3;
        let told = failure(3, sends, |rank| match rank.rank() {
            0 => receive(rank, 1),
            1 => panic!("on purpose"),
            _ => receive(rank, 0),
        });
        let expected = format!("rank 1 panicked: on purpose ({}:{line}:", file!());
        assert!(told.starts_with(&expected), "{sends:?}: {told}");
    }
    let told = failure(2, Sends::Buffered, |rank| match rank.rank() {
        0 => receive(rank, 1),
        _ => Err(candle_core::Error::Msg("disk full".into()).into()),
    });
    assert_eq!(told, "rank 1 failed: disk full");
    let leaves = |rank: &Rank| if rank.rank() == 0 { send(rank, 1) } else { Ok(()) };
    let early = "rank 0 failed: rank 1 returned early, and rank 0 still needed it";
    assert_eq!(failure(2, Sends::WaitForReceiver, leaves), early);
    let never = "rank 0 sent a message that rank 1 never received";
    assert_eq!(failure(2, Sends::Buffered, leaves), never);
}
