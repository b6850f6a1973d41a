//! What the numbers were measured on and with: they mean little without it.

use std::collections::BTreeMap;

use serde::Serialize;
use single_gpu::device::available_cores;
use single_gpu::report::metrics::Versions;

use crate::doctor::hardware::{cpu_name, instruction_sets, total_memory};
use crate::doctor::probe::{ask, first_line};

/// A machine, as far as it tells.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Machine {
    processor: String,
    /// That this process may use.
    cores: usize,
    instruction_sets: Vec<&'static str>,
    memory: Option<String>,
    system: String,
}

impl Machine {
    /// The one that this runs on.
    pub(super) fn this() -> Self {
        Self {
            processor: cpu_name().unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
            cores: available_cores(),
            instruction_sets: instruction_sets(),
            memory: total_memory(),
            system: ask("uname", &["-srm"])
                .unwrap_or_else(|_| format!("{} {}", std::env::consts::OS, std::env::consts::ARCH)),
        }
    }
}

/// What did the work.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Software {
    #[serde(flatten)]
    ours: Versions,
    rustc: Option<String>,
    #[serde(flatten)]
    peers: BTreeMap<String, Option<String>>,
}

impl Software {
    /// Ours, beside theirs.
    pub(super) fn with(peers: BTreeMap<String, Option<String>>) -> Self {
        let rustc = ask("rustc", &["--version"]).ok().map(first_line);
        Self { ours: Versions::of_this_binary(), rustc, peers }
    }
}

/// The day, as the system's own program tells it.
pub(super) fn today() -> Option<String> {
    ask("date", &["+%Y-%m-%d"]).ok()
}
