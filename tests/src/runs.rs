//! Programs that make several runs: the lines of `--metrics`, a small GPT, and Ctrl-C.

use std::fs::{self, File};
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use assert_cmd::Command;
use assert_cmd::assert::Assert;
use serde_json::Value;
use tempfile::{TempDir, tempdir};

use super::program::command;
#[cfg(unix)]
use super::signals::with_default_sigint;

/// A program on devices of one core. A drawing has no devices.
pub fn program(binary: &str, arguments: &[&str]) -> Command {
    let mut command = command(binary);
    if !arguments.contains(&"--draw") {
        command.args(["--device=cpu", "--threads-per-device=1"]);
    }
    command.args(arguments);
    command
}

/// Runs a program to its end. Returns its prints, and the lines of its `--metrics`.
pub fn measured(mut command: Command) -> (Assert, Vec<Value>) {
    let folder = tempdir().expect("a folder");
    let file = folder.path().join("metrics.jsonl");
    let printed = command.arg("--metrics").arg(&file).assert().success();
    let text = fs::read_to_string(&file).expect("a metrics file");
    let lines = text.lines().map(|line| serde_json::from_str(line).expect("a JSON line"));
    (printed, lines.collect())
}

/// The lines of a kind.
pub fn of_kind(mut lines: Vec<Value>, kind: &str) -> Vec<Value> {
    lines.retain(|line| line["kind"] == kind);
    lines
}

/// Flags of a small GPT, and a text of pairs of letters. The last batch of its windows is uneven.
pub fn small_gpt() -> (TempDir, Vec<String>) {
    let folder = tempdir().expect("a folder");
    let path = folder.path().join("letters.txt");
    let letter = |at: u32| b"to be\nor not"[(at * at / 5 % 12) as usize];
    fs::write(&path, (0..1500).map(letter).collect::<Vec<u8>>()).expect("a file");
    let flags = ["--model=gpt", "--width=16", "--heads=2", "--blocks=2", "--context=8"];
    let text = format!("--text={}", path.display());
    let run = ["--batch-size=40", "--epochs=1", &text];
    (folder, flags.into_iter().chain(run).map(str::to_owned).collect())
}

/// Starts a program, and presses Ctrl-C in the second epoch of the run whose name begins with `run`. Returns the prints.
#[cfg(unix)]
pub fn interrupted(program: &str, flags: &[&str], run: &str) -> String {
    let folder = tempdir().expect("a folder");
    let (metrics, told) = (folder.path().join("metrics"), folder.path().join("told"));
    let mut command = with_default_sigint(program);
    command.args(["--device=cpu", "--threads-per-device=1", "--epochs=1000"]).args(flags);
    command.arg("--metrics").arg(&metrics).stdout(File::create(&told).expect("a file"));
    let mut child = command.spawn().expect("the program");
    let read = |path: &Path| fs::read_to_string(path).unwrap_or_default();
    let name = format!("\"run\":\"{run}");
    while read(&metrics).lines().filter(|line| line.contains(&name)).count() < 2 {
        assert!(child.try_wait().expect("a child").is_none(), "it ended before the interrupt");
        sleep(Duration::from_millis(5));
    }
    let kill = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(kill.expect("kill").success());
    assert_eq!(child.wait().expect("an end").code(), Some(130));
    read(&told)
}
