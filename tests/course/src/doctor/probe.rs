//! Runs other programs and searches for files, with a limit of time.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::process::{Group, How, Printed};

/// The longest wait for the answer of a program.
const PATIENCE: Duration = Duration::from_secs(5);

/// Returns the standard output of a program. Fails when the program cannot be started, fails or takes too long.
pub fn ask(program: impl AsRef<Path>, arguments: &[&str]) -> Result<String, String> {
    let name = program.as_ref().display().to_string();
    let told = |error: std::io::Error| format!("{name}: {error}");
    let answer = Printed::nothing().map_err(told)?;
    let mut command = Command::new(program.as_ref());
    command.args(arguments).stdout(answer.stream().map_err(told)?).stderr(Stdio::null());
    let group = Group::start(&mut command).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => format!("not found ({name} is not on the PATH)"),
        _ => format!("{name} cannot be started: {error}"),
    })?;
    let status = match group.wait(PATIENCE).map_err(told)? {
        How::Alone(status) => status,
        How::OutOfTime => {
            return Err(format!("{name} did not answer within {} s", PATIENCE.as_secs()));
        }
        How::Interrupted => return Err(format!("{name} was interrupted")),
        How::TooMuch(excess) => return Err(format!("{name} {excess}")),
    };
    let answer = answer.text().map_err(told)?.trim().to_owned();
    match (status.success(), answer.is_empty()) {
        (true, false) => Ok(answer),
        (true, true) => Err(format!("{name} answered nothing")),
        (false, _) => Err(format!("{name} failed ({status})")),
    }
}

pub fn gpu_answers() -> bool {
    ask("nvidia-smi", &["--list-gpus"]).is_ok()
}

pub fn first_line(text: String) -> String {
    text.lines().next().unwrap_or_default().trim().to_owned()
}

/// The folders of libraries: those of the loader, of CUDA, and the usual ones.
fn library_folders() -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> = Vec::new();
    for variable in ["LD_LIBRARY_PATH", "LIBRARY_PATH"] {
        if let Some(paths) = std::env::var_os(variable) {
            folders.extend(std::env::split_paths(&paths).filter(|p| !p.as_os_str().is_empty()));
        }
    }
    for variable in ["CUDA_HOME", "CUDA_PATH", "CUDA_ROOT"] {
        if let Some(root) = std::env::var_os(variable) {
            folders.extend(["lib64", "lib"].map(|lib| Path::new(&root).join(lib)));
        }
    }
    folders.extend(
        [
            "/usr/local/cuda/lib64",
            "/usr/lib/x86_64-linux-gnu",
            "/usr/lib/aarch64-linux-gnu",
            "/usr/lib64",
            "/usr/local/lib",
        ]
        .map(PathBuf::from),
    );
    folders
}

/// A file of a shared library, by the beginning of its name (`libnccl.so`).
pub fn library(name: &str) -> Result<String, String> {
    for folder in library_folders() {
        let Ok(entries) = std::fs::read_dir(&folder) else { continue };
        let mut files: Vec<PathBuf> = entries
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| {
                path.file_name().is_some_and(|file| file.to_string_lossy().starts_with(name))
            })
            .collect();
        // The longest name has the version: libnccl.so, libnccl.so.2, libnccl.so.2.28.3.
        files.sort_by_key(|path| path.as_os_str().len());
        if let Some(file) = files.pop() {
            return Ok(file.display().to_string());
        }
    }
    Err(format!("not found (no {name} in LD_LIBRARY_PATH, CUDA_HOME or the usual folders)"))
}
