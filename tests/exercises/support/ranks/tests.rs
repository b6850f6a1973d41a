//! Failures between ranks and their messages.

use candle_core::{DType, Shape, Tensor, Var};
use params_and_allreduce::communicator::Communicator;
use params_and_allreduce::thread::Traffic;

use super::*;

const BOTH: [Sends; 2] = [Sends::Buffered, Sends::WaitForReceiver];

fn number(rank: &Rank, value: f32) -> Tensor {
    Tensor::new(value, rank.device()).unwrap()
}

fn send_number(rank: &Rank, to: usize) -> Result<(), Error> {
    rank.send(to, &number(rank, rank.rank() as f32))
}

fn receive_number(rank: &Rank, from: usize) -> Result<f32, Error> {
    Ok(rank.recv(from, &Shape::from(()), DType::F32)?.to_scalar()?)
}

fn neighbours(rank: &Rank) -> (usize, usize) {
    let (own, world_size) = (rank.rank(), rank.world_size());
    ((own + 1) % world_size, (own + world_size - 1) % world_size)
}

#[test]
fn messages_arrive_in_order_and_are_counted() {
    for sends in BOTH {
        let results = run(2, sends, |rank| {
            let mut got = Vec::new();
            for value in [5.0, 6.0, 7.0] {
                if rank.rank() == 0 {
                    rank.send(1, &number(rank, value))?;
                } else {
                    got.push(receive_number(rank, 0)?);
                }
            }
            Ok((got, rank.traffic()))
        });
        let sent = Traffic { messages: 3, bytes: 12 };
        let expected = [(vec![], sent), (vec![5.0, 6.0, 7.0], Traffic::default())];
        assert_eq!(results, expected, "{sends:?}");
    }
}

#[test]
fn the_sizes_of_messages_and_their_receivers_are_known() {
    let sent = run(3, Sends::Buffered, |rank| {
        for (to, elements) in [(2, 3), (1, 1), (2, 4)] {
            match rank.rank() {
                0 => rank.send(to, &Tensor::zeros(elements, DType::F32, rank.device())?)?,
                own if own == to => {
                    rank.recv(0, &Shape::from(elements), DType::F32)?;
                }
                _ => {}
            }
        }
        Ok(rank.sent())
    });
    let expected = Sent {
        traffic: Traffic { messages: 3, bytes: 32 },
        largest_message: 16,
        smallest_message: Some(4),
        receivers: [1, 2].into(),
        longest_chain: 1,
    };
    assert_eq!(sent, [expected, Sent::default(), Sent::default()]);
}

#[test]
fn chains_of_messages_are_measured() {
    let chains = run(3, Sends::Buffered, |rank| {
        match rank.rank() {
            0 => {
                send_number(rank, 2)?;
                send_number(rank, 1)?;
                receive_number(rank, 1)?;
            }
            1 => {
                receive_number(rank, 0)?;
                send_number(rank, 0)?;
            }
            _ => {
                receive_number(rank, 0)?;
            }
        }
        Ok(rank.sent().longest_chain)
    });
    assert_eq!(chains, [1, 2, 0]);
}

#[test]
fn a_circle_of_waiting_ranks_is_a_deadlock() {
    let receive_first = |rank: &Rank| {
        let (next, previous) = neighbours(rank);
        receive_number(rank, previous)?;
        send_number(rank, next)
    };
    let send_first = |rank: &Rank| {
        let (next, previous) = neighbours(rank);
        send_number(rank, next)?;
        receive_number(rank, previous)
    };
    let circle =
        "deadlock: rank 0 waits for rank 2, which waits for rank 1, which waits for rank 0";
    for sends in BOTH {
        assert_eq!(attempt(3, sends, receive_first).unwrap_err(), circle, "{sends:?}");
    }
    assert_eq!(run(3, Sends::Buffered, send_first), [2.0, 0.0, 1.0]);
    let circle =
        "deadlock: rank 0 waits for rank 1, which waits for rank 2, which waits for rank 0";
    assert_eq!(attempt(3, Sends::WaitForReceiver, send_first).unwrap_err(), circle);
}

