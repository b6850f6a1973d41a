//! The program as its users see it.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the right answer")]

#[path = "../../tests/src/screen.rs"]
mod screen;
#[cfg(unix)]
#[path = "../../tests/src/signals.rs"]
mod signals;

use assert_cmd::Command;
use cost_model::paper::{Kind, Ports};
use cost_model::plan::{Plan, Step};
use model_parallel::gpt::Gpt;
use model_parallel::layers::Layers;
use predicates::function::function;
use predicates::prelude::PredicateBooleanExt as _;
use predicates::str::contains;
use serde_json::Value;

fn program() -> Command {
    let mut command = Command::cargo_bin("cost-model").unwrap();
    command.env_remove("RUST_BACKTRACE");
    command
}

const SMALL: [&str; 3] = ["--device=cpu", "--gpt=2x16x2x8", "--batch-size=8"];

/// The program's output in a terminal of so many columns.
fn output(columns: usize, arguments: &[&str]) -> String {
    let output = program().env("COLUMNS", columns.to_string()).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The lines of `--metrics` of a call.
fn metrics(arguments: &[&str]) -> Vec<Value> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("metrics.jsonl");
    let flag = format!("--metrics={}", path.display());
    let told = contains(format!("--metrics: {}", path.display()));
    program().args(arguments).arg(&flag).assert().success().stdout(told);
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn step(line: &Value, which: &str) -> Option<Step> {
    serde_json::from_value(line[which].clone()).unwrap()
}

/// No machine has the memory for these activations.
#[cfg(target_os = "linux")]
#[test]
fn a_batch_that_cannot_fit_is_refused_with_both_numbers() {
    let large = ["--batch-size=1000000", "--gpt=64x4096x32x2048", "--device=cpu"];
    let refused = program().args(large).assert().code(2).stdout("");
    refused.stderr(contains("error: --").and(contains(" needs about ")).and(contains(" free: ")));
}

#[test]
fn the_help_fits_on_a_screen() {
    screen::check_help(env!("CARGO_BIN_EXE_cost-model"));
}

#[cfg(target_os = "linux")]
#[test]
fn lines_fit_into_a_terminal() {
    screen::check_width(env!("CARGO_BIN_EXE_cost-model"), &SMALL);
    screen::check_width(env!("CARGO_BIN_EXE_cost-model"), &["--on-paper=h100", "--devices=64"]);
}

/// The bytes are exact: the simulator and the executor count the same tensors.
#[test]
fn every_prediction_is_printed_with_its_measurement() {
    for arguments in [&SMALL[..], &["--device=cpu", "--batch-size=16"]] {
        let lines = metrics(arguments);
        let plans: Vec<_> = lines.iter().map(|line| line["plan"].as_str().unwrap()).collect();
        let expected = [
            "one device",
            "one device + recompute",
            "DDP",
            "ZeRO 1",
            "ZeRO 2",
            "ZeRO 2 + recompute",
            "ZeRO 3",
            "ZeRO 3 + prefetch",
            "ZeRO 3 + prefetch + recompute",
            "1F1B 2",
            "tensor 2",
        ];
        assert_eq!(plans, expected);
        for line in &lines {
            let [predicted, measured] = ["predicted", "measured"].map(|it| step(line, it).unwrap());
            assert!(predicted.seconds > 0.0 && measured.seconds > 0.0, "{line}");
            let off = predicted.peak.largest_error(measured.peak);
            assert!(off <= 0.1, "{off}: {line}");
        }
    }
}

/// More devices than cores run when that is asked for, and two do not when it is not.
#[test]
fn what_is_not_to_run_is_predicted_only() {
    let of = |flags: &[&str]| metrics(&[&SMALL[..], flags].concat());
    assert!(of(&["--run=false"]).iter().all(|line| line["measured"].is_null()));
    assert!(of(&["--devices=1"]).iter().all(|line| line["measured"].is_null()));
    assert!(of(&["--devices=1", "--run"]).iter().all(|line| line["measured"].is_object()));
}

#[test]
fn a_slow_link_makes_all_plans_but_one_device_slower() {
    let of = |flags: &[&str]| metrics(&[&SMALL[..], &["--run"], flags].concat());
    for (fast, slow) in of(&[]).iter().zip(of(&["--slow-link=0.5"])).skip(2) {
        for which in ["predicted", "measured"] {
            let [fast, slow] =
                [step(fast, which), step(&slow, which)].map(|it| it.unwrap().seconds);
            assert!(slow > 1.5 * fast, "{which}: {slow}, {fast}");
        }
    }
}

#[test]
fn the_fastest_plan_that_fits_is_named() {
    let out = output(80, &["--on-paper=h100", "--devices=8"]);
    assert!(out.contains("assumed, not measured: a device has 80 GB"), "{out}");
    assert!(out.contains("Fastest that fits in 80 GB: "), "{out}");
    let out = output(80, &["--on-paper=h100", "--devices=8", "--fits=2GB"]);
    assert!(out.contains("No plan that fits in 2.0 GB. Least memory: "), "{out}");
    let out = output(80, &[&SMALL[..], &["--run=false", "--fits=1TB"]].concat());
    assert!(out.contains("Fastest that fits in 1000 GB: "), "{out}");
}

/// Ports for each device make no plan slower.
#[test]
fn on_paper_it_says_what_the_library_says() {
    let flags = ["--on-paper=h100", "--devices=64", "--gpt=4x512x8x2048"];
    let lines = metrics(&flags);
    let sizes = Gpt { vocabulary: 32_000, context: 2048, width: 512, heads: 8, blocks: 4 };
    let machine = Kind::H100.machine(Ports::Gpu);
    let plans = Plan::all(64, 8, &Layers::gpt(&sizes).unwrap());
    assert_eq!(plans.len(), lines.len());
    for (plan, line) in plans.into_iter().zip(&lines) {
        let plan = plan.with_micro_batches(1024, 1);
        let said = machine.predict(&sizes, &plan, 1024).unwrap().step;
        assert_eq!(
            (Some(said), plan.to_string()),
            (step(line, "predicted"), line["plan"].as_str().unwrap().to_owned())
        );
    }
    for (own, shared) in lines.iter().zip(metrics(&[&flags[..], &["--ports=host"]].concat())) {
        let [own, shared] = [own, &shared].map(|it| step(it, "predicted").unwrap());
        assert!(own.seconds <= shared.seconds && own.peak == shared.peak, "{own:?}, {shared:?}");
    }
}

#[cfg(unix)]
#[test]
fn ctrl_c_ends_with_what_was_predicted() {
    use std::io::{BufRead as _, BufReader};
    use std::process::Stdio;

    let mut run = signals::with_default_sigint(env!("CARGO_BIN_EXE_cost-model"))
        .args(["--device=cpu", "--batch-size=512"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(run.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.any(|line| line.starts_with("link: ")));
    let kill = std::process::Command::new("kill").args(["-INT", &run.id().to_string()]).status();
    assert!(kill.unwrap().success());
    let rest = lines.collect::<Vec<_>>().join("\n");
    assert_eq!(run.wait().unwrap().code(), Some(130), "{rest}");
    assert!(rest.contains("one device") && rest.contains("Fastest: "), "{rest}");
    assert!(!rest.contains("tensor 2"), "{rest}");
    assert!(!rest.contains("NaN"), "{rest}");
}

#[test]
fn a_narrow_terminal_gets_narrow_lines() {
    let cases: [&[&str]; 2] =
        [&SMALL, &["--on-paper=h100", "--devices=1024", "--gpt=96x12288x96x2048"]];
    for arguments in cases {
        let narrow = output(60, arguments);
        screen::assert_fits(&narrow, 60);
        assert!(narrow.contains("too narrow for: "), "{narrow}");
        let wide = output(200, arguments);
        screen::assert_fits(&wide, 80);
        assert!(!wide.contains("too narrow for"), "{wide}");
    }
}

/// A device that is always full.
#[cfg(target_os = "linux")]
#[test]
fn metrics_that_cannot_be_written_are_reported_with_their_file() {
    let full = ["--metrics=/dev/full", "--on-paper=h100"];
    let told = contains("error: --metrics /dev/full: No space left on device");
    program().args(full).assert().code(1).stderr(told);
}

#[test]
fn heads_that_cannot_be_shared_are_named() {
    let told = contains("note: no plan for tensor 2: 5 heads cannot be cut into 2 equal parts");
    let arguments = ["--on-paper=h100", "--gpt=2x100x5x8"];
    program().args(arguments).assert().success().stdout(told.and(contains("tensor 2  ").not()));
}

#[test]
fn what_makes_no_sense_is_refused_in_one_line() {
    let cases: [(&[&str], &str); 21] = [
        (&["--devices=0"], "a run has 1 to 1024 devices"),
        (&["--on-paper=h100", "--devices=2000"], "a run has 1 to 1024 devices"),
        (&["--on-paper=h100", "--devices=12"], "a host has 8, so take a multiple of 8"),
        (&["--on-paper=abacus"], "h100, a100, rtx4090"),
        (&["--gpt=4x128x4"], "a GPT has four sizes, such as 4x128x4x64"),
        (&["--gpt=2000x128x4x64"], "at most 1,024 blocks, and other sizes up to 65,536"),
        (
            &["--on-paper=h100", "--batch-size=1000000"],
            "on one device, micro-batches pass layers 66,000,000 times, and the simulator takes at most 200,000: take a larger --micro-batch",
        ),
        (&["--gpt=4x130x4x64"], "the heads divide the width"),
        (&["--on-paper=h100", "--gpt=4x130x4x64"], "the heads divide the width"),
        (&["--batch-size=0"], "a whole number from 1 to 1,000,000 is expected"),
        (
            &["--batch-size=3", "--devices=4"],
            "--batch-size 3 on 4 devices: take at least 4, a sample for each",
        ),
        (&["--slow-link=0"], "this is a number of megabytes in a second, from 0.001"),
        (&["--fits=8"], "a size is a number of MB, GB or TB, such as 8GB"),
        (&["--run=perhaps"], "true, false"),
        (&["--ports=host"], "--on-paper"),
        (&["--ports=two", "--on-paper=h100"], "gpu, host"),
        (&["--on-paper=h100", "--slow-link=50"], "cannot be used with"),
        (&["--on-paper=h100", "--run"], "cannot be used with"),
        (&["--on-paper=h100", "--device=cpu"], "cannot be used with"),
        (&["--metrics=steps.csv"], "not .csv; use steps.jsonl"),
        (&["--metrics=/dev/null/file"], "--metrics /dev/null/file"),
    ];
    for (arguments, told) in cases {
        let one_line = |err: &str| err.starts_with("error: ") && err.matches('\n').count() == 1;
        let told = contains(told).and(function(one_line));
        program().args(arguments).assert().code(2).stdout("").stderr(told);
    }
}
