//! What cargo is asked, and what it answers.
//!
//! Only the fields that are used here. The crate `cargo_metadata` has them all, and asks serde_json for a
//! feature that the course's own programs do without: they would be compiled anew after every use of this
//! tool.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};
use serde::Deserialize;

use super::tree::HERE;
use crate::process::{Group, How, Printed};
use crate::shell;

#[derive(Debug, Deserialize)]
pub(super) struct Metadata {
    pub(super) packages: Vec<Package>,
    pub(super) workspace_root: PathBuf,
    pub(super) target_directory: PathBuf,
}

#[derive(Debug, Deserialize)]
pub(super) struct Package {
    pub(super) name: String,
    pub(super) manifest_path: PathBuf,
    pub(super) edition: String,
    pub(super) targets: Vec<Target>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Target {
    pub(super) name: String,
    pub(super) src_path: PathBuf,
}

#[derive(Debug, Deserialize)]
#[serde(tag = "reason")]
pub(super) enum Message {
    #[serde(rename = "compiler-artifact")]
    Artifact { target: Target, executable: Option<PathBuf>, fresh: bool },
    #[serde(rename = "compiler-message")]
    Compiler { target: Target, message: Diagnostic },
    #[serde(other)]
    Other,
}

#[derive(Debug, Deserialize)]
pub(super) struct Diagnostic {
    pub(super) level: String,
    pub(super) rendered: Option<String>,
    pub(super) spans: Vec<Place>,
    pub(super) children: Vec<Diagnostic>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Place {
    pub(super) file_name: PathBuf,
}

pub(super) const NO_CARGO: &str =
    "cargo cannot be started; it comes with Rust and has to be on the PATH";

/// The cargo that this tool was started by.
pub(crate) fn cargo(folder: &Path) -> Command {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let mut command = Command::new(program);
    command.current_dir(folder).stdin(Stdio::null());
    shell::forget_cargo(&mut command);
    command
}

pub(super) fn metadata(folder: &Path) -> anyhow::Result<Metadata> {
    let mut command = cargo(folder);
    command.args(["metadata", "--no-deps", "--format-version=1"]);
    let output = command.output().context(NO_CARGO)?;
    if !output.status.success() {
        let told = String::from_utf8_lossy(&output.stderr);
        let told = told.lines().next().unwrap_or("without a word").trim_start_matches("error: ");
        match told.contains("could not find `Cargo.toml`") {
            true => bail!("{HERE}: {told}"),
            false => bail!("cargo metadata failed: {told}"),
        }
    }
    serde_json::from_slice(&output.stdout).context("what cargo metadata answers")
}

#[derive(Debug)]
pub(super) struct Build {
    pub(super) how: How,
    pub(super) messages: Vec<Message>,
    /// What cargo said to people; nothing where it said so itself, to a terminal.
    pub(super) said: String,
}

impl Build {
    pub(super) fn succeeded(&self) -> bool {
        matches!(self.how, How::Alone(status) if status.success())
    }
}

/// Has cargo build with a `--message-format` of JSON. Ctrl-C ends it, with the compilers that it has started.
pub(super) fn build(command: &mut Command, to_terminal: bool) -> anyhow::Result<Build> {
    let (stdout, stderr) = (Printed::nothing()?, Printed::nothing()?);
    command.stdout(stdout.stream()?);
    if !to_terminal {
        command.stderr(stderr.stream()?);
    }
    // It takes as long as it takes: on a slow machine, all of the course may have to be compiled.
    let how = Group::start(command).context(NO_CARGO)?.wait(Duration::MAX)?;
    // A line that is no message, such as a print of a build script, is left out.
    let message = |line: &str| serde_json::from_str(line).ok();
    let messages = stdout.text()?.lines().filter_map(message).collect();
    Ok(Build { how, messages, said: stderr.text()? })
}
