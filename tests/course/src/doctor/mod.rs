//! `cargo course doctor`: the hardware and software of this machine, and the chapters that run here.
//!
//! A finding is a program that answered or a file that exists. Anything else is reported as "not found", with the places that were
//! searched or a remedy.

pub mod hardware;
pub mod probe;
mod software;

use harness::report::{columns, labelled, line, paragraph};

#[derive(Clone, Debug)]
struct Finding {
    what: &'static str,
    seen: Result<String, String>,
}

impl Finding {
    /// A finding, with a remedy if the thing was not found.
    fn new(what: &'static str, seen: Result<String, String>, hint: &str) -> Self {
        Self { what, seen: seen.map_err(|why| format!("{why}; {hint}")) }
    }
}

/// Prints all findings. A missing program is no failure.
pub fn run() -> anyhow::Result<()> {
    line("This machine")?;
    print(&[hardware::processor(), hardware::memory()])?;

    line("\nGPU")?;
    let gpu = hardware::gpus();
    let toolkit = software::cuda_toolkit();
    let libraries = [
        software::library("cuDNN", "libcudnn.so", "only --features cudnn needs it"),
        software::library("NCCL", "libnccl.so", "only --features nccl needs it"),
    ];
    print(&[gpu.clone(), toolkit.clone()])?;
    print(&libraries)?;

    line("\nOther tools")?;
    let mpi = "Open MPI or MPICH have it; ranks that are threads do not need it";
    print(&[
        software::program("MPI", "mpirun", mpi),
        software::program("mdBook", "mdbook", "cargo install-tools"),
    ])?;

    line("\nData")?;
    print(&[hardware::data()])?;

    line("\nWhat runs here")?;
    paragraph(
        "  All chapters run on this machine's CPU: devices are slices of it. Try\n    \
         cargo run --release -p scratch-data-parallel",
    )?;
    Ok(paragraph(format_args!("  {}", on_a_gpu(&gpu, &toolkit, &libraries)))?)
}

fn print(findings: &[Finding]) -> std::io::Result<()> {
    for Finding { what, seen } in findings {
        let (mark, text) = match seen {
            Ok(seen) => ('✓', seen),
            Err(why) => ('–', why),
        };
        line(labelled(&format!("  {mark} {what:<14} "), text, columns()))?;
    }
    Ok(())
}

fn on_a_gpu(gpu: &Finding, toolkit: &Finding, libraries: &[Finding; 2]) -> String {
    let features = ["cudnn", "nccl"].iter().zip(libraries).filter(|(_, it)| it.seen.is_ok());
    let features: String = features.map(|(feature, _)| format!(",{feature}")).collect();
    let run = "cargo run --release -p scratch-data-parallel \\\n      --features cuda";
    let text = match (gpu.seen.is_ok(), toolkit.seen.is_ok()) {
        (true, true) => {
            return format!("They can also run on the GPU:\n    {run}{features} -- --device cuda");
        }
        (true, false) => {
            "There is a GPU; to use it, install the CUDA toolkit (nvcc) and build with --features cuda"
        }
        (false, true) => {
            "The GPU builds compile here (--features cuda), but without a GPU they cannot run"
        }
        (false, false) => {
            "Runs on a GPU need an NVIDIA GPU with its driver, and the CUDA toolkit; no chapter needs one"
        }
    };
    text.to_owned()
}
