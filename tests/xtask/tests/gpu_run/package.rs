//! A package as `.ci/gpu-pack` makes it, whose programs are shell scripts, on a machine whose GPU is one, too.

use std::process::Command;

use crate::*;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../.ci/gpu-run");
const MODULES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../.ci/gpu_run");

const PROGRAMS: [&str; 6] = [
    "xtask",
    "single-gpu",
    "params-and-allreduce",
    "scratch-data-parallel",
    "concise-wrapper",
    "model-parallel",
];
const TESTS: [&str; 4] = ["ops", "backends", "training", "tf32"];

/// Answers as one GPU does, whatever it is asked.
const NVIDIA_SMI: &str = "case $* in
*compute-apps*) ;;
*compute_cap*) echo 'Simulated, 580.1, 80000 MiB, 9.0, Disabled' ;;
*) echo '1980, 312.5, 41, 0x0000000000000001, 1024' ;;
esac";

pub(crate) struct Package {
    folder: TempDir,
}

impl Package {
    /// One of this profile, whose programs do nothing; none where there is no Python, which runs the script.
    pub(crate) fn of(profile: &str) -> Option<Self> {
        if !there_is_python() {
            return None;
        }
        let package = Self { folder: tempfile::tempdir().unwrap() };
        let root = package.root();
        for folder in ["tests", "peers", "bin", "gpu_run"] {
            fs::create_dir(root.join(folder)).unwrap();
        }
        fs::copy(SCRIPT, root.join("run")).unwrap();
        for module in fs::read_dir(MODULES).unwrap().map(|entry| entry.unwrap().path()) {
            if module.extension().is_some_and(|extension| extension == "py") {
                fs::copy(&module, root.join("gpu_run").join(module.file_name().unwrap())).unwrap();
            }
        }
        let told = serde_json::json!({
            "version": "1.2.3", "commit": "abcdef", "profile": profile, "compute_capability": "90",
        });
        fs::write(root.join("package.json"), told.to_string()).unwrap();
        PROGRAMS.iter().for_each(|name| package.program(name, ""));
        TESTS.iter().for_each(|name| package.program(&format!("tests/{name}"), ""));
        package.program("bin/nvidia-smi", NVIDIA_SMI);
        Some(package)
    }

    /// Puts another program there. Those in `bin` are found on the PATH.
    pub(crate) fn program(&self, name: &str, script: &str) {
        stand_in(self.root().join(name), script).unwrap();
    }

    pub(crate) fn run(&self, flags: &[&str]) -> assert_cmd::Command {
        assert_cmd::Command::from_std(self.command(flags))
    }

    pub(crate) fn command(&self, flags: &[&str]) -> Command {
        let path = std::env::var("PATH").unwrap();
        let mut command = Command::new("python3");
        command.current_dir(self.root()).arg("run").args(flags);
        command.env("PATH", format!("{}:{path}", self.root().join("bin").display()));
        // Programs here want no library of a toolkit's.
        command.env("CUDA_HOME", self.root());
        command
    }

    pub(crate) fn root(&self) -> &Path {
        self.folder.path()
    }

    /// What `results/results.json` says.
    pub(crate) fn results(&self) -> Value {
        let text = fs::read(self.root().join("results/results.json")).unwrap();
        serde_json::from_slice(&text).unwrap()
    }
}

/// Whether there is what runs the script; says so where there is not.
fn there_is_python() -> bool {
    let there = Command::new("python3").arg("--version").output();
    let there = there.is_ok_and(|answer| answer.status.success());
    if !there {
        eprintln!("SKIPPED: there is no Python");
    }
    there
}
