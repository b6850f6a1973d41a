//! A small GPT on a small text.

use predicates::prelude::*;
use predicates::str::contains;
use serde_json::Value;

use super::runs::small_gpt;
use super::wrapped::said;
use super::{all_metrics, program};

fn with<'a>(small: &'a [String], further: &[&'a str]) -> Vec<&'a str> {
    small.iter().map(|flag| &**flag).chain(further.iter().copied()).collect()
}

#[test]
fn a_gpt_is_trained_in_stages_and_in_parts() {
    let (_folder, small) = small_gpt();
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
    // On all axes, in f64.
    let mesh = ["--mesh=2x2x2", "--dtype=f64", "--micro-batches=2"];
    program(&with(&small, &mesh))
        .assert()
        .success()
        .stdout(contains("Weights: the largest difference"))
        .stdout(contains("more than rounding").not());
}

/// In parts, half of what lies between f and g is on another device, and a sum over devices leaves one tensor.
#[test]
fn bytes_are_predicted_and_a_part_keeps_fewer_activations_than_the_whole() {
    let (_folder, small) = small_gpt();
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
