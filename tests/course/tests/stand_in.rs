//! Programs that tests put in the place of others, and signals.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long [`wait_until`] waits.
const PATIENCE: Duration = Duration::from_secs(60);

/// Writes a script for `sh`, as a program.
pub fn stand_in(path: impl AsRef<Path>, script: &str) -> io::Result<()> {
    let path = path.as_ref();
    fs::write(path, format!("#!/bin/sh\n{script}\n"))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))
}

/// Runs a program with a cargo that answers `cargo metadata`; for any other command, this cargo starts another program and
/// hangs. Sends the program a signal once cargo runs. Checks that the program ends, and so do the processes that cargo has started.
#[track_caller]
pub fn signalled(program: &mut Command, signal: &str) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let (cargo, started) = (folder.path().join("cargo"), folder.path().join("started"));
    let [real, path] = ["CARGO", "PATH"].map(|name| std::env::var(name).unwrap());
    let hangs = format!("sleep 300 &\necho $! >>'{}'\nwait", started.display());
    stand_in(&cargo, &format!("[ \"$1\" != metadata ] || exec '{real}' \"$@\"\n{hangs}")).unwrap();
    program.env("CARGO", &cargo).env("PATH", format!("{}:{path}", folder.path().display()));
    let child = program.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_until(|| fs::read_to_string(&started).is_ok_and(|text| text.ends_with('\n')));
    send(signal, child.id());
    let since = Instant::now();
    let output = child.wait_with_output().unwrap();
    assert!(since.elapsed() < PATIENCE, "{program:?} waits for cargo");
    let ids = fs::read_to_string(started).unwrap();
    assert_eq!(ids.lines().count(), 1, "{program:?}: commands went on after the signal");
    // A signal that ends a process takes a moment.
    wait_until(|| has_ended(&ids));
    output
}

/// Sends a signal to a process.
#[track_caller]
pub fn send(signal: &str, id: u32) {
    let sent = Command::new("kill").args(["-s", signal, &id.to_string()]).status();
    assert!(sent.unwrap().success());
}

/// Whether a process has ended. An ended process stays in the table until its parent looks.
pub fn has_ended(id: &str) -> bool {
    let answer = Command::new("ps").args(["-o", "stat=", "-p", id.trim()]).output();
    let state = String::from_utf8(answer.unwrap().stdout).unwrap();
    state.trim().is_empty() || state.starts_with('Z')
}

/// Returns once something has happened that another program does.
/// Panics when it has not after a minute.
#[track_caller]
pub fn wait_until(happened: impl Fn() -> bool) {
    let since = Instant::now();
    while !happened() {
        assert!(since.elapsed() < PATIENCE, "nothing happens");
        sleep(Duration::from_millis(10));
    }
}