/// The circle is 1 ↔ 2; rank 0 waits for it, rank 3 has nothing to do with it.
#[test]
fn a_circle_is_found_from_inside_and_outside() {
    for _ in 0..100 {
        let failure = attempt(4, Sends::Buffered, |rank| match rank.rank() {
            0 | 2 => receive_number(rank, 1),
            1 => receive_number(rank, 2),
            _ => Ok(0.0),
        });
        let circle = "deadlock: rank 1 waits for rank 2, which waits for rank 1";
        assert_eq!(failure.unwrap_err(), circle);
    }
}

/// Every pair of ranks is in the middle of an exchange at any time, and no rank is ever stuck.
#[test]
fn who_is_only_slow_is_never_blamed() {
    for sends in BOTH {
        let exchanges = |rank: &Rank| {
            let (next, previous) = neighbours(rank);
            for _ in 0..2000 {
                if rank.rank() == 0 {
                    receive_number(rank, previous)?;
                    send_number(rank, next)?;
                } else {
                    send_number(rank, next)?;
                    receive_number(rank, previous)?;
                }
            }
            Ok(())
        };
        for world_size in [2, 3, 4] {
            run(world_size, sends, exchanges);
        }
    }
}

#[test]
fn a_panic_names_the_rank_and_the_line() {
    for sends in BOTH {
        let line = line!() + 3;
        let failure = attempt(3, sends, |rank| match rank.rank() {
            0 => receive_number(rank, 1),
            1 => panic!("on purpose"),
            _ => receive_number(rank, 0),
        });
        let expected = format!("rank 1 panicked: on purpose ({}:{line}:", file!());
        let told = failure.unwrap_err();
        assert!(told.starts_with(&expected), "{sends:?}: {told}");
    }
}

#[test]
fn an_error_names_the_rank() {
    let failure = attempt(2, Sends::Buffered, |rank| match rank.rank() {
        0 => receive_number(rank, 1),
        _ => Err(candle_core::Error::Msg("disk full".into()).into()),
    });
    assert_eq!(failure.unwrap_err(), "rank 1 failed: disk full");
}

#[test]
fn a_rank_that_leaves_too_early_is_named() {
    let leave = |rank: &Rank| match rank.rank() {
        0 => receive_number(rank, 1),
        _ => Ok(0.0),
    };
    let told = "rank 0 failed: rank 1 returned early, and rank 0 still needed it";
    assert_eq!(attempt(2, Sends::Buffered, leave).unwrap_err(), told);
    let leave = |rank: &Rank| match rank.rank() {
        0 => send_number(rank, 1),
        _ => Ok(()),
    };
    let told = attempt(2, Sends::WaitForReceiver, leave).unwrap_err();
    assert!(told.contains("rank 1 returned without receiving all that was sent to it"), "{told}");
    let told = attempt(2, Sends::Buffered, leave).unwrap_err();
    assert_eq!(told, "rank 0 sent a message that rank 1 never received");
}

#[test]
fn a_law_about_ranks_is_named_only_where_it_may_be_broken() {
    let told = |failure: &'static str, empty: bool| {
        let panic =
            std::panic::catch_unwind(|| fail("no sum", "a sum", failure, "all meet", empty));
        *panic.unwrap_err().downcast::<String>().unwrap()
    };
    let refused = "rank 1 failed: unexpected dtype";
    assert_eq!(told(refused, false), format!("no sum\n  expected a sum\n  got      {refused}"));
    assert!(told(refused, true).ends_with("\n  law: all meet"));
    let left = "rank 0 failed: rank 1 returned early, and rank 0 still needed it";
    assert!(told(left, false).ends_with("\n  law: all meet"));
    let circle = "deadlock: rank 0 waits for rank 1, which waits for rank 0";
    assert!(told(circle, false).ends_with("\n  law: all meet"));
}

