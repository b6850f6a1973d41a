//! The program as its users see it.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the right answer")]

#[path = "../../tests/src/screen.rs"]
mod screen;
#[cfg(unix)]
#[path = "../../tests/src/signals.rs"]
mod signals;

use assert_cmd::Command;
use cost_model::compute::Line;
use cost_model::paper::{Batch, Device, Scenario, Wire};
use cost_model::step::Predicted;
use cost_model::{all_reduce::Way, hosts::Hosts, model::Model, training::Sum};
use predicates::function::function;
use predicates::prelude::PredicateBooleanExt as _;
use predicates::str::contains;
use serde_json::Value;

#[cfg(unix)]
use self::signals::with_default_sigint;

fn program() -> Command {
    let mut command = Command::cargo_bin("cost-model").unwrap();
    command.env_remove("RUST_BACKTRACE");
    command
}

const SMALL: [&str; 4] = ["--model=lenet", "--devices=2", "--batch-size=16", "--slow-link=500"];

fn has_row(output: &str, words: &[&str]) -> bool {
    let begins = |line: &str| line.split_whitespace().take(words.len()).eq(words.iter().copied());
    output.lines().any(begins)
}

/// The program's output in a terminal of so many columns.
fn output(columns: usize, arguments: &[&str]) -> String {
    let output = program().env("COLUMNS", columns.to_string()).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// No machine has the memory for these activations.
#[cfg(target_os = "linux")]
#[test]
fn a_batch_that_cannot_fit_is_refused_with_both_numbers() {
    let large = ["--model=resnet18", "--width=16", "--batch-size=1000000", "--device=cpu"];
    let refused = program().args(large).assert().code(2).stdout("");
    let needed = "error: --batch-size 1000000 needs about 423";
    let advice = " free: take a batch of at most about ";
    refused.stderr(contains(needed).and(contains(advice)));
}

#[test]
fn the_help_fits_on_a_screen() {
    screen::check_help(env!("CARGO_BIN_EXE_cost-model"));
}

#[cfg(target_os = "linux")]
#[test]
fn lines_fit_into_a_terminal() {
    screen::check_width(env!("CARGO_BIN_EXE_cost-model"), &SMALL);
    screen::check_width(env!("CARGO_BIN_EXE_cost-model"), &["--on-paper"]);
}

#[test]
fn every_prediction_is_printed_with_its_measurement() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("metrics.jsonl");
    let metrics = format!("--metrics={}", path.display());
    program()
        .args(SMALL)
        .args(["--device=cpu", &metrics])
        .assert()
        .success()
        .stdout(contains("LeNet: 129,068 parameters, 16 images a step"))
        .stdout(contains("\n1 device\n  compute, a line through steps with 32 and 48 images:"))
        .stdout(function(|out: &str| has_row(out, &["slow", "ring", "yes"])))
        .stdout(contains("slow link: latency "))
        .stdout(contains("Fastest on 2 devices: "))
        .stdout(contains("Predictions: half are off by at most "))
        .stdout(contains(format!("--metrics: {}", path.display())))
        .stdout(function(|out: &str| {
            screen::assert_fits(out, 80);
            true
        }));
    let text = std::fs::read_to_string(path).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |kind: &str| lines.iter().filter(|line| line["kind"] == kind).collect::<Vec<_>>();
    let (calibrations, steps) = (of("calibration"), of("step"));
    assert_eq!(calibrations.len(), 2);
    // One device; two over two links in three ways, with and without overlap.
    assert_eq!(steps.len(), 1 + 2 * 3 * 2);
    for step in steps {
        let devices = step["devices"].as_u64().unwrap() as usize;
        let calibration = calibrations[devices - 1];
        let line: Line = serde_json::from_value(calibration["line"].clone()).unwrap();
        let predicted: Predicted = serde_json::from_value(step["predicted"].clone()).unwrap();
        let compute = line.of(16.0 / devices as f64).seconds();
        assert!((predicted.compute - compute).abs() < 1e-12, "{step}");
        assert_eq!(predicted.communication > 0.0, devices > 1, "{step}");
        assert!(step["measured"].as_f64().unwrap() > 0.0, "{step}");
        // What was measured for the line is not what is predicted.
        let samples = calibration["measured"].as_array().unwrap();
        assert!(samples.iter().all(|it| it["samples"] != 16 / devices), "{calibration}");
    }
}

