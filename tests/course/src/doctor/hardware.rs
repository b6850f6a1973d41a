//! Processor, memory, GPUs.

use std::num::NonZeroUsize;
use std::thread::available_parallelism;

use harness::report::counted;

use super::Finding;
use super::probe::ask;

/// Cores that this process may use, the processor's name, and the instruction sets that matter here.
pub(super) fn processor() -> Finding {
    let cores = counted(available_parallelism().map_or(1, NonZeroUsize::get), "core");
    let name = cpu_name().unwrap_or_else(|| std::env::consts::ARCH.to_owned());
    let sets = instruction_sets();
    let sets = if sets.is_empty() { String::new() } else { format!(", {}", sets.join(" ")) };
    Finding { what: "processor", seen: Ok(format!("{cores}, {name}{sets}")) }
}

pub fn cpu_name() -> Option<String> {
    let info = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let model = info.lines().find(|line| line.starts_with("model name"))?;
    Some(model.split_once(':')?.1.trim().to_owned())
}

/// Numbers that distinguish processors of the same name: `family 25 model 17, cache 1024 KB`. `None` if the system has none.
pub fn cpu_model() -> Option<String> {
    let info = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let field = |name: &str| {
        let line = info.lines().find(|line| line.split(':').next().map(str::trim) == Some(name))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    Some(format!(
        "family {} model {}, cache {}",
        field("cpu family")?,
        field("model")?,
        field("cache size")?
    ))
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

pub(super) fn memory() -> Finding {
    let seen = total_memory().ok_or_else(|| "the system does not tell".to_owned());
    Finding { what: "memory", seen }
}

pub fn total_memory() -> Option<String> {
    let info = std::fs::read_to_string("/proc/meminfo").ok()?;
    let total = info.lines().find(|line| line.starts_with("MemTotal:"))?;
    let kibibytes: f64 = total.split_whitespace().nth(1)?.parse().ok()?;
    Some(format!("{:.1} GiB", kibibytes / f64::from(1 << 20)))
}

pub(super) fn gpus() -> Finding {
    let query = ["--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"];
    let seen = ask("nvidia-smi", &query).map(|list| list.lines().collect::<Vec<_>>().join("; "));
    Finding { what: "NVIDIA GPUs", seen }.or_hint("it comes with the driver")
}
