//! The Python that the peers run in: made on request, found again later.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};
use harness::interrupt;
use harness::machine::default_data_folder;

use super::side::{PATIENCE, Programs, last_line};
use course::process;

/// The interpreter of the environment that `--set-up` makes.
pub(super) fn find() -> anyhow::Result<PathBuf> {
    let python = interpreter_in(&folder()?);
    if python.is_file() {
        return Ok(python);
    }
    bail!(
        "there is no Python with PyTorch at {}: `cargo xtask peers --set-up` makes one (up to 5 GB), \
         and --python names one of your own",
        python.display()
    )
}

pub(super) fn set_up(scripts: &Path) -> anyhow::Result<PathBuf> {
    let folder = folder()?;
    let python = interpreter_in(&folder);
    eprintln!("making a Python environment in {}", folder.display());
    run(Command::new("python3").args(["-m", "venv"]).arg(&folder))
        .context("python3 -m venv, which makes the environment")?;
    run(Command::new(&python)
        .args(["-m", "pip", "install", "--disable-pip-version-check", "--requirement"])
        .arg(scripts.join("requirements.txt")))
    .context("pip install, which fills the environment")?;
    Ok(python)
}

/// The versions of Python and of the packages that matter here, by name; of one that is not there, none.
pub(super) fn versions(programs: &Programs) -> anyhow::Result<BTreeMap<String, Option<String>>> {
    let python = programs.python.display();
    let answer = match last_line(&mut programs.script("versions.py"), PATIENCE) {
        Ok(answer) => answer,
        Err(_) if interrupt::requested() => return Err(process::interrupted()),
        Err(why) => {
            bail!("{python} has no PyTorch that works ({why}); --set-up makes one that has")
        }
    };
    serde_json::from_str(&answer).with_context(|| format!("{python} answered {answer:?}"))
}

/// Beside the folder that downloaded images are kept in.
fn folder() -> anyhow::Result<PathBuf> {
    let images = default_data_folder();
    let folder = images.map(|images| images.with_file_name("peers"));
    folder.context("this machine names no folder for such things; --python can name an interpreter")
}

fn interpreter_in(folder: &Path) -> PathBuf {
    folder.join(if cfg!(windows) { "Scripts/python.exe" } else { "bin/python" })
}

/// Runs a program that tells its progress, which is none of our results.
fn run(command: &mut Command) -> anyhow::Result<()> {
    let status = command.stdin(Stdio::null()).stdout(std::io::stderr()).status()?;
    if !status.success() {
        bail!("failed ({status})");
    }
    Ok(())
}
