//! `cargo course divergence A B`: where two recordings of stage 5's `--record` part.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use clap::Args;
use concise_wrapper::recording::{Entry, first_divergence, read};
use single_gpu::cli::UsageError;
use single_gpu::report::{line, thousands};

/// Which recordings.
#[derive(Args, Clone, Debug)]
pub(crate) struct Arguments {
    /// A file that `--record` wrote
    first: PathBuf,
    /// Another
    second: PathBuf,
}

/// Finds the first difference, and tells it.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let (first, second) = (recording(&arguments.first)?, recording(&arguments.second)?);
    match first_divergence(&first, &second) {
        Some(divergence) => Ok(line(divergence)?),
        None => {
            let steps = |entries: &[Entry]| -> BTreeSet<usize> {
                entries.iter().map(|entry| entry.step).collect()
            };
            let (first, second) = (steps(&first), steps(&second));
            let common: Vec<usize> = first.intersection(&second).copied().collect();
            let (Some(from), Some(to)) = (common.first(), common.last()) else {
                let told = "the two recordings have no step in common: nothing can be compared";
                return Err(UsageError::new(told).into());
            };
            let [from, to] = [from, to].map(|step| thousands(*step));
            let common = thousands(common.len());
            Ok(line(format_args!("no difference in {common} steps, from step {from} to {to}"))?)
        }
    }
}

fn recording(path: &Path) -> Result<Vec<Entry>, UsageError> {
    let refused = |error| UsageError::new(format_args!("{}: {error}", path.display()));
    let file = File::open(path).map_err(refused)?;
    read(BufReader::new(file)).map_err(refused)
}
