//! The binary as a newcomer meets it: wrappers, results, files, and refusals.

#[path = "../../../tests/src/refusals.rs"]
mod flags;
mod output;
#[path = "../../../tests/src/program.rs"]
mod program;
mod recordings;
mod refusals;
mod resumed;
#[path = "../../../tests/src/screen.rs"]
mod screen;
mod stuck;

use assert_cmd::Command;
use predicates::prelude::PredicateBooleanExt as _;
use predicates::str::contains;
use serde_json::Value;

fn wrapper(arguments: &[&str]) -> Command {
    let mut command = program::command(env!("CARGO_BIN_EXE_concise-wrapper"));
    command.args(["--device=cpu", "--threads-per-device=1"]).args(arguments);
    command
}

/// A narrow network on few images, whose last batch is uneven.
const SMALL: [&str; 6] = [
    "--data=synthetic",
    "--train-size=70",
    "--test-size=20",
    "--epochs=2",
    "--batch-size=16",
    "--width=4",
];

/// Runs with `--metrics` and returns its lines of a kind.
fn metrics(arguments: &[&str], kind: &str) -> Vec<Value> {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("metrics.jsonl");
    wrapper(arguments).arg("--metrics").arg(&file).assert().success();
    let text = std::fs::read_to_string(&file).expect("a metrics file");
    let lines = text.lines().map(|line| serde_json::from_str(line).expect("a JSON line"));
    lines.filter(|line: &Value| line["kind"] == kind).collect()
}

fn hashes(arguments: &[&str]) -> Vec<String> {
    let summaries = metrics(arguments, "summary");
    summaries.iter().map(|line| line["weights_hash"].as_str().expect("a hash").to_owned()).collect()
}

#[test]
fn the_help_fits_on_a_screen() {
    screen::check_help(env!("CARGO_BIN_EXE_concise-wrapper"));
}

#[test]
fn one_device_then_two_with_twice_the_batch_and_rate() {
    wrapper(&SMALL)
        .assert()
        .success()
        .stdout(contains("ResNet-18 of width 4 on synthetic garments"))
        .stdout(contains("one device: batch 16, lr 0.1"))
        .stdout(contains("ddp on 2 devices: batch 2 × 16, lr 0.2"))
        .stdout(contains("s/epoch, weights "))
        .stdout(contains("\n  on [cpu:0 (1 core), cpu:1 (1 core)]\n"))
        // The runs are too short for a ratio of their times.
        .stdout(contains("× over one device").or(contains("as fast")).not())
        .stdout(contains("ddp: 2 replicas ended with the same weights"));
}

/// The default number of devices is 2 for the other wrappers.
#[test]
fn without_a_wrapper_one_device_trains_by_default() {
    let plain = wrapper(&[&SMALL[..], &["--wrapper=single"]].concat()).assert().success();
    let one = contains("\none device: batch 16, lr 0.1\n").count(1);
    plain.stdout(one.and(contains("on 2 devices").not()).and(contains("ddp").not()));
}

/// Where each device has a batch of its own, that may have fewer images than there are devices.
#[test]
fn a_batch_of_one_device_may_be_small() {
    let small = ["--data=synthetic", "--model=lenet", "--train-size=12", "--test-size=10"];
    let run = |flags: &[&str]| {
        let small = small.iter().chain(&["--epochs=1", "--devices=3", "--batch-size=2"]);
        wrapper(&small.chain(flags).copied().collect::<Vec<_>>()).assert()
    };
    run(&[])
        .success()
        .stdout(contains("ddp on 3 devices: batch 3 × 2, lr 0.3"))
        .stdout(contains("same weights"));
    let refused = run(&["--scale=none"]).code(2).stdout("");
    refused.stderr(contains("batch size 2 cannot be cut into 3 shards"));
}

#[test]
fn smaller_defaults_on_a_cpu_are_noted() {
    wrapper(&[
        "--data=synthetic",
        "--train-size=32",
        "--test-size=10",
        "--epochs=1",
        "--devices=1",
    ])
    .assert()
    .success()
    .stdout(contains("note: sized to a CPU: width 16 in place of 64 (--width)\n"));
}

#[test]
fn data_parallel_and_ddp_and_one_device_have_the_same_losses() {
    let same = ["--bn=sync", "--scale=none", "--dtype=f64", "--devices=3"];
    let mut all = Vec::new();
    for kind in ["ddp", "data-parallel"] {
        let arguments = [&SMALL[..], &same, &["--wrapper", kind]].concat();
        all.extend(metrics(&arguments, "epoch"));
    }
    assert_eq!(all.len(), 8);
    for epoch in [1, 2] {
        let of_epoch = all.iter().filter(|line| line["epoch"] == epoch);
        let losses: Vec<f64> = of_epoch.map(|line| line["train_loss"].as_f64().unwrap()).collect();
        assert!(losses.iter().all(|loss| (loss - losses[0]).abs() < 1e-6), "{losses:?}");
    }
}

