//! The lines of a run: their width, the conclusion, and the files that they name.

use predicates::prelude::*;
use predicates::str::contains;

use crate::{SMALL, screen, wrapper};

/// A run of a second.
const QUICK: [&str; 6] = [
    "--data=synthetic",
    "--train-size=70",
    "--test-size=20",
    "--epochs=1",
    "--batch-size=16",
    "--width=4",
];

#[test]
fn lines_fit_into_a_terminal() {
    let lenet = ["--data=synthetic", "--model=lenet", "--train-size=70", "--test-size=20"];
    let runs: [&[&str]; 4] = [
        &SMALL,
        &[&QUICK[..], &["--wrapper=data-parallel", "--scale=none"]].concat(),
        &[&QUICK[..], &["--devices=4", "--shards=4", "--slow-link=50"]].concat(),
        &[&lenet[..], &["--epochs=1", "--batch-size=16", "--devices=1"]].concat(),
    ];
    for run in runs {
        let arguments = [&["--device=cpu", "--threads-per-device=1"], run].concat();
        screen::check_width(env!("CARGO_BIN_EXE_concise-wrapper"), &arguments);
    }
}

#[test]
fn a_run_ends_with_its_conclusion() {
    let output = |flags: &[&str]| {
        let ended = wrapper(&[&QUICK[..], flags].concat()).env("COLUMNS", "80").assert().success();
        String::from_utf8(ended.get_output().stdout.clone()).expect("UTF-8")
    };
    let conclusion = |flags: &[&str]| {
        let text = output(flags);
        // Sentences may be cut anywhere.
        text.rsplit("\n\n").next().unwrap().replace('\n', " ")
    };
    let alone = conclusion(&["--devices=1"]);
    assert!(alone.contains("guessing"), "{alone}");
    let shards = conclusion(&["--shards=4"]);
    assert!(shards.ends_with("end with the same weights, to the last bit. "), "{shards}");
    // The runs are too short for a ratio of their times.
    let text = output(&["--scale=none"]);
    assert!(text.contains("\nddp: 2 replicas ended with the same weights\n"), "{text}");
    assert!(text.replace('\n', " ").contains("Runs below 0.5 s are too short"), "{text}");
    assert!(!text.contains("× over") && !text.contains("as fast"), "{text}");
}

#[test]
fn files_are_announced() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let files = ["--metrics=m.jsonl", "--plot=p.svg", "--record=r.jsonl", "--checkpoint=run"];
    let mut run = wrapper(&QUICK);
    run.current_dir(folder.path()).args(files);
    // Three batches of two devices.
    let announced = "--metrics: m.jsonl\n--plot: p.svg\n--record: r.jsonl\n--checkpoint: run/step-00000003.safetensors\n";
    run.assert().success().stdout(predicate::str::ends_with(announced));
    for written in ["m.jsonl", "p.svg", "r.jsonl", "run/step-00000003.safetensors"] {
        assert!(std::path::Path::new(&path(written)).is_file(), "{written}");
    }
    let mut refused = wrapper(&QUICK);
    refused.current_dir(folder.path()).args(["--plot=p.png"]);
    refused.assert().code(2).stdout("").stderr(contains("an SVG picture").and(contains("p.svg")));
}
