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
    let other = |text: &str| Error::Other(format!("rank {rank} waited {seconds:.1} s{text}"));
    // Each rank waits for the next one, and the last one for `next`.
    let (mut chain, mut next) = (Vec::new(), rank);
    while !chain.contains(&next) {
        let Some(answer) = answers[next] else {
            let limit = ANSWER_LIMIT.as_secs();
            let why = format!("sent nothing for {seconds:.1} s, does not answer within {limit} s");
            return Error::RankStopped { rank: next, why, waiting: rank };
        };
        if answer.waits_for == NOBODY {
            break;
        }
        chain.push(next);
        next = answer.waits_for;
        if next == ALL {
            let takes_part = |rank: usize| answers[rank].is_some_and(|it| it.waits_for == ALL);
            let absent = (0..answers.len()).filter(|&rank| !takes_part(rank));
            // A rank outside the chain goes first.
            let Some(absent) = absent.min_by_key(|rank| chain.contains(rank)) else {
                return other(
                    " for a sum in which all ranks take part: do they add tensors of one size and type?",
                );
            };
            next = absent;
        }
    }
    let closes = chain.iter().position(|&earlier| earlier == next);
    // In a circle any message may still arrive, and otherwise the message to the last rank.
    let suspects = closes.unwrap_or(chain.len().saturating_sub(1))..chain.len();
    let arriving = |&place: &usize| answers[chain[place]].is_some_and(|it| it.arriving);
    if let Some(place) = suspects.rev().find(arriving) {
        let (receiver, sender) = (chain[place], *chain.get(place + 1).unwrap_or(&next));
        let (one, two) = (receiver.min(sender), receiver.max(sender));
        return other(&format!(
            ", and a message between ranks {one} and {two} is still arriving: is the link so slow, or the time limit so \
             short?"
        ));
    }
    let Some(start) = closes else { return Error::TimedOut { rank: next, seconds, waiting: rank } };
    let mut circle = chain.split_off(start);
    let smallest = (0..circle.len()).min_by_key(|&place| circle[place]);
    circle.rotate_left(smallest.unwrap_or(0));
    Error::Deadlock { circle }
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
