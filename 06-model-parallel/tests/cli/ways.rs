//! What every way to split the model comes to.

use predicates::prelude::*;
use predicates::str::contains;
use serde_json::Value;

use super::wrapped::said;
use super::{SMALL, all_metrics, metrics, program};

/// Each run's name, and the hash of its weights.
fn hashes(arguments: &[&str]) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let summaries = metrics(&[&SMALL[..], arguments].concat(), "summary");
    summaries.iter().map(|line| (text(&line["run"]), text(&line["weights_hash"]))).collect()
}

#[test]
fn all_ways_of_a_small_dense_stack() {
    let widths = ["--widths=20,18,16"];
    program(&[&SMALL[..], &widths].concat())
        .assert()
        .success()
        .stdout(contains("dense stack 784-20-18-16-10 on synthetic garments: 70 training"))
        .stdout(contains("note: 2 stages, cut by measured cost: layer"))
        .stdout(contains("GPipe, 8 micro-batches on 2 devices"))
        .stdout(contains("s/step  predicted  measured\n"))
        .stdout(contains("idle time (bubble)"))
        .stdout(contains("Weights: the largest difference from the weights of one device"))
        .stdout(contains("Memory of each device"))
        .stdout(contains("\nnaive ended with the weights of one device, to the last bit."))
        .stdout(said(
            "GPipe, 1F1B, interleaved 1F1B and ZB-H1 ended with the weights of one device on 8 micro-batches, to the last \
             bit.",
        ))
        .stdout(contains("\nRuns below 0.5 s are too short for reliable times."))
        .stdout(contains("Fastest").or(contains("×")).not())
        .stdout(contains("\nLeast memory: "))
        .stdout(contains("\nGPipe: test acc "))
        .stdout(contains("\n  on [cpu:0 (1 core), cpu:1 (1 core)]\n"));
    let runs = hashes(&widths);
    let names: Vec<&str> = runs.iter().map(|(name, _)| name.as_str()).collect();
    let all = [
        "one device",
        "one device, 8 micro-batches",
        "naive, whole batch",
        "GPipe, 8 micro-batches",
        "1F1B, 8 micro-batches",
        "interleaved 1F1B, 2 chunks, 8 micro-batches",
        "ZB-H1, 8 micro-batches",
        "tensor parallel",
    ];
    assert_eq!(names, all);
    assert_eq!(runs[0].1, runs[2].1, "a batch that passes two stages in one piece");
    let same = runs[3..7].iter().all(|run| run.1 == runs[1].1);
    assert!(same, "the order of the schedule is not that of the sum: {runs:?}");
}

/// Eight shards of each batch, on one pipeline or several, on several stages or one: the hash of the weights, and the loss.
#[test]
fn the_same_shards_give_the_same_bits_on_any_mesh() {
    for model in [&["--model=lenet"][..], &["--model=resnet18", "--width=4"]] {
        // Of the last run, and of one device on as many micro-batches.
        let both = |shards: &str, arguments: &[&str]| {
            let all = all_metrics(&[&SMALL[..], model, &[shards], arguments].concat());
            let of_kind = |kind: &str, run: &str| {
                let is_wanted = |line: &&Value| line["kind"] == kind && line["run"] == run;
                all.iter().rfind(is_wanted).unwrap_or_else(|| panic!("{run}")).clone()
            };
            let mut names =
                all.iter().filter(|line| line["kind"] == "summary").map(|it| &it["run"]);
            let last = names.next_back().and_then(Value::as_str).expect("a run");
            ["one device, 8 micro-batches", last].map(|run| {
                let loss = of_kind("epoch", run)["train_loss"].clone();
                (of_kind("summary", run)["weights_hash"].clone(), loss)
            })
        };
        let expected = both("--shards=8", &["--devices=1"])[0].clone();
        assert!(expected.1.is_f64(), "{expected:?}");
        for arguments in [
            &["--mesh=1x2x1"][..],
            &["--mesh=1x3x1", "--schedule=gpipe"],
            &["--mesh=1x2x1", "--schedule=interleaved:2"],
            &["--mesh=1x3x1", "--schedule=zb-h1"],
            &["--mesh=2x2x1"],
            &["--mesh=2x2x1", "--schedule=zb-h1"],
            &["--mesh=4x1x1"],
            &["--mesh=8x1x1"],
        ] {
            for found in both("--shards=8", arguments) {
                assert_eq!(found, expected, "{model:?} {arguments:?}");
            }
        }
        let runs = hashes(&[model, &["--shards=7", "--mesh=1x2x1"]].concat());
        assert!(runs.iter().all(|(_, hash)| *hash != expected.0), "{runs:?}");
    }
}

