//! Checkpoints: a run that ended early, for whatever reason, goes on where it was, to the last bit.
//!
//! A checkpoint holds what the next step depends on: weights, running statistics, velocities, and where the
//! loop is. No state of a random generator is among them: the order of an epoch depends on seed and epoch
//! alone. What was given by flags is in it as well, because a run that goes on with another batch size is
//! another run.
//!
//! | module | what it teaches |
//! | --- | --- |
//! | `configuration` | what has to be the same when a run goes on |
//! | `header` | where the loop is; and how damage is found |
//! | `write`, `read` | a file that is there whole or not at all; a file that is not trusted |
//! | `folder` | names, one run at a time, the last N |
//! | `resume` | which checkpoint, on all ranks |
//! | `saver` | when one is written |
//! | `arguments` | the flags |
//!
//! Of several ranks, rank 0 alone reads and writes; what it reads it broadcasts. So hosts need no file
//! system in common, no rank can read another file than rank 0 has, and the lock on the folder has one
//! owner. The other ranks wait meanwhile: writing has to be done within the time limit of a collective.
//!
//! A checkpoint depends on the number of ranks only as far as the sums do, and local batch norms: with those a run goes on
//! with as many as it began with, as another number would train another network ([`NormsOf`]). By shard
//! ([`Reduction::Reproducible`](crate::ddp::Reduction::Reproducible)) it goes on with the same bits on any.
//!
//! Left out: writing in the background, and parts of a checkpoint from every rank, which pay for models that
//! take minutes to write.

mod arguments;
mod configuration;
mod error;
mod folder;
mod header;
mod read;
mod resume;
mod saver;
mod write;

use std::path::PathBuf;

use clap::ValueEnum;

pub use arguments::CheckpointArguments;
pub(crate) use configuration::Configuration;
pub use configuration::{About, NormsOf};
pub use error::Error;
use header::MAX_HEADER;
pub(crate) use saver::Run;

/// The most epochs of a run with checkpoints, as each holds what was reported of every epoch, and its header is not
/// unlimited.
pub const MOST_EPOCHS: usize = MAX_HEADER / 2 / BYTES_OF_AN_EPOCH;

/// What an epoch's record takes of a header, at most.
const BYTES_OF_AN_EPOCH: usize = 320;

/// Where a run keeps its checkpoints, and whether it begins with one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoints {
    /// The folder, which is made if it is missing. Only rank 0's counts.
    pub folder: PathBuf,
    /// Steps from one checkpoint to the next. One is also written after the last step, and after the one
    /// that an interrupt made the last.
    pub every: usize,
    /// How many checkpoints are kept; older ones are removed. At least one is.
    pub keep: usize,
    /// Whether to go on from a checkpoint in the folder. Otherwise there must be none.
    pub resume: Option<Resume>,
    /// What the loop does not know of the run.
    pub about: About,
}

/// Which checkpoint to go on from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Resume {
    /// The newest; it is an error if that one is damaged.
    Newest,
    /// The newest that is not damaged. Newer ones are set aside: they get another name.
    LatestValid,
}
