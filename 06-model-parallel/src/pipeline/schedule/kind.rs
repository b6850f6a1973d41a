//! The schedules by name.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::messages::with_messages;
use super::{Action, Instruction, Schedule, gpipe, interleaved, naive, one_f_one_b, zb_h1};

/// The most chunks on a stage: a drawing tells them apart by the letters from a to z.
pub const MOST_CHUNKS: usize = 26;

/// The schedules that can be generated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// [One device works at a time](naive).
    Naive,
    /// [All forward, then all backward](gpipe).
    GPipe,
    /// [One forward, one backward](one_f_one_b).
    #[serde(rename = "1f1b")]
    OneFOneB,
    /// [1F1B with several chunks of the model on each stage](interleaved).
    Interleaved {
        /// Chunks on each stage, 2 to [`MOST_CHUNKS`].
        chunks: usize,
    },
    /// [1F1B with the backward pass in two halves](zb_h1).
    ZbH1,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Naive => f.write_str("naive"),
            Self::GPipe => f.write_str("GPipe"),
            Self::OneFOneB => f.write_str("1F1B"),
            Self::Interleaved { chunks } => write!(f, "interleaved 1F1B, {chunks} chunks"),
            Self::ZbH1 => f.write_str("ZB-H1"),
        }
    }
}

/// A name that no schedule has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "\"{0}\" is no schedule: there are naive, gpipe, 1f1b, interleaved:CHUNKS (2 to {MOST_CHUNKS}, such as \
     interleaved:2) and zb-h1"
)]
pub struct NoSuchKind(String);

impl FromStr for Kind {
    type Err = NoSuchKind;

    fn from_str(text: &str) -> Result<Self, NoSuchKind> {
        let none = || NoSuchKind(text.to_owned());
        Ok(match text.split_once(':') {
            None => match text {
                "naive" => Self::Naive,
                "gpipe" => Self::GPipe,
                "1f1b" => Self::OneFOneB,
                "zb-h1" => Self::ZbH1,
                _ => return Err(none()),
            },
            Some(("interleaved", chunks)) => {
                Self::Interleaved { chunks: chunks.parse().map_err(|_| none())? }
            }
            Some(_) => return Err(none()),
        })
    }
}

/// Why there is no such schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Nothing to do, or nobody to do it.
    #[error(
        "{stages} stages and {micro_batches} micro-batches: a schedule needs at least one of each"
    )]
    Nothing {
        /// How many were asked for.
        stages: usize,
        /// How many were asked for.
        micro_batches: usize,
    },
    /// The interleaved order goes through micro-batches in groups, one for each stage.
    #[error(
        "{micro_batches} micro-batches cannot be interleaved on {stages} stages: their number has to be \
         a multiple of {stages}, such as {}", (micro_batches / stages + 1) * stages
    )]
    NotDivisible {
        /// How many were asked for.
        stages: usize,
        /// How many were asked for.
        micro_batches: usize,
    },
    /// One chunk is not interleaved with anything, and more than there are letters cannot be told apart.
    #[error("an interleaved schedule has 2 to {MOST_CHUNKS} chunks on each stage, not {chunks}")]
    Chunks {
        /// How many were asked for.
        chunks: usize,
    },
}

impl Kind {
    /// Whether a [`Worker`](crate::pipeline::Worker) executes it; the others can be checked and predicted.
    pub fn is_executed(self) -> bool {
        matches!(self, Self::Naive | Self::GPipe | Self::OneFOneB)
    }

    /// How many chunks of the model each stage holds.
    pub fn chunks(self) -> usize {
        match self {
            Self::Interleaved { chunks } => chunks,
            Self::Naive | Self::GPipe | Self::OneFOneB | Self::ZbH1 => 1,
        }
    }

    /// Whether there is a schedule of this kind for so many stages and micro-batches, without making it.
    ///
    /// # Errors
    ///
    /// When there are no stages or micro-batches, or where this kind cannot be had for these numbers.
    pub fn check(self, stages: usize, micro_batches: usize) -> Result<(), Refused> {
        if stages == 0 || micro_batches == 0 {
            return Err(Refused::Nothing { stages, micro_batches });
        }
        let Self::Interleaved { chunks } = self else { return Ok(()) };
        if !(2..=MOST_CHUNKS).contains(&chunks) {
            return Err(Refused::Chunks { chunks });
        }
        match micro_batches.is_multiple_of(stages) {
            true => Ok(()),
            false => Err(Refused::NotDivisible { stages, micro_batches }),
        }
    }

    /// The schedule of this kind for so many stages and micro-batches.
    ///
    /// # Errors
    ///
    /// Those of [`check`](Self::check).
    pub fn schedule(self, stages: usize, micro_batches: usize) -> Result<Schedule, Refused> {
        self.check(stages, micro_batches)?;
        let one_chunk = |order: fn(usize, usize, usize) -> Vec<Action>| {
            with_messages(stages, 1, micro_batches, |stage| {
                order(stage, stages, micro_batches).into_iter().map(Instruction::from).collect()
            })
        };
        Ok(match self {
            Self::Naive => one_chunk(naive::order),
            Self::GPipe => one_chunk(gpipe::order),
            Self::OneFOneB => one_chunk(one_f_one_b::order),
            Self::ZbH1 => one_chunk(zb_h1::order),
            Self::Interleaved { chunks } => with_messages(stages, chunks, micro_batches, |stage| {
                interleaved::order(stage, stages, chunks, micro_batches)
            }),
        })
    }
}
