//! `.ci/gpu-run`, which runs packed programs on a machine that has GPUs: which steps, in which order, and what it says of
//! them.
//!
//! Nothing here needs a GPU: shell scripts stand in for programs and for NVIDIA's tools. Without Python, tests are skipped.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "in a test a panic is the right answer")]

mod package;

use package::{Package, there_is_python};
use predicates::prelude::PredicateBooleanExt as _;
use predicates::str::{contains, starts_with};

#[test]
fn what_is_slow_is_tested_and_not_measured() {
    if !there_is_python() {
        return;
    }
    let package = Package::of("gpu-check");
    let first = starts_with("version 1.2.3, commit abcdef, profile gpu-check\n");
    let measuring = ["--only", "tests-gpu,busy-lenet"];
    let refused = package.run(&measuring).assert().code(1).stdout(first);
    refused.stderr(contains("busy-lenet-f32 measures").and(contains("--any-profile")));
    assert!(!package.root().join("results").exists());
    package.run(&["--only", "tests-gpu,law3", "--results", "first"]).assert().success();
    assert!(package.root().join("first/results.json").exists());
    let all = [&measuring[..], &["--any-profile"]].concat();
    package.run(&all).assert().success();
    assert_eq!(package.results()["steps"].as_array().unwrap().len(), 3);
    Package::of("release").run(&measuring).assert().success();
}

#[test]
fn what_is_wanted_most_comes_first() {
    if !there_is_python() {
        return;
    }
    let package = Package::of("release");
    package.program("bin/compute-sanitizer", "");
    let listed = |only: &str| -> Vec<String> {
        let list = package.run(&["--list", "--only", only]).assert().success();
        let list = String::from_utf8(list.get_output().stdout.clone()).unwrap();
        list.lines().map(|line| line.split(' ').next().unwrap().to_owned()).collect()
    };
    let beside_pytorch = listed("pytorch,deter,compiled,tuned");
    let place = |name: &str| beside_pytorch.iter().position(|step| step.starts_with(name)).unwrap();
    let order = [
        "pytorch-lenet",
        "pytorch-resnet18-256",
        "deterministic-resnet18-256",
        "compiled-resnet18-256",
        "tuned-resnet18-256",
        "pytorch-resnet18-512",
        "compiled-resnet18-512",
    ];
    assert!(order.map(place).is_sorted(), "{beside_pytorch:?}");
    // Those of kernels of ours are few, and quick.
    let own = ["sanitizer-memcheck-own", "sanitizer-racecheck-own"];
    assert_eq!(listed("sanitizer")[..2], own);
}

#[test]
fn a_tool_that_does_not_know_the_gpu_is_not_there() {
    if !there_is_python() {
        return;
    }
    let package = Package::of("release");
    let says =
        "echo '========= Error: Device not supported. Please refer to the documentation'; exit 1";
    package.program("bin/compute-sanitizer", says);
    let run = package.run(&["--only", "sanitizer-racecheck"]).assert().success();
    run.stdout(
        contains("not there: Error: Device not supported").and(contains("1 without a tool")),
    );
    let results = package.results();
    assert_eq!(results["steps"][0]["outcome"], "not there");
    package.program("bin/compute-sanitizer", "echo '========= Invalid __global__ write'; exit 1");
    package.run(&["--only", "sanitizer-racecheck", "--results", "second"]).assert().code(1);
}