#[cfg(unix)]
#[test]
fn ctrl_c_ends_with_what_was_predicted_so_far() {
    use std::io::{BufRead as _, BufReader};
    use std::process::{Command, Stdio};

    let mut run = with_default_sigint(env!("CARGO_BIN_EXE_cost-model"))
        .args(["--model=lenet", "--devices=2", "--device=cpu"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(run.stdout.take().unwrap()).lines().map(Result::unwrap);
    // One device is done, and two are at work.
    assert!(lines.any(|line| line.starts_with("  step: predicted ")));
    let kill = Command::new("kill").args(["-INT", &run.id().to_string()]).status().unwrap();
    assert!(kill.success());
    let rest = lines.collect::<Vec<_>>().join("\n");
    assert_eq!(run.wait().unwrap().code(), Some(130), "{rest}");
    assert!(rest.contains("2 devices: left out after the interrupt"), "{rest}");
    assert!(rest.contains("LeNet: only one device was measured."), "{rest}");
    assert!(rest.contains("The prediction is off by "), "{rest}");
    assert!(!rest.contains("NaN"), "{rest}");
}

/// Without a measured device there is no heading of a table and no conclusion.
#[cfg(unix)]
#[test]
fn an_early_ctrl_c_leaves_nothing_half_said() {
    use std::io::{BufRead as _, BufReader, Read as _};
    use std::process::{Command, Stdio};

    let mut run = with_default_sigint(env!("CARGO_BIN_EXE_cost-model"))
        .args(["--model=lenet", "--devices=2", "--device=cpu", "--batch-size=20000"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut reader = BufReader::new(run.stdout.take().unwrap());
    let mut first = String::new();
    // The explanation of the tables comes before the first model.
    while !first.contains("LeNet: ") && reader.read_line(&mut first).unwrap() > 0 {}
    let kill = Command::new("kill").args(["-INT", &run.id().to_string()]).status().unwrap();
    assert!(kill.success());
    let mut rest = String::new();
    reader.read_to_string(&mut rest).unwrap();
    assert_eq!(run.wait().unwrap().code(), Some(130), "{rest}");
    assert_eq!(rest, "\n1 device: left out after the interrupt; nothing was measured\n", "{first}");
}

#[test]
fn a_narrow_terminal_gets_narrow_lines() {
    let cases = [&[&SMALL[..], &["--algorithm=naive,ring", "--device=cpu"]].concat()[..]];
    let paper: [&[&str]; 2] = [&["--on-paper"], &["--on-paper", "--tflops=0.000001"]];
    for arguments in cases.into_iter().chain(paper) {
        let narrow = output(60, arguments);
        screen::assert_fits(&narrow, 60);
        assert!(narrow.contains("(too narrow for: "), "{narrow}");
    }
    for arguments in paper {
        let wide = output(200, arguments);
        screen::assert_fits(&wide, 80);
        assert!(!wide.contains("too narrow for"), "{wide}");
    }
}

#[test]
fn a_prediction_that_is_too_far_off_is_a_failure_if_that_is_asked_for() {
    let asked = ["--within=0.000001", "--algorithm=ring", "--device=cpu"];
    program()
        .args(SMALL)
        .args(asked)
        .assert()
        .code(1)
        .stderr(contains(" % off, further than the 1e-6 % of --within"));
}

#[test]
fn on_paper_it_says_what_the_library_says() {
    let hosts = Hosts { each: 8, inside: Wire::Nvlink.link(), between: Wire::Ethernet100.link() };
    let model = Model::lenet().unwrap();
    let scenario = Scenario::new(&model, &Device::default(), hosts, Batch::Each(256));
    let times = |way| format!("{:.2}", scenario.speed_up(64, Sum { way, overlap: true }).unwrap());
    let [naive, tree, ring, rings] = Way::FOR_MANY.map(times);
    program()
        .args(["--on-paper", "--model=lenet"])
        .assert()
        .success()
        .stdout(contains("assumed, not measured"))
        .stdout(function(|out: &str| has_row(out, &["1,024", "128"])))
        .stdout(contains("Best: any algorithm on 4 devices, "))
        .stdout(contains("Best: tree on 1,024 devices, "))
        .stdout(function(move |out: &str| {
            out.lines().any(|line| {
                let words: Vec<&str> = line.split_whitespace().collect();
                words.starts_with(&["64", "8"]) && words[3..7] == [&naive, &tree, &ring, &rings]
            })
        }));
}

/// A device that is always full.
#[cfg(target_os = "linux")]
#[test]
fn metrics_that_cannot_be_written_are_reported_with_their_file() {
    let full = ["--metrics=/dev/full", "--algorithm=ring", "--device=cpu"];
    let told = contains("error: --metrics /dev/full: No space left on device");
    program().args(SMALL).args(full).assert().code(1).stderr(told);
}

/// From the quickest devices to the slowest, no column runs into the one before.
#[test]
fn on_paper_columns_stay_apart() {
    for flags in [
        &["--tflops=0.05", "--batch-size=2048"][..],
        &["--tflops=0.000001", "--batch-size=1000000", "--fixed=1000000", "--width=1024"],
        &["--tflops=1000000", "--batch-size=8", "--fixed=0.000001", "--width=1"],
    ] {
        let text = output(80, &[&["--on-paper", "--model=resnet18"], flags].concat());
        screen::assert_fits(&text, 80);
        let mut rows = 0;
        for line in text.lines().filter(|line| line.starts_with("     ")) {
            let words: Vec<&str> = line.split_whitespace().collect();
            let is_number = |word: &&str| word.replace(',', "").parse::<f64>().is_ok();
            if !words.iter().all(is_number) {
                continue;
            }
            assert_eq!(words.len(), 9, "{flags:?}: {line}");
            rows += 1;
        }
        assert!(rows > 11, "{text}");
    }
}

#[test]
fn what_makes_no_sense_is_refused_in_one_line() {
    let number = "a number from 0.000001 to 1,000,000 is expected";
    let cases: [(&[&str], &str); 29] = [
        (&["--devices=0"], "a run has 1 to 1024 devices"),
        (&["--model=alexnet"], "lenet, resnet18"),
        (&["--algorithm=star"], "one-shot, naive, tree, ring, rings"),
        (&["--algorithm=rings"], "--algorithm rings needs several hosts"),
        (&["--batch-size=4"], "a whole number from 8 to 1,000,000 is expected"),
        (
            &["--batch-size=8", "--devices=8"],
            "--batch-size 8 on 8 devices: a prediction needs at least 2 samples on each; use --batch-size 16 or more, or --devices 4 or fewer",
        ),
        (&["--slow-link=0"], "this is a number of megabytes in a second, from 0.001"),
        (&["--within=nan"], number),
        (&["--within=0"], number),
        (&["--latency=1e12"], number),
        (&["--on-paper", "--tflops=1e300"], number),
        (&["--on-paper", "--tflops=1e-300"], number),
        (&["--on-paper", "--fixed=1e-300"], number),
        (&["--algorithm=ring,tree,ring"], "--algorithm names ring twice: leave one out"),
        (&["--model=lenet,lenet"], "--model names lenet twice: leave one out"),
        (&["--model=lenet", "--width=8"], "--width needs --model resnet18"),
        (&["--on-paper", "--model=lenet", "--width=8"], "--width needs --model resnet18"),
        (&["--on-paper", "--model=resnet18,resnet18"], "--model names resnet18 twice"),
        (&["--tflops=10"], "--on-paper"),
        (&["--tflops=10", "--within=99"], "cannot be used with"),
        (&["--inside=pcie", "--slow-link=50"], "cannot be used with"),
        (&["--devices-per-host=4", "--device=cpu"], "cannot be used with"),
        (&["--on-paper", "--within=25"], "cannot be used with"),
        (&["--on-paper", "--algorithm=ring"], "cannot be used with"),
        (&["--on-paper", "--slow-link=50"], "cannot be used with"),
        (&["--on-paper", "--devices=8"], "cannot be used with"),
        (&["--on-paper", "--device=cpu"], "cannot be used with"),
        (&["--metrics=steps.csv"], "not .csv; use steps.jsonl"),
        (&["--metrics=/no/such/folder/file"], "--metrics /no/such/folder/file"),
    ];
    for (arguments, told) in cases {
        let one_line = |err: &str| err.starts_with("error: ") && err.matches('\n').count() == 1;
        let told = contains(told).and(function(one_line));
        program().args(arguments).assert().code(2).stdout("").stderr(told);
    }
}
