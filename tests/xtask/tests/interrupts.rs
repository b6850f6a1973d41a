//! Ctrl-C ends the tool with the programs that it has started, and the exit code says so.

#![cfg(unix)]

use std::process::{Command, Output, Stdio};

use course_tests::signals::with_default_sigint;

use crate::*;

/// Runs the tool with a cargo that starts another program and hangs, but answers `cargo metadata`; sends the signal once cargo
/// runs, and checks that all these programs end.
fn signalled(signal: &str, flags: &[&str]) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let cargo = env!("CARGO");
    let script = format!(
        "[ \"$1\" != metadata ] || exec '{cargo}' \"$@\"\nsleep 300 &\necho $! >>\"$STARTED\"\nwait"
    );
    stand_in(folder.path().join("cargo"), &script).unwrap();
    let started = folder.path().join("started");
    let path = std::env::var("PATH").unwrap();
    let child = with_default_sigint(env!("CARGO_BIN_EXE_xtask"))
        .args(flags)
        .env("PATH", format!("{}:{path}", folder.path().display()))
        .env("CARGO", folder.path().join("cargo"))
        .env("STARTED", &started)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_until(|| fs::read_to_string(&started).is_ok_and(|text| text.ends_with('\n')));
    let sent = Command::new("kill").args(["-s", signal, &child.id().to_string()]).status();
    assert!(sent.unwrap().success());
    let since = Instant::now();
    let output = child.wait_with_output().unwrap();
    assert!(since.elapsed() < Duration::from_secs(60), "{flags:?} waits for cargo");
    let ids = fs::read_to_string(started).unwrap();
    assert_eq!(ids.lines().count(), 1, "{flags:?}: commands went on after it");
    // A signal that ends a process takes a moment.
    wait_until(|| !goes_on(ids.trim()));
    output
}

/// Whether there is such a process. An ended process stays in the table until its parent looks.
fn goes_on(id: &str) -> bool {
    let answer = Command::new("ps").args(["-o", "stat=", "-p", id]).output().unwrap();
    let state = String::from_utf8(answer.stdout).unwrap();
    !state.trim().is_empty() && !state.starts_with('Z')
}

#[test]
fn a_signal_ends_what_the_tool_runs() {
    for (signal, code, flags) in [
        ("INT", 130, &["walk", "--page", "ch02-all-reduce"][..]),
        ("TERM", 143, &["verify"]),
        ("INT", 130, &["outputs", "--check", "ch02-default"]),
    ] {
        let output = signalled(signal, flags);
        assert_eq!(output.status.code(), Some(code), "{flags:?}: {output:?}");
        let told = String::from_utf8_lossy(&output.stdout);
        assert!(!told.contains('✗') && output.stderr.is_empty(), "{flags:?}: {output:?}");
    }
}
