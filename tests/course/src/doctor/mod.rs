//! `cargo course doctor`: the hardware and software of this machine, and the chapters that run here.
//!
//! A finding is a program that answered or a file that exists. Anything else is reported as "not found", with the places that were
//! searched or a remedy.

mod data;
pub mod hardware;
pub mod probe;
mod software;

use harness::report::line;

#[derive(Clone, Debug)]
struct Finding {
    what: &'static str,
    seen: Result<String, String>,
}

impl Finding {
    /// Adds a remedy if the thing was not found.
    fn or_hint(mut self, hint: &str) -> Self {
        self.seen = self.seen.map_err(|why| format!("{why}; {hint}"));
        self
    }

    fn is_there(&self) -> bool {
        self.seen.is_ok()
    }
}

/// Prints all findings. A missing program is no failure.
pub fn run() -> anyhow::Result<()> {
    line("This machine")?;
    print(&[hardware::processor(), hardware::memory()])?;

    line("\nGPU")?;
    let gpu = hardware::gpus();
    let toolkit = software::cuda_toolkit();
    let libraries = [software::cudnn(), software::nccl()];
    print(&[gpu.clone(), toolkit.clone()])?;
    print(&libraries)?;

    line("\nOther tools")?;
    print(&[software::mpi(), software::mdbook()])?;

    line("\nData")?;
    print(&[data::data()])?;

    line("\nWhat runs here")?;
    for text in verdict(&gpu, &toolkit, &libraries) {
        line(format_args!("  {text}"))?;
    }
    Ok(())
}

fn print(findings: &[Finding]) -> std::io::Result<()> {
    for Finding { what, seen } in findings {
        match seen {
            Ok(seen) => line(format_args!("  ✓ {what:<14} {seen}"))?,
            Err(why) => line(format_args!("  – {what:<14} {why}"))?,
        }
    }
    Ok(())
}

fn verdict(gpu: &Finding, toolkit: &Finding, libraries: &[Finding; 2]) -> Vec<String> {
    let mut said = vec![
        "All chapters run on this machine's CPU: devices are slices of it. Try\n    \
         cargo run --release -p scratch-data-parallel"
            .to_owned(),
    ];
    let [cudnn, nccl] = libraries;
    said.push(match (gpu.is_there(), toolkit.is_there()) {
        (true, true) => {
            let with = |feature, there: bool| if there { feature } else { "" };
            format!(
                "They can also run on the GPU:\n    \
                 cargo run --release -p scratch-data-parallel --features cuda{}{} -- --device cuda",
                with(",cudnn", cudnn.is_there()),
                with(",nccl", nccl.is_there()),
            )
        }
        (true, false) => {
            "There is a GPU; to use it, install the CUDA toolkit (nvcc) and build with \
                          --features cuda"
                .to_owned()
        }
        (false, true) => {
            "The GPU builds compile here (--features cuda), but without a GPU they cannot run"
                .to_owned()
        }
        (false, false) => {
            "Runs on a GPU need an NVIDIA GPU with its driver, and the CUDA toolkit; \
                           no chapter needs one"
                .to_owned()
        }
    });
    said
}
