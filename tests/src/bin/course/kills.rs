//! `cargo course soak --kills`: a training under `mpirun` that is killed again and again, at random moments.
//!
//! It belongs to no exercise. Its command is the one that soaks exercises, since both run for long and want to find
//! what shows seldom.

use std::num::NonZeroU32;
use std::path::Path;

use anyhow::{Context as _, bail};

use crate::exercises::cargo;

/// Runs stage 5's test of it in the workspace at `root`; it is too long for the ordinary run of the tests.
pub(crate) fn run(root: &Path, kills: NonZeroU32) -> anyhow::Result<()> {
    let status = cargo(root)
        .args(["test", "--release", "-p", "concise-wrapper", "--features", "mpi"])
        .args(["--test", "mpi", "--", "--ignored", "--nocapture", "kills"])
        .env("KILLS", kills.to_string())
        .status()
        .context("cargo cannot be started")?;
    if !status.success() {
        bail!("the run did not come through {kills} kills");
    }
    Ok(())
}
