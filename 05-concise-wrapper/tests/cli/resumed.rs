//! Runs that go on from a checkpoint, and those that may not.

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
