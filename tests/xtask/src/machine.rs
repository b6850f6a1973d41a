//! The machine of a measurement, and the day.

use anyhow::anyhow;
use course::doctor::hardware::{instruction_sets, processor_field, processor_name, total_memory};
use course::doctor::probe::ask;
use harness::machine::available_cores;
use harness::report::counted;
use itertools::Itertools as _;
use serde::{Deserialize, Serialize};

/// A machine, in the words of the system.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Machine {
    pub processor: String,
    /// Its GPUs, as their driver names them, where one took part.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<String>,
    /// Numbers that distinguish processors of the same name, and the size of the last cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    pub cores: usize,
    pub instruction_sets: Vec<String>,
    pub memory: Option<String>,
    pub system: String,
}

impl Machine {
    /// Whether both machines should compute the same bits. Rounding depends on the vector instructions. Rounding also depends
    /// on the sizes of caches, because these sizes decide the blocks of matrix products.
    pub fn rounds_like(&self, other: &Self) -> bool {
        (&self.processor, &self.gpus, &self.model, &self.instruction_sets)
            == (&other.processor, &other.gpus, &other.model, &other.instruction_sets)
    }

    /// The machine and the day of a measurement: `AMD EPYC, 2 cores, 2026-11-22`. Where GPUs took part, they come first:
    /// `2 × NVIDIA H200, beside AMD EPYC, 2 cores`.
    pub fn on(&self, date: Option<&str>) -> String {
        let host = format!("{}, {}", self.processor, counted(self.cores, "core"));
        let counts = self.gpus.iter().unique().map(|name| {
            match self.gpus.iter().filter(|gpu| *gpu == name).count() {
                1 => name.clone(),
                count => format!("{count} × {name}"),
            }
        });
        let machine = match counts.collect::<Vec<_>>().join(", ") {
            none if none.is_empty() => host,
            gpus => format!("{gpus}, beside {host}"),
        };
        [machine.as_str()].into_iter().chain(date).join(", ")
    }
}

/// The machine that this runs on.
pub fn this_machine() -> Machine {
    let [family, model, cache] = ["cpu family", "model", "cache size"].map(processor_field);
    let model = || Some(format!("family {} model {}, cache {}", family?, model?, cache?));
    Machine {
        processor: processor_name(),
        gpus: Vec::new(),
        model: model(),
        cores: available_cores(),
        instruction_sets: instruction_sets().into_iter().map(str::to_owned).collect(),
        memory: total_memory(),
        system: ask("uname", &["-srm"])
            .unwrap_or_else(|_| format!("{} {}", std::env::consts::OS, std::env::consts::ARCH)),
    }
}

/// The machine that this runs on, with its GPUs.
pub fn this_machine_with_gpus() -> anyhow::Result<Machine> {
    let names = ask("nvidia-smi", &["--query-gpu=name", "--format=csv,noheader"]);
    let names = names.map_err(|why| anyhow!("the names of this machine's GPUs: {why}"))?;
    Ok(Machine { gpus: names.lines().map(str::to_owned).collect(), ..this_machine() })
}

/// The day, from the system's program `date`.
pub fn today() -> Option<String> {
    ask("date", &["+%Y-%m-%d"]).ok()
}

#[test]
fn a_gpu_comes_before_its_host_and_decides_how_results_are_rounded() {
    let host = Machine { processor: "AMD EPYC".into(), cores: 2, ..this_machine() };
    assert_eq!(host.on(None), "AMD EPYC, 2 cores");
    let gpus: Vec<String> = ["NVIDIA H200", "NVIDIA A2", "NVIDIA H200"].map(str::to_owned).into();
    let with_gpus = Machine { gpus, ..host.clone() };
    assert_eq!(with_gpus.on(None), "2 × NVIDIA H200, NVIDIA A2, beside AMD EPYC, 2 cores");
    assert!(host.rounds_like(&host) && !host.rounds_like(&with_gpus));
}
