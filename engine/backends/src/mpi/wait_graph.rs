//! Which rank waits for which: the cause if a message does not come.

use std::time::Duration;

use params_and_allreduce::communicator::Error;

/// Progress threads answer within a millisecond, and later on a busy machine. A process that needs longer was stopped.
pub(super) const ANSWER_LIMIT: Duration = Duration::from_secs(1);

/// Means "waits for no rank": the rank computes, stalls or is done.
pub(super) const NOBODY: usize = usize::MAX;

/// Means "waits for MPI's all-reduce", in which every rank takes part.
pub(super) const ALL: usize = usize::MAX - 1;

/// A rank's answer to the question for which rank it waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    /// A rank, [`NOBODY`] or [`ALL`].
    pub(super) waits_for: usize,
    /// Whether a part of the message has arrived for which the rank waits.
    pub(super) arriving: bool,
}

/// Finds the reason why `rank` waited in vain. `answers` has the answer of each rank that gave one.
///
/// A rank that waits may wait for a rank that waits, too. The error names the rank at the end of this chain, or the circle
/// that the chain closes, or the two ranks of a message that is still arriving.
pub(super) fn find_cause(rank: usize, waited: Duration, answers: &[Option<Answer>]) -> Error {
    let seconds = waited.as_secs_f64();
    let other = |text: String| Error::Other(format!("rank {rank} waited {seconds:.1} s{text}"));
    let slow = |receiver: usize, sender: usize| {
        let (one, two) = (receiver.min(sender), receiver.max(sender));
        other(format!(
            ", and a message between ranks {one} and {two} is still arriving: is the link so slow, or the time limit so \
             short?"
        ))
    };
    // Each rank waits for the next one. The second value says whether a part of its message has arrived.
    let mut chain: Vec<(usize, bool)> = Vec::new();
    let mut next = rank;
    loop {
        if let Some(start) = chain.iter().position(|&(earlier, _)| earlier == next) {
            let circle = &chain[start..];
            if let Some(place) = circle.iter().rposition(|&(_, arriving)| arriving) {
                return slow(circle[place].0, circle[(place + 1) % circle.len()].0);
            }
            let mut circle: Vec<usize> = circle.iter().map(|&(rank, _)| rank).collect();
            let smallest = (0..circle.len()).min_by_key(|&place| circle[place]);
            circle.rotate_left(smallest.unwrap_or(0));
            return Error::Deadlock { circle };
        }
        let Some(Answer { waits_for, arriving }) = answers[next] else {
            let limit = ANSWER_LIMIT.as_secs();
            let why = format!("sent nothing for {seconds:.1} s, does not answer within {limit} s");
            return Error::RankStopped { rank: next, why, waiting: rank };
        };
        if waits_for == NOBODY {
            return match chain.last() {
                Some(&(receiver, true)) => slow(receiver, next),
                _ => Error::TimedOut { rank: next, seconds, waiting: rank },
            };
        }
        chain.push((next, arriving));
        next = waits_for;
        if waits_for == ALL {
            let takes_part = |rank: usize| answers[rank].is_some_and(|it| it.waits_for == ALL);
            let absent = (0..answers.len()).filter(|&rank| !takes_part(rank));
            // A rank that is not in the chain goes first.
            let absent = absent.min_by_key(|rank| chain.iter().any(|(earlier, _)| earlier == rank));
            let Some(absent) = absent else {
                return other(
                    " for a sum in which all ranks take part: do they add tensors of one size and type?".to_owned(),
                );
            };
            next = absent;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SILENT: Option<Answer> = None;

    fn waits(waits_for: usize) -> Option<Answer> {
        Some(Answer { waits_for, arriving: false })
    }

    fn receives(rank: usize) -> Option<Answer> {
        Some(Answer { waits_for: rank, arriving: true })
    }

    /// The error of rank 0.
    fn cause(answers: &[Option<Answer>]) -> String {
        find_cause(0, Duration::from_secs(1), answers).to_string()
    }

    #[test]
    fn the_end_of_the_chain_is_named() {
        let alive = cause(&[waits(1), waits(2), waits(3), waits(NOBODY)]);
        assert!(alive.contains("rank 3 is alive but sends nothing"), "{alive}");
        let silent = cause(&[waits(1), waits(2), SILENT, waits(NOBODY)]);
        assert!(silent.contains("rank 2 sent nothing for 1.0 s, does not answer"), "{silent}");
        // A part of the message has arrived, and its sender was stopped.
        let silent = cause(&[receives(1), SILENT]);
        assert!(silent.contains("rank 1 sent nothing for 1.0 s, does not answer"), "{silent}");
    }

    #[test]
    fn a_circle_is_a_deadlock_unless_a_message_is_arriving() {
        let circle = cause(&[waits(1), waits(2), waits(0)]);
        assert!(circle.contains("rank 0 waits for rank 1, which waits for rank 2"), "{circle}");
        let behind = cause(&[waits(1), waits(2), waits(1)]);
        assert!(behind.contains("deadlock: rank 1 waits for rank 2"), "{behind}");
        let behind = cause(&[receives(1), waits(2), waits(1)]);
        assert!(behind.contains("deadlock: rank 1 waits for rank 2"), "{behind}");
        for answers in [
            [waits(2), receives(2), receives(1)],
            [waits(1), receives(2), waits(1)],
            [waits(1), receives(2), waits(NOBODY)],
            [waits(2), waits(NOBODY), receives(1)],
        ] {
            let slow = cause(&answers);
            assert!(slow.contains("a message between ranks 1 and 2 is still arriving"), "{slow}");
        }
    }

    #[test]
    fn a_rank_that_keeps_away_from_mpis_sum_is_named() {
        let absent = cause(&[waits(ALL), waits(ALL), waits(3), waits(NOBODY)]);
        assert!(absent.contains("rank 3 is alive"), "{absent}");
        let behind = cause(&[waits(1), waits(ALL), waits(ALL)]);
        assert!(behind.contains("deadlock: rank 0 waits for rank 1"), "{behind}");
        let everyone = cause(&[waits(ALL), waits(ALL), waits(ALL)]);
        assert!(everyone.contains("of one size"), "{everyone}");
    }
}
