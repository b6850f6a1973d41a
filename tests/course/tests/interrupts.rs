//! Ctrl-C ends the tool with the build that it has started, and the exit code says so.

use std::process::{Command, Stdio};

use super::exercises::fixture::Checkout;
use super::stand_in::wait_until;
use crate::*;

#[test]
fn a_build_is_not_waited_for() {
    let (checkout, folder) = (Checkout::new(), tempfile::tempdir().unwrap());
    let started = folder.path().join("started");
    let cargo = std::env::var("CARGO").unwrap();
    let script = format!(
        "case $1 in metadata) exec '{cargo}' \"$@\" ;; esac\nsleep 300 &\necho $! >>'{}'\nwait",
        started.display()
    );
    stand_in(folder.path().join("cargo"), &script).unwrap();
    let child = Command::new(env!("CARGO_BIN_EXE_course"))
        .args(["check", "ring"])
        .current_dir(checkout.path(""))
        .env("CARGO", folder.path().join("cargo"))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_until(|| fs::read_to_string(&started).is_ok_and(|text| text.ends_with('\n')));
    let since = Instant::now();
    let id = child.id().to_string();
    assert!(Command::new("kill").args(["-s", "TERM", &id]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    assert!(since.elapsed() < Duration::from_secs(60), "it waits for cargo");
    assert_eq!(output.status.code(), Some(143), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    assert!(!String::from_utf8_lossy(&output.stderr).contains("error"), "{output:?}");
    let sleeper = fs::read_to_string(&started).unwrap();
    wait_until(|| has_ended(&sleeper));
}
