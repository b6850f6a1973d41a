//! `cargo xtask peers`: who takes part takes turns, ratios are of neighbours, failures are told.
//!
//! Nothing here needs Python: a shell script stands in for both sides, with answers that are known.

#[cfg(unix)]
mod stand_ins;
#[cfg(unix)]
mod tables;
#[cfg(unix)]
mod turns;

#[cfg(not(debug_assertions))]
use devices::{DeviceKind, DevicePlan};

use crate::*;

fn alone(words: &[&str]) -> Command {
    let mut command = tool(words);
    command.env("XDG_CACHE_HOME", concat!(env!("CARGO_TARGET_TMPDIR"), "/no-cache"));
    command.env("HOME", concat!(env!("CARGO_TARGET_TMPDIR"), "/no-home"));
    command
}

#[test]
fn mistakes_in_the_flags_are_one_line() {
    let refused = |flags: &[&str]| alone(&["peers"]).args(flags).assert().code(2);
    refused(&["--alternations", "0"]).stderr(contains("0 is not in 1..=1000"));
    refused(&["--only", "everything"]).stderr(contains("'everything'").and(contains("lenet-step")));
    refused(&["--set-up", "--python", "p"]).stderr(contains("cannot be used with"));
    // All is f32 there, and no step has seven images.
    refused(&["--precision", "tf32"]).stderr(contains("nothing that is measured has all that"));
    refused(&["--only", "lenet-step", "--batch", "7"]).stderr(contains("nothing that is measured"));
    refused(&["--batch", "256", "--update"]).stderr(contains("--only"));
    let nowhere = ["--only", "memory", "--ours", "o", "--output", "/no/such/folder/file"];
    alone(&["peers"]).args(nowhere).assert().code(1).stderr(starts_with("error: /no/such"));
}

/// On a machine without a GPU; elsewhere there is nothing to refuse.
#[cfg(not(debug_assertions))]
#[test]
fn without_a_gpu_nothing_is_measured_on_one() {
    if DevicePlan::new(DeviceKind::Cuda, 1, None).is_ok() {
        return eprintln!("SKIPPED: there is a GPU");
    }
    let refused = alone(&["peers", "--device", "cuda"]).assert().code(2).stdout("");
    refused.stderr(starts_with("error: ").and(contains("use --device cpu")));
}

#[cfg(debug_assertions)]
#[test]
fn an_unoptimised_build_is_not_measured() {
    let answer = alone(&["peers", "--only", "memory"]).assert().code(1);
    answer.stderr(contains("measure with `cargo xtask peers`"));
}

#[cfg(unix)]
#[test]
fn without_a_python_the_way_to_one_is_told() {
    let answer = alone(&["peers", "--only", "memory", "--ours", "o"]).assert().code(1);
    let told = contains("there is no Python with PyTorch at").and(contains("--set-up"));
    answer.stderr(told.and(contains("multi-gpu-course/peers/bin/python")));
}

/// Our side in earnest: each kind of work at its smallest.
#[test]
fn our_side_answers_with_what_it_is_asked_for() {
    let answer = |flags: &[&str]| -> Value {
        let output = alone(&["peers-ours"]).args(flags).assert().success().get_output().clone();
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let all_positive = |answer: &Value, unit: &str, series: &[&str], repetitions: usize| {
        for name in series {
            let numbers = answer[unit][name].as_array().unwrap();
            assert_eq!(numbers.len(), repetitions, "{answer}");
            assert!(numbers.iter().all(|number| number.as_f64().unwrap() > 0.0), "{answer}");
        }
    };
    let few = ["--batch", "4", "--repetitions", "2"];
    for work in ["lenet-step", "data-parallel-step", "resnet18-step", "resnet18-ddp-step"] {
        all_positive(&answer(&[&[work], &few[..]].concat()), "seconds", &["step"], 2);
    }
    for work in ["lenet-step", "resnet18-step"] {
        let in_bf16 = answer(&[&[work, "--precision", "bf16"], &few[..]].concat());
        all_positive(&in_bf16, "seconds", &["step"], 2);
    }
    let convolutions = answer(&["convolutions", "--batch", "1", "--repetitions", "2"]);
    all_positive(&convolutions, "seconds", &["forward", "backward", "both"], 2);
    for work in ["all-reduce", "add-and-copy"] {
        let answer = answer(&[work, "--repetitions", "1"]);
        all_positive(&answer, "seconds", &["4 KB", "1 MB", "45 MB"], 1);
    }
    all_positive(&answer(&["drawing", "--images", "100"]), "seconds", &["drawing"], 1);
    let decoding = answer(&["decoding", "--images", "60", "--repetitions", "2"]);
    all_positive(&decoding, "seconds", &["decoding"], 2);
    assert_eq!(decoding["note"], "files of synthetic garments");
    if cfg!(target_os = "linux") {
        let memory = answer(&["memory", "--images", "300"]);
        all_positive(&memory, "bytes", &["peak", "before the data"], 1);
        // A batch's activations alone are 20 MB.
        let megabytes = |name: &str| memory["bytes"][name][0].as_f64().unwrap() / 1e6;
        assert!(megabytes("peak") > megabytes("before the data") + 20.0, "{memory}");
    }
}
