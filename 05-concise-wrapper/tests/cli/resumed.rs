//! Runs that go on from a checkpoint, and those that may not.

use predicates::prelude::PredicateBooleanExt as _;
use predicates::str::contains;
use serde_json::Value;

use crate::{SMALL, hashes, wrapper};

#[test]
fn a_run_goes_on_from_its_checkpoint_on_another_number_of_devices() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = format!("--checkpoint={}", folder.path().join("run").display());
    let run = |devices, more: &[&str]| {
        let shards = ["--shards=8", "--momentum=0.9", "--devices", devices];
        hashes(&[&SMALL[..], &shards, more].concat()).pop().expect("a summary")
    };
    let uninterrupted = run("1", &[]);
    // A flag that is given twice is refused, so a shorter run has a list of its own.
    let first_epoch = SMALL.map(|flag| if flag == "--epochs=2" { "--epochs=1" } else { flag });
    let begin =
        ["--shards=8", "--momentum=0.9", "--devices=2", &checkpoint, "--checkpoint-every=2"];
    wrapper(&[&first_epoch[..], &begin].concat()).assert().success();
    assert_eq!(run("4", &[&checkpoint, "--resume"]), uninterrupted);
    // Once more in the same folder, without saying so.
    let again = wrapper(&[&SMALL[..], &begin].concat()).assert().code(2).stdout("");
    again.stderr(contains("it has checkpoints up to step 10: resume from them with --resume"));
    // Another configuration.
    let other = [&SMALL[..], &["--shards=8", "--devices=2", &checkpoint, "--resume"]].concat();
    wrapper(&other).assert().code(1).stderr(contains("momentum"));
}

/// A run in two calls of the same `--metrics`: the second writes behind the first, and draws its plot anew, if it is not
/// refused.
#[test]
fn metrics_go_on_with_a_run() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("metrics.jsonl");
    let checkpoint = format!("--checkpoint={}", folder.path().join("run").display());
    let plot = folder.path().join("plot.svg");
    let run = |epochs: &'static str, flags: &[&str]| {
        let small = SMALL.map(|flag| if flag == "--epochs=2" { epochs } else { flag });
        let mut command = wrapper(&small);
        command.arg("--plot").arg(&plot);
        command.args(["--scale=none", &checkpoint]).args(flags).arg("--metrics").arg(&file);
        command.assert()
    };
    let kinds = || {
        let text = std::fs::read_to_string(&file).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        lines.map(|line| (line["kind"].clone(), line["epoch"].clone())).collect::<Vec<_>>()
    };
    run("--epochs=1", &["--devices=2"]).success();
    let first = kinds();
    assert_eq!(first.len(), 2);
    let drawn = std::fs::read_to_string(&plot).unwrap();
    // Neither of these trains what was trained.
    let record = format!("--record={}", folder.path().join("record.jsonl").display());
    let rate = run("--epochs=2", &["--devices=2", "--resume", "--lr=0.01", &record]).code(1);
    rate.stderr(contains("learning rate"));
    let parts = run("--epochs=2", &["--devices=1", "--resume"]).code(1);
    parts.stderr(contains(
        "of batch norm over each of 2 parts of a batch, this run's is over the whole",
    ));
    assert_eq!(kinds(), first);
    // Nor do they leave anything, or take anything away.
    assert_eq!(std::fs::read_to_string(&plot).unwrap(), drawn);
    assert!(!folder.path().join("record.jsonl").exists());
    run("--epochs=2", &["--devices=2", "--resume"]).success();
    let both = kinds();
    assert_eq!(both[..2], first);
    // The last checkpoint was written before the first epoch was tested: its line comes again.
    assert_eq!(both[2..4], [first[0].clone(), (Value::from("epoch"), Value::from(2))]);
    assert_eq!(both.len(), 5);
}

/// Each of two devices has a batch of 16, so the run has batches of 32 and twice the rate. A user who resumes types other values.
#[test]
fn a_run_with_other_flags_names_the_flag_and_the_value_to_type() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = format!("--checkpoint={}", folder.path().join("run").display());
    let run = |batch: &str, rate: &str, more: &[&str]| {
        let own = ["--epochs=", "--batch-size=", "--lr="];
        let small = SMALL.into_iter().filter(|flag| !own.iter().any(|own| flag.starts_with(own)));
        let mut command = wrapper(&small.collect::<Vec<_>>());
        command.args(["--devices=2", "--epochs=1", "--batch-size", batch, "--lr", rate]);
        command.arg(&checkpoint).args(more).assert()
    };
    run("16", "0.05", &[]).success();
    for (batch, rate, remedy) in [
        ("8", "0.05", "is of batch size 32, this run's is 16: resume with --batch-size 16\n"),
        ("16", "0.2", "is of learning rate 0.1, this run's is 0.4: resume with --lr 0.05\n"),
    ] {
        run(batch, rate, &["--resume"]).code(1).stderr(contains(remedy));
    }
    run("16", "0.05", &["--resume"]).success();
}

/// The first update makes weights infinite, and no checkpoint is written.
#[test]
fn weights_that_are_not_finite_are_not_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run");
    let small = SMALL.into_iter().filter(|flag| !flag.starts_with("--lr="));
    for devices in ["--devices=1", "--devices=2"] {
        let mut command = wrapper(&small.clone().collect::<Vec<_>>());
        command.args([
            devices,
            "--scale=none",
            "--lr=1e300",
            "--checkpoint-every=1",
            "--checkpoint",
        ]);
        let told = contains("step-00000001.safetensors is not written, because ")
            .and(contains("the learning rate is too large; no checkpoint was written before\n"))
            .and(contains("\n").count(1));
        command.arg(&path).assert().code(1).stderr(told);
        let written = std::fs::read_dir(&path).unwrap().map(|it| it.unwrap().file_name());
        assert_eq!(written.collect::<Vec<_>>(), ["lock"]);
    }
}
