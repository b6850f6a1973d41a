//! A small GPT on a small text.

use std::fs;
use std::path::PathBuf;

use predicates::prelude::*;
use predicates::str::contains;
use serde_json::Value;
use tempfile::TempDir;

use super::program::refused;
use super::wrapped::said;
use super::{all_metrics, program};

/// Flags of a small GPT, and a text of pairs of letters. The last batch of its windows is uneven.
fn small() -> (TempDir, Vec<String>) {
    let folder = tempfile::tempdir().expect("a folder");
    let path: PathBuf = folder.path().join("letters.txt");
    let text: Vec<u8> =
        (0..1500u32).map(|at| b"to be\nor not"[(at * at / 5 % 12) as usize]).collect();
    fs::write(&path, text).expect("a file");
    let flags = ["--model=gpt", "--width=16", "--heads=2", "--blocks=2", "--context=8"];
    let run = ["--batch-size=40", "--epochs=1"].map(str::to_owned);
    let text = format!("--text={}", path.display());
    (folder, flags.map(str::to_owned).into_iter().chain(run).chain([text]).collect())
}

fn with<'a>(small: &'a [String], further: &[&'a str]) -> Vec<&'a str> {
    small.iter().map(|flag| &**flag).chain(further.iter().copied()).collect()
}

#[test]
fn a_gpt_is_trained_in_stages_and_in_parts() {
    let (_folder, small) = small();
    program(&with(&small, &[]))
        .assert()
        .success()
        .stdout(said("GPT of 2 blocks, width 16, 2 heads on letters.txt: 167 training and "))
        .stdout(contains("  bits/byte "))
        .stdout(contains("\none device, 8 micro-batches\n"))
        .stdout(contains("\n1F1B, 8 micro-batches on 2 devices\n"))
        .stdout(contains("\ntensor parallel on 2 devices\n"))
        .stdout(said("1F1B ended with the weights of one device on 8 micro-batches, to the last bit."))
        .stdout(said("bits for a byte of the validation text. A bigram model, which counts pairs of bytes, needs "))
        .stdout(contains("\nA text by one device: The "));
}

/// In parts, half of what lies between f and g is on another device, and a sum over devices leaves one tensor.
#[test]
fn bytes_are_predicted_and_a_part_keeps_fewer_activations_than_the_whole() {
    let (_folder, small) = small();
    let lines = all_metrics(&with(&small, &[]));
    let lines: Vec<&Value> = lines.iter().filter(|line| line["kind"] == "split").collect();
    let of = |what: &Value, kind: &str| what[kind].as_f64().expect("bytes");
    for line in &lines {
        for (device, held) in line["held"].as_array().expect("devices").iter().enumerate() {
            let stages = line["predicted_held"].as_array().expect("a prediction");
            let stage = &stages[device % stages.len()];
            for kind in ["parameters", "gradients", "optimizer", "activations"] {
                let (found, expected) = (of(held, kind), of(stage, kind));
                assert!((found - expected).abs() <= 0.02 * found, "{kind} of {device}: {line}");
            }
            assert!((of(held, "total") / of(stage, "total") - 1.0).abs() < 0.02, "{line}");
        }
    }
    let of_run = |name: &str| {
        let line = lines.iter().find(|line| line["run"] == name).expect("a run of this name");
        of(&line["held"][0], "activations")
    };
    assert_eq!(lines.len(), 4);
    assert!(of_run("tensor parallel") < 0.95 * of_run("one device"));
}

/// In f64 all meshes have the weights of one device, up to rounding.
#[test]
fn every_mesh_trains_the_same_gpt() {
    let (_folder, small) = small();
    for mesh in ["2x1x1", "1x2x1", "1x1x2", "2x2x1", "2x1x2", "1x2x2", "2x2x2"] {
        let mesh = format!("--mesh={mesh}");
        let flags = ["--dtype=f64", "--micro-batches=2", &mesh];
        // A mesh without stages has no micro-batches.
        let flags = if mesh.contains("x1x") { vec![flags[0], flags[2]] } else { flags.to_vec() };
        program(&with(&small, &flags))
            .assert()
            .success()
            .stdout(contains("Weights: the largest difference"))
            .stdout(contains("more than rounding").not());
    }
}

#[test]
fn the_same_shards_give_the_same_bits_on_any_mesh() {
    let (_folder, small) = small();
    let hashes = |further: &[&str]| -> Vec<Value> {
        let all = all_metrics(&with(&small, &[&["--shards=4"], further].concat()));
        let of_shards = |line: &&Value| line["kind"] == "summary" && line["run"] != "one device";
        all.iter().filter(of_shards).map(|line| line["weights_hash"].clone()).collect()
    };
    let alone = hashes(&["--devices=1"]);
    assert_eq!(alone.len(), 1);
    for flags in [
        &["--mesh=2x1x1"][..],
        &["--mesh=1x2x1"],
        &["--mesh=4x1x1"],
        &["--mesh=2x2x1", "--schedule=gpipe,zb-h1"],
        &["--mesh=1x4x1"],
    ] {
        let found = hashes(flags);
        assert!(found.len() > 1 && found.iter().all(|hash| *hash == alone[0]), "{flags:?}");
    }
}

#[test]
fn flags_of_other_models_are_refused() {
    for (flags, says) in [
        (
            &["--model=gpt", "--data=synthetic"][..],
            "--data is about images, and --model gpt reads a text",
        ),
        (&["--model=gpt", "--widths=9"], "--widths is about --model dense"),
        (
            &["--model=gpt", "--momentum=0.9"],
            "--momentum is about SGD, and --model gpt trains with AdamW",
        ),
        (
            &["--model=gpt", "--heads=3"],
            "--width 128 cannot be cut into 3 heads: take a multiple, such as 129",
        ),
        (&["--model=gpt", "--mesh=1x1x3"], "4 heads cannot be cut into 3 equal parts"),
        (&["--model=gpt", "--text=/nowhere"], "--text /nowhere: there is no such file"),
        (&["--heads=2"], "--blocks, --heads, --context and --text are about --model gpt"),
        (&["--model=lenet", "--blocks=2"], "are about --model gpt"),
        (&["--text=Cargo.toml"], "are about --model gpt"),
        (&["--context=0"], "a whole number from 1 to 8,192 is expected"),
        (&["--draw", "--context=8"], "cannot be used with"),
    ] {
        refused(program(flags), says);
    }
}