#[test]
fn with_norms_a_pipeline_is_one_device_on_the_same_micro_batches() {
    let runs = hashes(&["--model=resnet18", "--width=4", "--micro-batches=3"]);
    let hash = |name: &str| {
        &runs.iter().find(|(run, _)| run == name).unwrap_or_else(|| panic!("{name}: {runs:?}")).1
    };
    assert_eq!(hash("one device, 3 micro-batches"), hash("1F1B, 3 micro-batches"));
    assert_eq!(hash("one device, 3 micro-batches"), hash("GPipe, 3 micro-batches"));
    assert_eq!(hash("one device, 3 micro-batches"), hash("ZB-H1, 3 micro-batches"));
    assert_ne!(hash("one device"), hash("1F1B, 3 micro-batches"));
    let several = hashes(&["--model=resnet18", "--width=2", "--mesh=2x2x1", "--shards=4"]);
    let [_, (name, alone), (_, replicas)] = several.as_slice() else { panic!("{several:?}") };
    assert_eq!((name.as_str(), alone), ("one device, 4 micro-batches", replicas));
}

/// The two columns of the table that tell how far a run is from one device.
fn differences(arguments: &[&str], run: &str) -> [String; 2] {
    let output = program(arguments).assert().success().get_output().stdout.clone();
    let text = String::from_utf8(output).expect("text");
    let table = text.split("\nWeights: ").nth(1).unwrap_or_else(|| panic!("{text}"));
    let mut lines = table.lines().filter(|line| line.starts_with(run));
    let line = lines.next().unwrap_or_else(|| panic!("{text}"));
    let fields: Vec<&str> = line.split_whitespace().collect();
    [fields[fields.len() - 2].to_owned(), fields[fields.len() - 1].to_owned()]
}

#[test]
fn the_table_compares_with_the_device_that_took_the_same_pieces() {
    let resnet18 = [&SMALL[..], &["--model=resnet18", "--width=2"]].concat();
    for run in ["naive", "1F1B", "ZB-H1"] {
        assert_eq!(differences(&resnet18, run), ["0", "0"], "{run}");
    }
    // In f32 rounding differs after the first step, and grows.
    let dense = ["--data=synthetic", "--train-size=70", "--test-size=20", "--epochs=5"];
    let dense = [&dense[..], &["--batch-size=32", "--widths=20,18", "--schedule=gpipe"]].concat();
    let [first, last] = differences(&dense, "GPipe");
    assert!(first != "0" && first != last, "{first} {last}");
}

#[test]
fn parts_and_replicas_of_parts() {
    program(&[&SMALL[..], &["--mesh=2x1x2", "--widths=20,18", "--dtype=f64"]].concat())
        .assert()
        .success()
        .stdout(contains("tensor parallel, mesh 2x1x2: 2 replicas ended with the same weights."));
    program(&[&SMALL[..], &["--mesh=2x2x2", "--widths=20,18,16", "--dtype=f64"]].concat())
        .assert()
        .success()
        .stdout(contains("one device, 16 micro-batches"))
        .stdout(contains("1F1B, 8 micro-batches, mesh 2x2x2 on 8 devices"))
        .stdout(contains(
            "1F1B, 8 micro-batches, mesh 2x2x2: 2 replicas ended with the same weights.",
        ));
    // Every other layer is cut along its inputs: it may have fewer outputs than there are parts.
    program(&[&SMALL[..], &["--mesh=1x1x3", "--widths=20,2"]].concat()).assert().success();
}

/// It needs no sample for each of eight micro-batches.
#[test]
fn naive_takes_batches_of_any_size() {
    let small = ["--data=synthetic", "--train-size=9", "--test-size=5", "--epochs=1"];
    let naive = ["--schedule=naive", "--batch-size=4", "--widths=20"];
    let runs = metrics(&[&small[..], &naive].concat(), "summary");
    let names: Vec<&Value> = runs.iter().map(|line| &line["run"]).collect();
    assert_eq!(names, ["one device", "naive, whole batch"]);
}

#[test]
fn one_device_alone_has_nothing_to_split() {
    program(&[&SMALL[..], &["--devices=1", "--widths=20"]].concat())
        .assert()
        .success()
        .stdout(contains("one device"))
        .stdout(contains("pipeline").not());
}

/// A default schedule that does not exist for the stages and the layers is left out, with a note.
#[test]
fn a_schedule_that_does_not_exist_here_is_left_out() {
    for (arguments, note) in [
        (&["--widths=20,18"][..], "3 layers cannot be cut into 4 stages"),
        (&["--widths=20,18,16", "--micro-batches=3"], "3 micro-batches cannot be interleaved on 2"),
        (&["--widths=20,18,16", "--cut=2"], "--cut 2 makes 2 stages, not 4"),
    ] {
        let noted = said("note: no interleaved 1F1B, 2 chunks: ").and(said(note));
        let ways = contains("ZB-H1, ").and(contains("interleaved 1F1B, 2 chunks, ").not());
        program(&[&SMALL[..], arguments].concat()).assert().success().stdout(noted.and(ways));
    }
}
