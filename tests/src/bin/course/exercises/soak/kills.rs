//! `cargo course soak --kills`: a training under `mpirun` that is killed again and again, at random moments.

use std::num::NonZeroU32;
use std::process::Command;

use anyhow::{Context as _, bail};

use super::super::tree::Tree;

/// Runs stage 5's test of it, which is too long for the ordinary run of the tests.
///
/// # Errors
///
/// When it fails, or cannot be built: it needs an MPI library.
pub(super) fn run(tree: &Tree, kills: NonZeroU32) -> anyhow::Result<()> {
    let status = Command::new("cargo")
        .current_dir(&tree.root)
        .args(["test", "--release", "-p", "concise-wrapper", "--features", "mpi"])
        .args(["--test", "processes", "--", "--ignored", "--nocapture", "kills"])
        .env("KILLS", kills.to_string())
        .status()
        .context("cargo cannot be started")?;
    if !status.success() {
        bail!("the run did not come through {kills} kills");
    }
    Ok(())
}
