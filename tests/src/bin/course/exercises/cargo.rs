//! What cargo is asked, and what it answers.
//!
//! Only the fields that are used here. The crate `cargo_metadata` has them all, and asks serde_json for a
//! feature that the course's own programs do without: they would be compiled anew after every use of this
//! tool.

use std::ffi::OsString;
use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};
use serde::Deserialize;

use crate::shell;

/// What `cargo metadata` tells of a workspace.
#[derive(Debug, Deserialize)]
pub(super) struct Metadata {
    pub(super) packages: Vec<Package>,
    pub(super) workspace_root: PathBuf,
    pub(super) target_directory: PathBuf,
}

/// A member of the workspace.
#[derive(Debug, Deserialize)]
pub(super) struct Package {
    pub(super) name: String,
    pub(super) manifest_path: PathBuf,
    pub(super) edition: String,
    pub(super) targets: Vec<Target>,
}

/// Something that cargo can build.
#[derive(Debug, Deserialize)]
pub(super) struct Target {
    pub(super) name: String,
    pub(super) src_path: PathBuf,
}

/// A line of `--message-format=json`.
#[derive(Debug, Deserialize)]
#[serde(tag = "reason")]
pub(super) enum Message {
    #[serde(rename = "compiler-artifact")]
    Artifact { target: Target, executable: Option<PathBuf> },
    #[serde(rename = "compiler-message")]
    Compiler { message: Diagnostic },
    #[serde(other)]
    Other,
}

/// What the compiler has to say.
#[derive(Debug, Deserialize)]
pub(super) struct Diagnostic {
    pub(super) level: String,
    /// As it is told to people.
    pub(super) rendered: Option<String>,
    pub(super) spans: Vec<Place>,
    pub(super) children: Vec<Diagnostic>,
}

/// Where it is.
#[derive(Debug, Deserialize)]
pub(super) struct Place {
    pub(super) file_name: PathBuf,
}

/// The cargo that this tool was started by.
pub(crate) fn cargo(folder: &Path) -> Command {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let mut command = Command::new(program);
    command.current_dir(folder).stdin(Stdio::null());
    shell::forget_cargo(&mut command);
    command
}

/// Asks for the workspace that a folder is in.
///
/// # Errors
///
/// When there is none, with cargo's own words.
pub(super) fn metadata(folder: &Path) -> anyhow::Result<Metadata> {
    let mut command = cargo(folder);
    command.args(["metadata", "--no-deps", "--format-version=1"]);
    let output = command.output().context("cargo cannot be started")?;
    if !output.status.success() {
        let told = String::from_utf8_lossy(&output.stderr);
        let told = told.lines().next().unwrap_or("cargo metadata failed without a word");
        bail!("{}", told.trim_start_matches("error: "));
    }
    serde_json::from_slice(&output.stdout).context("what cargo metadata answers")
}

/// The messages of a build, as they come. A line that is no message, such as a print of a build script, is
/// left out.
pub(super) fn messages(answers: impl BufRead) -> impl Iterator<Item = std::io::Result<Message>> {
    let message = |line: &str| serde_json::from_str(line).ok();
    answers.lines().filter_map(move |line| line.map(|line| message(&line)).transpose())
}
