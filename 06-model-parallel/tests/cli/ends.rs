//! Runs that end before their time.

use predicates::prelude::*;
use predicates::str::contains;

#[cfg(unix)]
use super::runs::interrupted;
#[cfg(unix)]
use super::wrapped::in_one_line;
use super::{SMALL, program};

/// In the middle of the second way, of one that has others after it; and on all ranks of a mesh at once.
#[cfg(unix)]
#[test]
fn an_interrupt_ends_a_pipeline_and_leaves_the_rest_out() {
    for (flags, run, left_out) in [
        (&["--schedule=gpipe,1f1b"][..], "GPipe", 1),
        (&["--mesh=1x2x2", "--micro-batches=4"], "1F1B", 0),
        (&["--mesh=1x1x3"], "tensor parallel", 0),
    ] {
        let small = ["--widths=20,18", "--batch-size=32"];
        let flags = [&SMALL[..3], &small, flags].concat();
        let told = interrupted(env!("CARGO_BIN_EXE_model-parallel"), &flags, run);
        let told_in_one_line = in_one_line(&told);
        for (text, times) in [
            ("left out after the interrupt", left_out),
            (", interrupted after ", 1),
            ("Memory of each device", 1),
            ("A run was interrupted", 1),
        ] {
            assert_eq!(told_in_one_line.matches(text).count(), times, "{text:?} in:\n{told}");
        }
        // A part of the training is not compared with the whole: only its first step is.
        let errors = told.split("\nWeights: ").nth(1).expect("a table of errors");
        let mut lines = errors.lines().filter(|line| line.starts_with(run));
        let fields: Vec<&str> = lines.next().expect("a row").split_whitespace().collect();
        assert!(matches!(fields[..], [.., first, "–"] if first.contains('e')), "{told}");
    }
}

#[test]
fn a_loss_that_runs_away_is_told_once() {
    program(&[&SMALL[..], &["--widths=20,18", "--lr=1e30", "--schedule=gpipe"]].concat())
        .assert()
        .code(1)
        .stderr(contains("the loss is"))
        .stderr(contains("panicked").not());
}
