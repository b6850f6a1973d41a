//! Runs that end before their time.

use predicates::prelude::*;
use predicates::str::contains;

use super::{SMALL, program};

/// In the middle of the second of three ways.
#[cfg(unix)]
#[test]
fn an_interrupt_ends_a_pipeline_and_leaves_the_rest_out() {
    let folder = tempfile::tempdir().expect("a folder");
    let (metrics, told) = (folder.path().join("metrics"), folder.path().join("told"));
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_model-parallel"));
    command.args(["--device=cpu", "--threads-per-device=1"]).args(&SMALL[..3]);
    command.args(["--epochs=1000", "--widths=20,18", "--schedule=gpipe,1f1b", "--batch-size=32"]);
    command.arg("--metrics").arg(&metrics);
    command.stdout(std::fs::File::create(&told).expect("a file"));
    let mut child = command.spawn().expect("the program");
    let read = |path: &std::path::Path| std::fs::read_to_string(path).unwrap_or_default();
    let begun = || read(&metrics).lines().filter(|line| line.contains("\"run\":\"GPipe")).count();
    while begun() < 2 {
        assert!(child.try_wait().expect("a child").is_none(), "it ended before the interrupt");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let kill = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(kill.expect("kill").success());
    assert_eq!(child.wait().expect("an end").code(), Some(130));
    let told = read(&told);
    for text in ["left out after the interrupt", "(interrupted after ", "MB held by a device"] {
        assert_eq!(told.matches(text).count(), 1, "{text:?} once in:\n{told}");
    }
    // A part of the training is not compared with the whole: only its first step is.
    let line = told.lines().filter(|line| line.starts_with("GPipe") && line.contains('×'));
    let fields: Vec<&str> = line.flat_map(str::split_whitespace).collect();
    assert!(matches!(fields[..], [.., first, "–", _] if first.contains('e')), "{told}");
}

#[test]
fn a_loss_that_runs_away_is_told_once() {
    program(&[&SMALL[..], &["--widths=20,18", "--lr=1e30", "--schedule=gpipe"]].concat())
        .assert()
        .code(1)
        .stderr(contains("the loss is"))
        .stderr(contains("panicked").not());
}
