//! What a run prints, and what it leaves behind.

use std::fs;

use assert_cmd::assert::Assert;
use predicates::prelude::*;
use predicates::str::contains;
use serde_json::Value;

use super::runs::{interrupted, measured, of_kind, small_gpt};
use super::wrapped::{in_one_line, said};
use super::{SMALL, program};

/// Runs with `--metrics`, and returns its lines of a kind.
fn metrics(arguments: &[&str], kind: &str) -> Vec<Value> {
    of_kind(measured(program(&[&SMALL[..], arguments].concat())).1, kind)
}

fn hashes(arguments: &[&str]) -> Vec<Value> {
    metrics(arguments, "summary").iter().map(|line| line["weights_hash"].clone()).collect()
}

#[test]
fn all_strategies_of_a_small_stack() {
    program(&SMALL)
        .assert()
        .success()
        .stdout(contains("dense stack 784-20-18-16-10 on synthetic garments: 70 training"))
        .stdout(contains("\nZeRO 3 + recompute: test acc "))
        .stdout(contains("\n  on [cpu:0 (1 core), cpu:1 (1 core)]\n"))
        .stdout(said("What a device holds at most and sends in a step, in MB"))
        .stdout(contains("\n  predicted "))
        .stdout(said("Least memory: ZeRO 3"))
        .stdout(said("Runs below 0.5 s are too short for reliable times."))
        .stdout(said("The predicted peaks are off by "))
        .stdout(said(", as rounding does. --dtype f64 tests whether"))
        .stdout(contains("times as long").not());
    let exact = ["--dtype=f64", "--devices=3", "--micro-batches=2", "--strategy=zero1,zero3"];
    program(&[&SMALL[..], &exact].concat()).assert().success().stdout(said(", as rounding does."));
}

/// On two devices each sum has two terms, so all strategies have the same bits.
#[test]
fn strategies_and_links_change_no_bit() {
    let all = hashes(&[]);
    assert_eq!(all.len(), 7);
    assert!(all[2..].iter().all(|hash| *hash == all[1]), "{all:?}");
    let slow = ["--slow-link=50", "--strategy=ddp,zero3+prefetch+recompute", "--recompute=2"];
    assert_eq!(hashes(&slow)[1..], [all[1].clone(), all[1].clone()]);
}

/// Prints of a small GPT on a text of letters, and the lines of its metrics of a kind.
fn gpt(arguments: &[&str]) -> (Assert, impl Fn(&str) -> Vec<Value> + use<>) {
    let (_folder, small) = small_gpt();
    let mut command = program(arguments);
    command.args(small);
    let (printed, lines) = measured(command);
    (printed, move |kind| of_kind(lines.clone(), kind))
}

/// The predicted bytes of each run are within a tenth of the measured ones.
fn assert_predicted(lines: &[Value]) {
    for line in lines {
        let [found, expected] =
            [&line["held"], &line["predicted_held"]].map(|it| it[0]["total"].as_f64());
        let (found, expected) = (found.expect("bytes"), expected.expect("bytes"));
        assert!((found - expected).abs() <= 0.1 * found, "{line}");
    }
}

/// On one device and on two: the hash of each run.
#[test]
fn a_gpt_under_all_strategies() {
    let (printed, of) = gpt(&[]);
    printed
        .stdout(said("GPT of 2 blocks, width 16, 2 heads on letters.txt: "))
        .stdout(said("A bigram model, which counts pairs of bytes, needs "))
        .stdout(contains("\nA text by one device: The "))
        .stdout(said(", as rounding does."));
    let hashes: Vec<Value> = of("summary").iter().map(|it| it["weights_hash"].clone()).collect();
    assert_eq!(hashes.len(), 7);
    assert!(hashes[2..].iter().all(|hash| *hash == hashes[1]), "{hashes:?}");
    assert_predicted(&of("split"));
}

/// Two replicas whose layers are cut in two: the losses and, up to rounding, the weights of two whole replicas.
#[test]
fn a_gpt_on_a_mesh_with_a_tensor_axis() {
    let trained = |of_devices: &str| {
        let (printed, of) = gpt(&["--dtype=f64", "--strategy=ddp,zero3+prefetch", of_devices]);
        let losses =
            of("epoch").iter().map(|it| it["train_loss"].as_f64().expect("a loss")).collect();
        (printed.stdout(said(", as rounding does.")), losses, of("split"))
    };
    let (_, expected, whole): (_, Vec<f64>, _) = trained("--devices=2");
    let (printed, found, in_parts): (_, Vec<f64>, _) = trained("--mesh=2x1x2");
    printed.stdout(contains("note: 2 replicas, each with 2 parts of every layer\n")).stdout(
        contains("\n  on [cpu:0 (1 core), cpu:1 (1 core), cpu:2 (1 core), cpu:3 (1 core)]\n"),
    );
    assert_eq!([found.len(), expected.len()], [3, 3]);
    for (found, expected) in found.iter().zip(&expected) {
        assert!((found / expected - 1.0).abs() < 1e-10, "{found} {expected}");
    }
    assert_predicted(&in_parts);
    // A rank has half of nearly all parameters, and a quarter if they are in chunks.
    for (run, whole_run) in in_parts.iter().zip(&whole).skip(1) {
        let [part, whole] =
            [run, whole_run].map(|it| it["held"][0]["optimizer"].as_f64().expect("bytes"));
        assert!((0.45..0.65).contains(&(part / whole)), "{run}");
    }
}

