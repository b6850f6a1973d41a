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
