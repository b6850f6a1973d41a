//! Processor, memory, GPUs, and the images of Fashion-MNIST in the folder of a run without `--data-dir`.

use std::fs;
use std::path::Path;

use harness::cli::DATA_FOLDER;
use harness::images::{self, Error, FASHION_MNIST, Split};
use harness::machine::{self, available_cores, fewer_physical_cores};
use harness::report::{counted, thousands};

use super::Finding;
use super::probe::ask;

/// Cores that this process may use, the processor's name, and the instruction sets that matter here.
pub(super) fn processor() -> Finding {
    let shared = fewer_physical_cores().map(|cores| format!(" (hyperthreads of {cores})"));
    let name = processor_name();
    let cores = counted(available_cores(), "core") + &shared.unwrap_or_default();
    let seen = format!("{cores}, {name}, {}", instruction_sets().join(" "));
    Finding { what: "processor", seen: Ok(seen.trim_end_matches(", ").to_owned()) }
}

/// The name of the processor, or of its architecture if the system does not report the name.
pub fn processor_name() -> String {
    processor_field("model name").unwrap_or_else(|| std::env::consts::ARCH.to_owned())
}

/// A field of Linux's description of the processor.
pub fn processor_field(name: &str) -> Option<String> {
    let info = fs::read_to_string("/proc/cpuinfo").ok()?;
    let mut fields = info.lines().filter_map(|line| line.split_once(':'));
    fields.find(|(field, _)| field.trim() == name).map(|(_, value)| value.trim().to_owned())
}

/// The vector instruction sets for which the matrix product has kernels.
pub fn instruction_sets() -> Vec<&'static str> {
    let mut sets = Vec::new();
    #[cfg(target_arch = "x86_64")]
    {
        let known = [
            ("AVX2", is_x86_feature_detected!("avx2")),
            ("FMA", is_x86_feature_detected!("fma")),
            ("AVX-512", is_x86_feature_detected!("avx512f")),
        ];
        sets.extend(known.into_iter().filter(|(_, there)| *there).map(|(name, _)| name));
    }
    #[cfg(target_arch = "aarch64")]
    if std::arch::is_aarch64_feature_detected!("neon") {
        sets.push("NEON");
    }
    sets
}

/// The memory in the words of the programs that refuse a run without enough of it.
pub(super) fn memory() -> Finding {
    let memory = machine::memory().ok_or_else(|| "the system does not tell".to_owned());
    let seen = memory.map(|memory| format!("{}, {} free", memory.total, memory.free));
    Finding { what: "memory", seen }
}

pub fn total_memory() -> Option<String> {
    let bytes = machine::memory()?.total.bytes as f64;
    Some(format!("{:.1} GiB", bytes / f64::from(1 << 30)))
}

pub(super) fn gpus() -> Finding {
    let query = ["--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"];
    let seen = ask("nvidia-smi", &query).map(|list| list.lines().collect::<Vec<_>>().join("; "));
    Finding::new("NVIDIA GPUs", seen, "it comes with the driver")
}

pub(super) fn data() -> Finding {
    let seen = match machine::data_folder() {
        None => Err(format!("this machine names no folder for downloads; {DATA_FOLDER} can")),
        Some(folder) => images_in(&folder),
    };
    Finding { what: "Fashion-MNIST", seen }
}

fn images_in(folder: &Path) -> Result<String, String> {
    let place = folder.display();
    images::missing(folder, &FASHION_MNIST).map_err(|error| format!("{error:#}"))?;
    // Whole files are read, as a run does, so a malformed one shows.
    let count = |split| match images::read(folder, split, usize::MAX) {
        Ok((_, labels)) => Ok(thousands(labels.len())),
        Err(Error::Missing { .. }) => Err(format!(
            "not in {place}: a run tries to download it, and else uses synthetic garments"
        )),
        Err(error) => Err(format!("{error:#}")),
    };
    let (train, test) = (count(Split::Train)?, count(Split::Test)?);
    Ok(format!("{place}: {train} training and {test} test images"))
}
