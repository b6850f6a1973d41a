//! A machine that something was measured on.

use harness::report::counted;
use itertools::Itertools as _;
use serde::{Deserialize, Serialize};

/// A machine, as far as it tells.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Machine {
    pub processor: String,
    /// Its GPUs, as their driver names them, where one took part.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<String>,
    /// Numbers that tell processors of the same name apart, and the size of the last cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    pub cores: usize,
    pub instruction_sets: Vec<String>,
    pub memory: Option<String>,
    pub system: String,
}

impl Machine {
    /// Whether results can be expected to have the same bits on both: rounding depends on the vector
    /// instructions, and on the sizes of caches, by which matrix products are cut into blocks.
    pub fn rounds_like(&self, other: &Self) -> bool {
        (&self.processor, &self.gpus, &self.model, &self.instruction_sets)
            == (&other.processor, &other.gpus, &other.model, &other.instruction_sets)
    }

    /// `AMD EPYC, 2 cores`; where GPUs took part, `2 × NVIDIA H200, beside AMD EPYC, 2 cores`
    pub fn short(&self) -> String {
        let Self { processor, cores, gpus, .. } = self;
        let host = format!("{processor}, {}", counted(*cores, "core"));
        let gpus =
            gpus.iter().unique().map(|name| match gpus.iter().filter(|gpu| *gpu == name).count() {
                1 => name.clone(),
                count => format!("{count} × {name}"),
            });
        match &gpus.collect::<Vec<_>>()[..] {
            [] => host,
            gpus => format!("{}, beside {host}", gpus.join(", ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_is_told_before_its_host_and_decides_what_is_rounded() {
        let host = Machine {
            processor: "AMD EPYC".into(),
            gpus: Vec::new(),
            model: None,
            cores: 2,
            instruction_sets: Vec::new(),
            memory: None,
            system: "Linux".into(),
        };
        assert_eq!(host.short(), "AMD EPYC, 2 cores");
        let with_gpu = Machine { gpus: vec!["NVIDIA H200".into()], ..host.clone() };
        assert_eq!(with_gpu.short(), "NVIDIA H200, beside AMD EPYC, 2 cores");
        let gpus = ["NVIDIA H200", "NVIDIA A2", "NVIDIA H200"].map(str::to_owned).into();
        let told = Machine { gpus, ..host.clone() }.short();
        assert_eq!(told, "2 × NVIDIA H200, NVIDIA A2, beside AMD EPYC, 2 cores");
        assert!(host.rounds_like(&host) && !host.rounds_like(&with_gpu));
        // What was recorded before there were GPUs has none.
        let stored = serde_json::to_string(&host).expect("JSON");
        assert!(!stored.contains("gpus"), "{stored}");
        assert_eq!(serde_json::from_str::<Machine>(&stored).expect("a machine"), host);
    }
}
