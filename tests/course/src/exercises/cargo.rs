//! Calls of cargo, and its messages.
//!
//! The crate `cargo_metadata` needs a feature of serde_json, with which the stages would be compiled again.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};
use serde_json::Value;

use super::tree::HERE;
use crate::process::{Group, How, Printed};

pub const NO_CARGO: &str = "cargo cannot be started; it comes with Rust and has to be on the PATH";

/// The cargo that has started this tool, for every command in the folder of the user: there, relative paths in the settings have
/// the meaning that they have for the user.
pub fn cargo() -> Command {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let mut command = Command::new(program);
    command.stdin(Stdio::null());
    forget_cargo(&mut command);
    command
}

/// Removes the variables that cargo has set for this tool.
///
/// The build script of a dependency reads these variables. If they change, cargo compiles the dependency again, now and at the
/// learner's next command.
pub fn forget_cargo(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        let mut prefixes = ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "CARGO_CRATE_"].iter();
        if prefixes.any(|prefix| name.to_string_lossy().starts_with(prefix)) {
            command.env_remove(&name);
        }
    }
}

pub fn metadata() -> anyhow::Result<Value> {
    let mut command = cargo();
    command.args(["metadata", "--no-deps", "--format-version=1"]);
    let output = command.output().context(NO_CARGO)?;
    if !output.status.success() {
        // The message may have several lines, the last of them with the remedy.
        let told = String::from_utf8_lossy(&output.stderr);
        match told.trim().trim_start_matches("error: ") {
            told if told.contains("could not find `Cargo.toml`") => bail!("{HERE}: {told}"),
            told => bail!("cargo metadata failed: {told}"),
        }
    }
    serde_json::from_slice(&output.stdout).context("what cargo metadata answers")
}

#[derive(Debug)]
pub struct Build {
    pub how: How,
    /// The lines of JSON, one for each message.
    pub messages: Vec<Value>,
    /// The output of cargo for people. Empty if a terminal has shown the output.
    pub said: String,
}

impl Build {
    pub fn succeeded(&self) -> bool {
        matches!(self.how, How::Alone(status) if status.success())
    }

    /// The program that cargo has made of a target.
    pub fn executable(&self, target: &str) -> Option<PathBuf> {
        let mut of_target = self.messages.iter().filter(|it| it["target"]["name"] == target);
        of_target.find_map(|message| message["executable"].as_str()).map(PathBuf::from)
    }
}

/// Has cargo build with a `--message-format` of JSON, as long as the result is `wanted`. Ctrl-C ends the build, with the
/// compilers that cargo has started.
pub fn build(
    command: &mut Command,
    to_terminal: bool,
    wanted: &dyn Fn() -> bool,
) -> anyhow::Result<Build> {
    let (stdout, stderr) = (Printed::nothing()?, Printed::nothing()?);
    command.stdout(stdout.stream()?);
    if !to_terminal {
        command.stderr(stderr.stream()?);
    }
    // The first build has no limit of time.
    let end = || Ok((!wanted()).then_some(How::Interrupted));
    let how = Group::start(command).context(NO_CARGO)?.wait_unless(Duration::MAX, end)?;
    // A build script may print other lines.
    let message = |line: &str| serde_json::from_str(line).ok();
    let messages = stdout.text()?.lines().filter_map(message).collect();
    Ok(Build { how, messages, said: stderr.text()? })
}
