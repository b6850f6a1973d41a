//! The program as a newcomer meets it: strategies, results, drawings, files, and refusals.

#[path = "../../../tests/src/refusals.rs"]
mod flags;
#[path = "../../../tests/src/program.rs"]
mod program;
mod refusals;
mod results;
#[path = "../../../tests/src/runs.rs"]
mod runs;
#[path = "../../../tests/src/screen.rs"]
mod screen;
#[path = "../../../tests/src/signals.rs"]
pub mod signals;
#[path = "../../../tests/src/wrapped.rs"]
mod wrapped;

use assert_cmd::Command;
use predicates::prelude::*;
use predicates::str::contains;

fn program(arguments: &[&str]) -> Command {
    runs::program(env!("CARGO_BIN_EXE_sharded-state"), arguments)
}

/// Few images, whose last batch is uneven, and small layers.
const SMALL: [&str; 6] = [
    "--data=synthetic",
    "--train-size=70",
    "--test-size=20",
    "--epochs=1",
    "--batch-size=32",
    "--widths=20,18,16",
];

#[test]
fn the_help_fits_on_a_screen() {
    screen::check_help(env!("CARGO_BIN_EXE_sharded-state"));
}

#[test]
fn lines_fit_into_a_terminal() {
    let program = env!("CARGO_BIN_EXE_sharded-state");
    let combined = "--strategy=zero1+recompute,zero3+prefetch+recompute";
    for further in [&[][..], &[combined, "--recompute=2", "--devices=4"], &["--mesh=2x1x2"]] {
        screen::check_width(program, &[&SMALL[..], &["--device=cpu"], further].concat());
    }
    screen::check_width(program, &["--draw"]);
    screen::check_width(program, &["--draw", "--widths=9,9,9,9,9,9,9,9,9,9,9,9", combined]);
}

#[test]
fn lists_are_drawn_without_training() {
    let draw = ["--draw", "--strategy=zero2,zero3+prefetch,zero3+recompute", "--widths=9,9"];
    program(&draw)
        .assert()
        .success()
        .stdout(contains("ZeRO 2: 3 units, 1 micro-batch, 2 devices; time 13, idle 8 %\n"))
        .stdout(contains("F0 F1 F2 B2 C2 B1 C1 U2 G2 B0 C0 U1 p2 G1 U0 p1 G0 p0\n"))
        .stdout(contains("computing      ·  F0 F1 F2 B2 B2 "))
        .stdout(contains("communicating  G0 G1 G2 G1 "))
        .stdout(contains("ZeRO 3 + recompute: 3 units"))
        .stdout(contains("R1 B1"))
        .stdout(contains("epoch").not());
    // One device has nothing to send.
    let alone = program(&["--draw", "--devices=1", "--strategy=ddp"]).assert().success();
    alone.stdout(contains("\ncommunicating  ·  ·"));
}