/// In f32: the layers have 15,700, 378, 304 and 170 parameters.
#[test]
fn what_a_device_holds_and_sends_is_as_predicted() {
    const PARAMETERS: u64 = 15_700 + 378 + 304 + 170;
    let lines = metrics(&[], "split");
    let names = ["one device", "DDP", "ZeRO 1", "ZeRO 2", "ZeRO 3", "ZeRO 3 + prefetch"];
    assert!(lines.iter().zip(names).all(|(line, name)| line["run"] == name), "{lines:?}");
    assert_eq!(lines.len(), 7);
    for line in &lines {
        let (held, predicted) = (&line["held"][0], &line["predicted_held"][0]);
        for kind in ["parameters", "gradients", "optimizer", "activations", "messages", "total"] {
            let [found, expected] = [held, predicted].map(|it| it[kind].as_f64().expect("bytes"));
            assert!((found - expected).abs() <= 0.1 * found, "{kind} of {line}");
        }
        let sent = |it: &Value| it["sent"].as_u64().expect("bytes");
        // Beside parameters and gradients, four sums in f64.
        let sums = if line["run"] == "one device" { 0 } else { 32 };
        assert_eq!(sent(held), sent(predicted) + sums, "{line}");
        assert!(line["seconds_per_step"].as_f64().is_some_and(|seconds| seconds > 0.0));
    }
    let of = |run: usize, kind: &str| lines[run]["predicted_held"][0][kind].as_u64();
    assert_eq!([of(1, "sent"), of(2, "sent")], [Some(4 * PARAMETERS); 2]);
    // Three gathers or sums of half of the parameters, and one less of the last layer.
    assert_eq!(of(4, "sent"), Some(4 * (3 * PARAMETERS - 170) / 2));
    let counts = 8 * 4 * 2;
    for (run, optimizer) in [(1, 8 * PARAMETERS), (4, 4 * PARAMETERS)] {
        let found = of(run, "optimizer").expect("bytes");
        assert!((optimizer..=optimizer + counts).contains(&found), "{found}");
    }
}

#[test]
fn one_device_alone_has_nothing_to_share_out() {
    let alone = [&SMALL[..], &["--devices=1"]].concat();
    program(&alone).assert().success().stdout(contains("DDP").or(contains("Least")).not());
    let runs = hashes(&["--devices=1", "--strategy=zero1,zero3+prefetch"]);
    assert!(runs.len() == 3 && runs.iter().all(|hash| *hash == runs[0]), "{runs:?}");
}

#[test]
fn a_gantt_chart_is_written() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("gantt.svg");
    let mut command = program(&[&SMALL[..], &["--strategy=ddp,zero3+prefetch"]].concat());
    let announced = format!("--gantt: {}", file.display());
    command.arg("--gantt").arg(&file).assert().success().stdout(contains(announced));
    let svg = fs::read_to_string(&file).expect("a picture");
    for text in ["One step of dense stack 784-20-18-16-10", "ZeRO 3 + prefetch", "parameters "] {
        assert!(svg.contains(text), "{text} is missing");
    }
}

/// The mean losses of the epochs that a run has trained.
fn losses(arguments: &[&str]) -> Vec<f64> {
    let small = ["--data=synthetic", "--train-size=70", "--test-size=20", "--batch-size=32"];
    let model = ["--widths=20,18,16", "--dtype=f64", "--strategy=zero3+prefetch"];
    let (_, all) = measured(program(&[&small[..], &model, arguments].concat()));
    let of_epochs = of_kind(all, "epoch").into_iter().filter(|line| line["run"] != "one device");
    of_epochs.map(|line| line["train_loss"].as_f64().expect("a loss")).collect()
}

#[test]
fn a_run_resumes_on_another_number_of_devices() {
    let expected = losses(&["--epochs=3"]);
    for devices in ["--devices=1", "--devices=3"] {
        let folder = tempfile::tempdir().expect("a folder");
        let checkpoint = format!("--checkpoint={}", folder.path().join("run").display());
        let first = losses(&["--epochs=1", &checkpoint]);
        let then = losses(&["--epochs=3", &checkpoint, "--resume", devices]);
        // The end of the first epoch is told again.
        assert_eq!([first.len(), then.len(), expected.len()], [1, 3, 3]);
        for (found, expected) in then.iter().zip(&expected) {
            assert!((found / expected - 1.0).abs() < 1e-10, "{found} {expected}");
        }
        // The folder belongs to this run and this strategy.
        let again = [&SMALL[..], &["--dtype=f64", "--strategy=zero3", &checkpoint]].concat();
        program(&again).assert().code(2).stderr(contains("it has checkpoints up to step 9"));
        let other = [&SMALL[..], &["--dtype=f64", "--strategy=zero1", &checkpoint, "--resume"]];
        program(&other.concat()).assert().code(1).stderr(contains("sharing"));
    }
}

#[test]
fn a_loss_that_runs_away_is_told_once() {
    program(&[&SMALL[..], &["--lr=1e30", "--strategy=zero3"]].concat())
        .assert()
        .code(1)
        .stderr(contains("the loss is"))
        .stderr(contains("panicked").not());
}

/// In the middle of a run that has another after it.
#[test]
fn an_interrupt_ends_all_ranks_after_a_step() {
    let small = SMALL.into_iter().filter(|flag| !flag.starts_with("--epochs"));
    let flags: Vec<_> = small.chain(["--strategy=zero3+prefetch,zero1"]).collect();
    let told = interrupted(env!("CARGO_BIN_EXE_sharded-state"), &flags, "ZeRO 3");
    let told = in_one_line(&told);
    for text in ["left out after the interrupt", ", interrupted after ", "A run was interrupted"] {
        assert_eq!(told.matches(text).count(), 1, "{text:?} in:\n{told}");
    }
}