#[test]
fn another_shape_than_expected_is_told() {
    let failure = attempt(2, Sends::Buffered, |rank| match rank.rank() {
        0 => rank.recv(1, &Shape::from(3), DType::F32).map(|_| ()),
        _ => send_number(rank, 0),
    });
    let told = "rank 0 failed: rank 1 sent F32 [], but rank 0 expected F32 [3]";
    assert_eq!(failure.unwrap_err(), told);
}

#[test]
fn a_rank_that_does_not_exist_is_refused() {
    for other in [0, 2] {
        let failure = attempt(2, Sends::Buffered, move |rank| match rank.rank() {
            0 => send_number(rank, other),
            _ => Ok(()),
        });
        let told = failure.unwrap_err();
        assert!(told.contains(&format!("with rank {other} in a world of 2")), "{told}");
    }
}

#[test]
fn a_loop_that_never_ends_names_its_rank() {
    let limit = Duration::from_secs(1);
    let failure = attempt_within(limit, 2, Sends::Buffered, move |rank| {
        if rank.rank() == 1 {
            loop {
                std::thread::sleep(limit);
            }
        }
        receive_number(rank, 1)
    });
    let told = failure.unwrap_err();
    assert!(told.contains("rank 0 waits for rank 1, rank 1 is still at work"), "{told}");
}

#[test]
fn whoever_writes_to_what_it_has_handed_out_is_told() {
    let outcome = attempt(2, Sends::Buffered, |rank| {
        let [nan, variable] = [f32::NAN, 1.0].map(|value| Var::from_tensor(&number(rank, value)));
        let (nan, variable) = (nan?, variable?);
        if rank.rank() == 1 {
            receive_number(rank, 0)?;
            receive_number(rank, 0)?;
            return receive_number(rank, 0);
        }
        rank.send_shared(1, nan.as_tensor())?;
        rank.send_shared(1, &variable.copy()?)?;
        rank.send_shared(1, variable.as_tensor())?;
        variable.set(&number(rank, 2.0))?;
        Ok(2.0)
    });
    let told =
        "rank 0 broke a promise: a tensor that it had shared with rank 1 was written to afterwards";
    assert_eq!(outcome.unwrap_err(), told);
}

/// Adds up numbers on rank 0, which may leave out a rank whose number does not come.
fn sum(rank: &Rank, strict: bool) -> Result<f32, Error> {
    let mut sum = rank.rank() as f32;
    if rank.rank() > 0 {
        send_number(rank, 0)?;
        return receive_number(rank, 0);
    }
    for other in 1..rank.world_size() {
        match receive_number(rank, other) {
            Ok(number) => sum += number,
            Err(error) if strict => return Err(error),
            Err(_) => {}
        }
    }
    (1..rank.world_size()).try_for_each(|other| rank.send(other, &number(rank, sum)))?;
    Ok(sum)
}

#[test]
fn an_error_that_is_not_passed_on_is_told() {
    errors_are_passed_on("sums", 3, Sends::Buffered, |rank| sum(rank, true));
    let told = panic::catch(|| {
        errors_are_passed_on("sums", 3, Sends::Buffered, |rank| sum(rank, false));
    });
    let told = told.unwrap_err().message;
    let expected = "sums: the messages of rank 2 fail, and rank 0 does not say so";
    assert!(told.starts_with(expected) && told.contains("got      a result"), "{told}");
    let told = panic::catch(|| {
        errors_are_passed_on("sums", 2, Sends::Buffered, |rank| {
            let _ = send_number(rank, 1 - rank.rank());
            receive_number(rank, 1 - rank.rank())
        });
    });
    let told = told.unwrap_err().message;
    assert!(told.contains("the sends of rank 1 fail, and rank 1 does not say so"), "{told}");
}
