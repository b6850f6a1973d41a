//! The machine that this runs on, and the day: what is measured means little without it.

use anyhow::anyhow;
use devices::available_cores;
use xtask::Machine;

use course::doctor::hardware::{cpu_model, cpu_name, instruction_sets, total_memory};
use course::doctor::probe::ask;

pub(crate) fn this_machine() -> Machine {
    Machine {
        processor: cpu_name().unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
        gpus: Vec::new(),
        model: cpu_model(),
        cores: available_cores(),
        instruction_sets: instruction_sets().into_iter().map(str::to_owned).collect(),
        memory: total_memory(),
        system: ask("uname", &["-srm"])
            .unwrap_or_else(|_| format!("{} {}", std::env::consts::OS, std::env::consts::ARCH)),
    }
}

/// The one that this runs on, with its GPUs.
pub(crate) fn this_machine_with_gpus() -> anyhow::Result<Machine> {
    let names = ask("nvidia-smi", &["--query-gpu=name", "--format=csv,noheader"]);
    let names = names.map_err(|why| anyhow!("the names of this machine's GPUs: {why}"))?;
    Ok(Machine { gpus: names.lines().map(str::to_owned).collect(), ..this_machine() })
}

/// The day, as the system's own program tells it.
pub(crate) fn today() -> Option<String> {
    ask("date", &["+%Y-%m-%d"]).ok()
}
