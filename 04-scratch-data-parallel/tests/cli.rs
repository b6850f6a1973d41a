//! The binary as a newcomer meets it: three runs and a comparison, bugs on purpose, and refusals.

use assert_cmd::Command;
use predicates::prelude::*;
use predicates::str::contains;
use serde_json::Value;

/// A mirror that nobody runs.
const NOBODY: &str = "http://127.0.0.1:9";

fn scratch(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_scratch-data-parallel"));
    // No test depends on a network, or on what is in this user's cache.
    command.env("COURSE_MIRRORS", NOBODY);
    command.env("COURSE_DATA_DIR", concat!(env!("CARGO_TARGET_TMPDIR"), "/no-data"));
    command.args(["--device=cpu", "--threads-per-device=1"]).args(arguments);
    command
}

/// Small data whose last batch is uneven: 70 images in batches of 32 leave 6.
const SMALL: [&str; 5] =
    ["--data=synthetic", "--train-size=70", "--test-size=20", "--epochs=2", "--batch-size=32"];

/// Runs with `--metrics` and returns its lines.
fn metrics(arguments: &[&str]) -> Vec<Value> {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("metrics.jsonl");
    scratch(&SMALL).args(arguments).arg("--metrics").arg(&file).assert().success();
    let text = std::fs::read_to_string(&file).expect("a metrics file");
    text.lines().map(|line| serde_json::from_str(line).expect("a JSON line")).collect()
}

fn of_kind<'a>(lines: &'a [Value], kind: &str) -> Vec<&'a Value> {
    lines.iter().filter(|line| line["kind"] == kind).collect()
}

#[test]
fn three_runs_and_what_they_say_together() {
    scratch(&SMALL)
        .assert()
        .success()
        .stdout(contains("s/epoch on [cpu:0 (1 core)], weights "))
        .stdout(contains("s/epoch on [cpu:0 (1 core), cpu:1 (1 core)], weights "))
        .stdout(contains("s/epoch on [cpu:0 (2 cores)], weights "))
        .stdout(contains("speed-up: "))
        .stdout(contains("largest weight difference from one device: "))
        .stdout(contains("2 replicas ended with the same weights"));
}

#[test]
fn one_device_is_one_run() {
    let lines = metrics(&["--devices=1"]);
    assert_eq!(of_kind(&lines, "summary").len(), 1);
}

#[test]
fn one_and_several_devices_have_the_same_losses() {
    for devices in ["2", "3"] {
        let lines = metrics(&["--devices", devices]);
        let losses: Vec<f64> = of_kind(&lines, "epoch")
            .iter()
            .filter(|line| line["epoch"] == 1)
            .map(|line| line["train_loss"].as_f64().unwrap())
            .collect();
        assert_eq!(losses.len(), 3);
        for loss in &losses {
            assert!((loss - losses[0]).abs() <= 1e-5, "{losses:?}");
        }
        let comparison = of_kind(&lines, "comparison")[0];
        assert_eq!(comparison["replicas_agree"], true);
        let difference = &comparison["weight_difference"];
        assert!(difference["after_first_step"].as_f64().unwrap() < 1e-5, "{difference}");
    }
}

#[test]
fn every_algorithm_gives_the_losses_of_one_device() {
    for algorithm in ["naive", "tree", "ring"] {
        let lines = metrics(&["--devices=3", "--dtype=f64", "--algorithm", algorithm]);
        let difference = &of_kind(&lines, "comparison")[0]["weight_difference"];
        assert!(difference["at_the_end"].as_f64().unwrap() < 1e-10, "{algorithm}: {difference}");
    }
    scratch(&SMALL).args(["--algorithm=tree"]).assert().stdout(contains("all-reduce: tree"));
}

#[test]
fn in_double_precision_the_end_is_the_same_too() {
    let lines = metrics(&["--dtype=f64"]);
    let difference = &of_kind(&lines, "comparison")[0]["weight_difference"];
    assert!(difference["at_the_end"].as_f64().unwrap() < 1e-10, "{difference}");
}

#[test]
fn bugs_on_purpose_are_visible() {
    for (bug, replicas_agree) in
        [("skip-allreduce", false), ("mean-for-sum", true), ("same-shard", true)]
    {
        let lines = metrics(&["--dtype=f64", "--break", bug]);
        let comparison = of_kind(&lines, "comparison")[0];
        assert_eq!(comparison["replicas_agree"], replicas_agree, "{bug}");
        let difference = comparison["weight_difference"]["after_first_step"].as_f64().unwrap();
        assert!(difference > 1e-10, "{bug}: {difference:e}");
    }
}

#[test]
fn a_run_that_explodes_stops_with_the_step() {
    // Summed parameters double at every step.
    scratch(&["--data=synthetic", "--train-size=2000", "--test-size=10", "--epochs=2"])
        .args(["--batch-size=4", "--break", "reduce-params"])
        .assert()
        .code(1)
        .stderr(contains("the loss is").and(contains("of epoch 1")));
}

#[test]
fn help_lists_the_bugs() {
    let help = scratch(&["--help"]).assert().success();
    help.stdout(contains("skip-allreduce").and(contains("reduce-params")));
}

#[test]
fn what_makes_no_sense_is_refused() {
    for (arguments, complaint) in [
        (&["--devices", "0"][..], "a run has 1 to 1024 devices"),
        (&["--devices", "100000000"], "a run has 1 to 1024 devices"),
        (&["--batch-size", "0"], "0 is not in"),
        (&["--batch-size", "1"], "batch size 1 cannot be cut into 2 shards"),
        (&["--devices", "8", "--train-size", "5"], "5 training images for 8 devices"),
        (&["--lr", "NaN"], "a learning rate is a positive number"),
        (&["--epochs", "0"], "0 is not in"),
        (&["--data", "/no/such/folder"], "there is no such folder"),
        (&["--metrics", "/no/such/folder/m"], "--metrics /no/such/folder/m"),
        (&["--algorithm", "nccl"], "--algorithm nccl: there is no NCCL here"),
        (&["--algorithm", "star"], "possible values: naive, tree, ring, nccl"),
        (&["--break", "everything"], "possible values: skip-allreduce"),
    ] {
        let one_line = predicate::function(|text: &str| {
            text.starts_with("error: ") && text.lines().count() == 1
        });
        scratch(arguments).assert().code(2).stdout("").stderr(contains(complaint).and(one_line));
    }
}
