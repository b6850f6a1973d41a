//! Ctrl-C ends the tool with what it has started, and the exit code says so.

#![cfg(unix)]

use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;

use course_tests::signals::with_default_sigint;

use crate::*;

/// Tells that it was started, starts somebody else, and goes on for longer than anybody waits.
const HANGS: &str = "sleep 300 &\necho $! >>\"$STARTED\"\nwait";

/// A folder with a program of this name, which does this and then hangs.
fn program(name: &str, does: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    stand_in(folder.path().join(name), &format!("{does}\n{HANGS}")).unwrap();
    folder
}

/// Starts the tool, and presses Ctrl-C as soon as the program has been started.
fn interrupted(folder: &Path, flags: &[&str]) -> Output {
    signalled(folder, flags, "INT")
}

fn signalled(folder: &Path, flags: &[&str], signal: &str) -> Output {
    let started = folder.join("started");
    let path = std::env::var("PATH").unwrap();
    let child = with_default_sigint(env!("CARGO_BIN_EXE_xtask"))
        .args(flags)
        .env("PATH", format!("{}:{path}", folder.display()))
        .env("CARGO", folder.join("cargo"))
        .env("STARTED", &started)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_until(|| fs::read_to_string(&started).is_ok_and(|text| text.ends_with('\n')));
    send(signal, &child);
    child.wait_with_output().unwrap()
}

fn send(signal: &str, child: &Child) {
    let status = Command::new("kill").args(["-s", signal, &child.id().to_string()]).status();
    assert!(status.unwrap().success());
}

/// Those that the program started: as many as it was started times. All have to be gone.
fn started(folder: &Path) -> usize {
    let ids = fs::read_to_string(folder.join("started")).unwrap();
    let asked = Instant::now();
    for id in ids.lines() {
        // A signal that ends a process takes a moment; what was not sent one goes on for much longer.
        while let Some(state) = goes_on(id) {
            assert!(asked.elapsed() < Duration::from_secs(2), "process {id} goes on: {state}");
            sleep(Duration::from_millis(10));
        }
    }
    ids.lines().count()
}

fn goes_on(id: &str) -> Option<String> {
    let answer = Command::new("ps").args(["-o", "stat=", "-p", id]).output().unwrap();
    let state = String::from_utf8(answer.stdout).unwrap();
    // A process that is ended stays in the table until whoever inherits it looks.
    (!state.trim().is_empty() && !state.starts_with('Z')).then_some(state)
}

#[test]
fn a_walk_ends_with_the_command_that_runs() {
    let folder = program("cargo", "");
    let output = interrupted(folder.path(), &["walk", "--page", "ch02-all-reduce"]);
    let (told, complaint) = (String::from_utf8_lossy(&output.stdout), &output.stderr);
    assert_eq!(output.status.code(), Some(130), "{told}");
    assert!(!told.contains('✗') && complaint.is_empty(), "{told}");
    assert_eq!(started(folder.path()), 1, "commands went on after it");
}

#[test]
fn a_build_is_not_waited_for() {
    let cargo = std::env::var("CARGO").unwrap();
    let answers = format!("case $1 in metadata) exec '{cargo}' \"$@\" ;; esac");
    for flags in [&["verify"][..], &["soak", "ring"]] {
        let folder = program("cargo", &answers);
        let since = Instant::now();
        let output = signalled(folder.path(), flags, "TERM");
        assert!(since.elapsed() < Duration::from_secs(60), "{flags:?} waits for cargo");
        assert_eq!(output.status.code(), Some(143), "{flags:?}: {output:?}");
        assert!(output.stdout.is_empty() && output.stderr.is_empty(), "{output:?}");
        assert_eq!(started(folder.path()), 1, "{flags:?}");
    }
}

#[test]
fn a_check_of_an_output_ends_with_its_command() {
    let folder = program("cargo", "");
    let path = root().join("book/outputs");
    let first = fs::read_dir(path).unwrap().filter_map(|entry| {
        let path = entry.unwrap().path();
        let text = fs::read_to_string(&path).ok()?;
        let name = path.file_stem()?.to_str()?.to_owned();
        (text.starts_with("$ cargo ") && !name.starts_with("gpu-")).then_some(name)
    });
    let name = first.min().unwrap();
    let output = interrupted(folder.path(), &["outputs", "--check", &name]);
    assert_eq!(output.status.code(), Some(130));
    assert!(output.stdout.is_empty() && output.stderr.is_empty(), "{output:?}");
    assert_eq!(started(folder.path()), 1);
}
