//! Which rank waits for which: the cause if a message does not come.

use std::time::Duration;

use params_and_allreduce::communicator::{Error, wait_chain};
use serde::{Deserialize, Serialize};

/// Progress threads answer within a millisecond, and later on a busy machine. A process that needs longer was stopped.
pub(super) const ANSWER_LIMIT: Duration = Duration::from_secs(1);

/// The rank that a rank waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum WaitsFor {
    /// The rank computes, stalls or is done.
    Nobody,
    /// MPI's all-reduce, in which every rank takes part.
    All,
    Rank(usize),
}

/// A rank's answer to the question for which rank it waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Answer {
    pub(super) waits_for: WaitsFor,
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
    let waits_for = |rank: usize| answers[rank].map(|answer| answer.waits_for);
    let (chain, circle) = wait_chain(rank, |chain| match waits_for(*chain.last()?)? {
        WaitsFor::Nobody => None,
        // A rank outside the chain goes first.
        WaitsFor::All => (0..answers.len())
            .filter(|&rank| waits_for(rank) != Some(WaitsFor::All))
            .min_by_key(|rank| chain.contains(rank)),
        WaitsFor::Rank(other) => Some(other),
    });
    let last = chain[chain.len() - 1];
    if waits_for(last).is_none() {
        let limit = ANSWER_LIMIT.as_secs();
        let why = format!("sent nothing for {seconds:.1} s, does not answer within {limit} s");
        return Error::RankStopped { rank: last, why, waiting: rank };
    }
    if circle.is_none() && waits_for(last) == Some(WaitsFor::All) {
        return other(
            " for a sum in which all ranks take part: do they add tensors of one size and type?",
        );
    }
    // In a circle any message may still arrive, and otherwise the message to the last rank.
    let ranks = circle.as_deref().unwrap_or(&chain[chain.len().saturating_sub(2)..]);
    let mut messages = ranks.iter().zip(ranks.iter().cycle().skip(1));
    let arrives = |receiver: usize| answers[receiver].is_some_and(|it| it.arriving);
    if let Some((&receiver, &sender)) = messages.find(|(receiver, _)| arrives(**receiver)) {
        let (one, two) = (receiver.min(sender), receiver.max(sender));
        return other(&format!(
            ", and a message between ranks {one} and {two} is still arriving: is the link so slow, or the time limit so \
             short?"
        ));
    }
    match circle {
        Some(circle) => Error::Deadlock { circle },
        None => Error::TimedOut { rank: last, seconds, waiting: rank },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SILENT: Option<Answer> = None;

    const NOBODY: Option<Answer> = answer(WaitsFor::Nobody, false);
    const ALL: Option<Answer> = answer(WaitsFor::All, false);

    const fn answer(waits_for: WaitsFor, arriving: bool) -> Option<Answer> {
        Some(Answer { waits_for, arriving })
    }

    const fn waits(rank: usize) -> Option<Answer> {
        answer(WaitsFor::Rank(rank), false)
    }

    const fn receives(rank: usize) -> Option<Answer> {
        answer(WaitsFor::Rank(rank), true)
    }

    /// The error of rank 0.
    fn cause(answers: &[Option<Answer>]) -> String {
        find_cause(0, Duration::from_secs(1), answers).to_string()
    }

    #[test]
    fn the_end_of_the_chain_is_named() {
        let alive = cause(&[waits(1), waits(2), waits(3), NOBODY]);
        assert!(alive.contains("rank 3 is alive but sends nothing"), "{alive}");
        let silent = cause(&[waits(1), waits(2), SILENT, NOBODY]);
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
            [waits(1), receives(2), NOBODY],
            [waits(2), NOBODY, receives(1)],
        ] {
            let slow = cause(&answers);
            assert!(slow.contains("a message between ranks 1 and 2 is still arriving"), "{slow}");
        }
    }

    #[test]
    fn a_rank_that_keeps_away_from_mpis_sum_is_named() {
        let absent = cause(&[ALL, ALL, waits(3), NOBODY]);
        assert!(absent.contains("rank 3 is alive"), "{absent}");
        let behind = cause(&[waits(1), ALL, ALL]);
        assert!(behind.contains("deadlock: rank 0 waits for rank 1"), "{behind}");
        let everyone = cause(&[ALL, ALL, ALL]);
        assert!(everyone.contains("of one size"), "{everyone}");
    }
}
