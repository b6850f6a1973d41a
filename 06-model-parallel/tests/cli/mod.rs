//! The program as a newcomer meets it: ways to split, results, files, and refusals.

mod ends;
mod files;
#[path = "../../../tests/src/refusals.rs"]
mod flags;
mod gpt;
mod held;
mod memory;
#[path = "../../../tests/src/program.rs"]
mod program;
mod refusals;
#[path = "../../../tests/src/runs.rs"]
mod runs;
#[path = "../../../tests/src/screen.rs"]
mod screen;
#[path = "../../../tests/src/signals.rs"]
mod signals;
mod ways;
mod width;
#[path = "../../../tests/src/wrapped.rs"]
mod wrapped;

use assert_cmd::Command;
use predicates::prelude::*;
use predicates::str::contains;
use serde_json::Value;

fn program(arguments: &[&str]) -> Command {
    runs::program(env!("CARGO_BIN_EXE_model-parallel"), arguments)
}

/// Few images, whose last batch is uneven and has fewer samples than some runs have micro-batches.
const SMALL: [&str; 5] =
    ["--data=synthetic", "--train-size=70", "--test-size=20", "--epochs=1", "--batch-size=32"];

/// Runs with `--metrics` and returns its lines of a kind.
fn metrics(arguments: &[&str], kind: &str) -> Vec<Value> {
    runs::of_kind(all_metrics(arguments), kind)
}

fn all_metrics(arguments: &[&str]) -> Vec<Value> {
    runs::measured(program(arguments)).1
}

#[test]
fn the_help_fits_on_a_screen() {
    screen::check_help(env!("CARGO_BIN_EXE_model-parallel"));
}

#[cfg(target_os = "linux")]
#[test]
fn lines_fit_into_a_terminal() {
    screen::check_width(
        env!("CARGO_BIN_EXE_model-parallel"),
        &[&SMALL[..], &["--device=cpu"]].concat(),
    );
    screen::check_width(
        env!("CARGO_BIN_EXE_model-parallel"),
        &[&SMALL[..], &["--device=cpu", "--mesh=2x2x2"]].concat(),
    );
    screen::check_width(env!("CARGO_BIN_EXE_model-parallel"), &["--draw"]);
}

#[test]
fn schedules_are_drawn_without_training() {
    program(&["--draw", "--schedule=1f1b,interleaved:2,zb-h1", "--devices=2", "--micro-batches=4"])
        .assert()
        .success()
        .stdout(contains("1F1B: 2 stages, 4 micro-batches"))
        .stdout(contains("stage 0   F0  F1  ··  ··  B0  B0  F2  B1  B1  F3  B2  B2  ··  B3  B3"))
        .stdout(contains(
            "15 units of time, idle (bubble) 20.0 %; each channel needs room for 1 message",
        ))
        .stdout(contains("Least idle time: ZB-H1, 7.7 %.\n"))
        .stdout(contains("interleaved 1F1B, 2 chunks"))
        .stdout(contains("ZB-H1"))
        .stdout(contains("epoch").not());
}

#[test]
fn help_tells_what_there_is() {
    program(&["--help"])
        .assert()
        .success()
        .stdout(contains("Usage: model-parallel"))
        .stdout(contains("--mesh <DxPxT>"))
        .stdout(contains("--cut <LAYER,…>"));
}
