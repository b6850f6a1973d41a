//! Why ranks do not get what they wait for.

use std::fmt;

/// Why a message did not arrive.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The tensor operation around a message failed.
    #[error(transparent)]
    Tensor(#[from] candle_core::Error),
    /// A rank stopped, so what depends on it can never be finished.
    #[error("rank {rank} {why}, and rank {waiting} still needed it")]
    RankStopped {
        /// The rank that stopped first.
        rank: usize,
        /// How it stopped.
        why: String,
        /// The rank that found out.
        waiting: usize,
    },
    /// A rank sent nothing in time, or keeps what it was lent.
    #[error("rank {waiting} waited {seconds:.1} s: rank {rank} is alive but sends nothing")]
    TimedOut {
        /// The rank that everyone waits for in the end.
        rank: usize,
        /// How long this rank waited.
        seconds: f64,
        /// The rank that waited.
        waiting: usize,
    },
    /// Ranks wait for each other in a circle, so none of them will ever get its message.
    #[error("deadlock: {}", in_words(circle))]
    Deadlock {
        /// Each waits for the next, and the last for the first. The smallest comes first.
        circle: Vec<usize>,
    },
    /// What arrived is not what was expected: two ranks are not doing the same thing.
    #[error("rank {rank} sent {found}, but rank {waiting} expected {expected}")]
    Mismatch {
        /// The sender.
        rank: usize,
        /// Element type and shape that arrived.
        found: String,
        /// Element type and shape that were expected.
        expected: String,
        /// The receiver.
        waiting: usize,
    },
    /// A rank that does not exist, or the rank itself.
    #[error("rank {rank} cannot exchange messages with rank {other} in a world of {world_size}")]
    NoSuchRank {
        /// The caller.
        rank: usize,
        /// Whom it named.
        other: usize,
        /// How many ranks there are.
        world_size: usize,
    },
    /// A message between two ranks was asked for where an engine connects all of them together only.
    #[error(
        "{engine} alone connects these ranks: it has sums and broadcasts for all of them, and no messages between two"
    )]
    NoMessages {
        /// What connects them.
        engine: Engine,
    },
    /// A production engine's all-reduce was asked for where there is none.
    #[error("there is no {engine} here: it needs {}; the other algorithms run everywhere", engine.needs())]
    NoNativeAllReduce {
        /// The engine that is missing.
        engine: Engine,
    },
    /// What else keeps a rank from going on, in words: a call that makes no sense, or an engine that fails.
    #[error("{0}")]
    Other(String),
}

/// `rank 0 waits for rank 2, which waits for rank 0`
fn in_words(circle: &[usize]) -> String {
    let (mut ranks, first) = (circle.iter(), circle.first());
    let start = ranks.next().map(|rank| format!("rank {rank}")).unwrap_or_default();
    let waits: Vec<String> =
        ranks.chain(first).map(|rank| format!(" waits for rank {rank}")).collect();
    start + &waits.join(", which")
}

/// A library that makes all-reduces itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// NVIDIA's, between GPUs.
    Nccl,
    /// The one that connects processes.
    Mpi,
}

impl Engine {
    fn needs(self) -> &'static str {
        match self {
            Self::Nccl => {
                "a GPU of its own for every device and a program built with --features nccl"
            }
            Self::Mpi => {
                "ranks that are processes, several started by mpirun, and a program built with --features mpi"
            }
        }
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nccl => "NCCL",
            Self::Mpi => "MPI",
        })
    }
}