#[test]
fn momentum_decay_and_warm_up_change_the_result() {
    let plain = hashes(&[&SMALL[..], &["--devices=1"]].concat());
    for flag in ["--momentum=0.9", "--weight-decay=0.001", "--warm-up=4"] {
        assert_ne!(hashes(&[&SMALL[..], &["--devices=1", flag]].concat()), plain, "{flag}");
    }
}

#[test]
fn what_tests_are_normalised_by_changes_no_weight() {
    for wrapper in ["ddp", "data-parallel"] {
        let lines = |by, kind| metrics(&[&SMALL[..], &["--wrapper", wrapper, by]].concat(), kind);
        let of = |kind| {
            let [running, batch] =
                ["--test-norm=running", "--test-norm=batch"].map(|by| lines(by, kind));
            assert_eq!(running.len(), batch.len());
            running.into_iter().zip(batch)
        };
        for (running, batch) in of("epoch") {
            assert_eq!(running["train_loss"], batch["train_loss"]);
            // After so few steps running statistics are far from those of a batch.
            assert_ne!(running["test_loss"], batch["test_loss"]);
        }
        for (running, batch) in of("summary") {
            assert_eq!(running["weights_hash"], batch["weights_hash"]);
            let method = batch["method"].as_str().expect("a method");
            assert!(method.ends_with("tested by each batch's own statistics"), "{method}");
        }
    }
}

#[test]
fn trace_and_timeline_show_buckets_beside_backward() {
    let folder = tempfile::tempdir().unwrap();
    let (trace, timeline) = (folder.path().join("t.json"), folder.path().join("t.svg"));
    wrapper(&SMALL)
        .args(["--bucket-mb=0.1", "--trace"])
        .arg(&trace)
        .arg("--timeline")
        .arg(&timeline)
        .assert()
        .success();
    let trace: Value = serde_json::from_slice(&std::fs::read(trace).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let named = |name: &str| -> Vec<&Value> {
        events.iter().filter(|event| event["ph"] == "X" && event["name"] == name).collect()
    };
    let times = |event: &Value| {
        let start = event["ts"].as_f64().unwrap();
        (start, start + event["dur"].as_f64().unwrap())
    };
    let first: Vec<&Value> =
        named("bucket").into_iter().filter(|event| event["args"]["bucket"] == 0).collect();
    assert!(!first.is_empty());
    let during = |bucket: &&&Value| {
        let begin = times(bucket).0;
        let around = |backward: &&Value| {
            let (start, end) = times(backward);
            backward["pid"] == bucket["pid"] && start < begin && begin < end
        };
        named("backward").iter().any(around)
    };
    // Not all of them, where a busy machine lets the background thread wait.
    assert!(first.iter().filter(during).count() > 0);
    let svg = std::fs::read_to_string(timeline).unwrap();
    for text in [
        "One step of ddp on 2 devices: ",
        " % of communication is hidden behind computing.",
        ">background<",
        "rank 1 computes",
    ] {
        assert!(svg.contains(text), "{text} is missing");
    }
}

#[test]
fn a_slow_link_changes_no_number() {
    let same = [&SMALL[..], &["--bucket-mb=0.01"]].concat();
    let slow = [&same[..], &["--slow-link=50"]].concat();
    assert_eq!(hashes(&slow), hashes(&same));
    let summaries = metrics(&slow, "summary");
    let method = summaries[1]["method"].as_str().unwrap();
    assert!(method.contains("link slowed down to 50 MB/s"), "{method}");
    // A device alone sends nothing, however slowly.
    wrapper(&SMALL).args(["--devices=1", "--slow-link=0.001", "--timeout=1"]).assert().success();
}

#[test]
fn precision_is_dtype_by_another_name() {
    let summaries = |flag| metrics(&[&SMALL[..], &["--devices=1", flag]].concat(), "summary");
    let [precision, dtype] =
        ["--precision=f64", "--dtype=f64"].map(|flag| summaries(flag).remove(0));
    assert_eq!(precision["dtype"], "f64");
    assert_eq!(precision["weights_hash"], dtype["weights_hash"]);
    let single = summaries("--precision=f32").remove(0);
    assert_eq!(single["dtype"], "f32");
    assert_ne!(single["weights_hash"], dtype["weights_hash"]);
}
