//! Executes lists of pipelines in PyTorch's pipelining runtime, and compares the step with one device's step here:
//!
//! ```text
//! model-parallel --draw --schedule 1f1b --export 1f1b.csv
//! cargo run --release -p model-parallel --example in_pytorch -- 1f1b.csv
//! ```

mod runtime;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use harness::cli::{self, UsageError};

/// Executes lists of `model-parallel --export` in PyTorch, and compares gradients and updated weights with ours.
///
/// The Python is $PYTHON, or the one that `cargo xtask peers --set-up` makes, or python3. It needs PyTorch 2.11 and NumPy.
#[derive(Debug, Parser)]
struct Arguments {
    /// A list. FILE.npz beside it gets our step
    #[arg(required = true, value_name = "FILE.csv")]
    files: Vec<PathBuf>,
}

fn main() -> ExitCode {
    cli::prepare();
    cli::conclude(cli::arguments().and_then(run))
}

fn run(Arguments { files }: Arguments) -> anyhow::Result<()> {
    for file in &files {
        runtime::write_step(file).map_err(UsageError::new)?;
    }
    runtime::execute(&files).map_err(anyhow::Error::msg)
}
