//! What PyTorch takes for the same step: recorded, not measured by this run.
//!
//! `cargo course peers` measures both in turn and stores the table; what it stored when this program was
//! compiled is told at the end of a comparison, with the machine it is from.

use std::fmt;

use serde::Deserialize;

/// The stored table.
const TABLE: &str = include_str!("../../book/data/peers-cpu.json");

/// How our steps of LeNet compare, on the machine where that was measured.
#[derive(Debug)]
pub(crate) struct Recorded {
    processor: String,
    torch: String,
    one_core: f64,
    two_cores: f64,
    two_devices: f64,
}

#[derive(Deserialize)]
struct Table {
    machine: Machine,
    versions: Versions,
    rows: Vec<Row>,
}

#[derive(Deserialize)]
struct Machine {
    processor: String,
}

#[derive(Deserialize)]
struct Versions {
    torch: String,
}

#[derive(Deserialize)]
struct Row {
    topic: String,
    threads: String,
    peers: Vec<Peer>,
}

#[derive(Deserialize)]
struct Peer {
    side: String,
    ratio: Option<Ratio>,
}

#[derive(Deserialize)]
struct Ratio {
    median: f64,
}

impl Recorded {
    /// The stored ratios; `None` where the table does not hold them all.
    pub(crate) fn load() -> Option<Self> {
        let Table { machine, versions, rows } = serde_json::from_str(TABLE).ok()?;
        let ratio = |topic: &str, threads: &str, side: &str| {
            let row = rows.iter().find(|row| row.topic == topic && row.threads == threads)?;
            let peer = row.peers.iter().find(|peer| peer.side == side)?;
            peer.ratio.as_ref().map(|ratio| ratio.median)
        };
        Some(Self {
            one_core: ratio("lenet-step", "1", "PyTorch")?,
            two_cores: ratio("lenet-step", "2", "PyTorch")?,
            two_devices: ratio("data-parallel-step", "2 × 1", "PyTorch DDP, Gloo")?,
            processor: machine.processor,
            torch: versions.torch,
        })
    }
}

impl fmt::Display for Recorded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { processor, torch, one_core, two_cores, two_devices } = self;
        write!(
            f,
            "a step beside PyTorch {torch}, as recorded on {processor} by `cargo course peers`: \
             {one_core:.2} of its time on one core, {two_cores:.2} on two; two devices {two_devices:.2} \
             of DDP's"
        )
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    #[test]
    fn the_stored_table_has_what_is_told() {
        let told = Recorded::load().unwrap().to_string();
        assert!(told.contains("PyTorch 2."), "{told}");
    }

    /// They stand beside the table.
    #[test]
    fn recorded_outputs_and_the_readme_tell_what_is_stored_now() {
        let course = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let outputs = fs::read_dir(course.join("book/outputs")).unwrap();
        let outputs = outputs.map(|entry| entry.unwrap().path());
        let expected = Recorded::load().unwrap().to_string();
        let mut found = 0;
        for path in outputs.chain([course.join("README.md")]) {
            let text = fs::read_to_string(&path).unwrap();
            for line in text.lines().filter(|line| line.starts_with("a step beside PyTorch")) {
                assert_eq!(line, expected, "{}", path.display());
                found += 1;
            }
        }
        assert!(found > 1, "at least one output and the README tell it");
    }
}
