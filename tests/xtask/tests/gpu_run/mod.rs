//! `.ci/gpu-run`, which runs packed programs on a machine that has GPUs: which steps, in which order, and what it says of
//! them.
//!
//! Nothing here needs a GPU: shell scripts stand in for programs and for NVIDIA's tools. Without Python, tests are skipped.

#![cfg(target_os = "linux")]

mod killed;
mod package;

use package::Package;

use crate::*;

#[test]
fn what_is_slow_is_tested_and_not_measured() {
    let Some(package) = Package::of("gpu-check") else { return };
    let first = starts_with("version 1.2.3, commit abcdef, profile gpu-check\n");
    let measuring = ["--only", "tests-gpu,busy-lenet"];
    let refused = package.run(&measuring).assert().code(1).stdout(first);
    refused.stderr(contains("busy-lenet-f32 measures").and(contains("--any-profile")));
    assert!(!package.root().join("results").exists());
    package.run(&["--only", "tests-gpu,law3", "--results", "first"]).assert().success();
    assert!(package.root().join("first/results.json").exists());
    let all = [&measuring[..], &["--any-profile"]].concat();
    package.run(&all).assert().success();
    assert_eq!(package.results()["steps"].as_array().unwrap().len(), 4);
    Package::of("release").unwrap().run(&measuring).assert().success();
}

#[test]
fn what_is_wanted_most_comes_first() {
    let Some(package) = Package::of("release") else { return };
    package.program("bin/compute-sanitizer", "");
    let listed = |only: &str| -> Vec<String> {
        let list = package.run(&["--list", "--only", only]).assert().success();
        let list = String::from_utf8(list.get_output().stdout.clone()).unwrap();
        list.lines().map(|line| line.split(' ').next().unwrap().to_owned()).collect()
    };
    let beside_pytorch = listed("pytorch,deter,compiled,tuned");
    let place = |name: &str| beside_pytorch.iter().position(|step| step.starts_with(name)).unwrap();
    let order = [
        "pytorch-quick",
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
    let Some(package) = Package::of("release") else { return };
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

#[test]
fn each_step_has_a_trace_of_its_own_and_says_how_the_gpu_was() {
    let Some(package) = Package::of("release") else { return };
    let traced =
        "for flag; do case $flag in --trace=*) echo traced >>${flag#--trace=} ;; esac; done";
    package.program("single-gpu", traced);
    package.program("concise-wrapper", traced);
    package.run(&["--only", "busy"]).assert().success();
    let results = package.results();
    let steps = results["steps"].as_array().unwrap();
    assert_eq!(steps.len(), 6);
    for step in steps {
        let trace = format!("results/{}.json", step["name"].as_str().unwrap());
        assert_eq!(fs::read_to_string(package.root().join(trace)).unwrap(), "traced\n");
        for when in ["before", "after"] {
            let said = step["gpu_states"][when][0].as_str().unwrap();
            assert_eq!(said, "1980, 312.5, 41, 0x0000000000000001, 1024");
        }
    }
}

#[test]
fn tests_have_what_cargo_gives_them() {
    let Some(package) = Package::of("release") else { return };
    package.program("tests/training", "echo $TEST_DEVICE, $CANDLE_NUM_THREADS");
    package.run(&["--only", "tests-gpu"]).assert().success();
    let said = fs::read_to_string(package.root().join("results/tests-gpu.txt")).unwrap();
    assert_eq!(said, "cuda, 1\n");
    // Python keeps what it has compiled beside its modules, unless it is told not to.
    assert!(!package.root().join("gpu_run/__pycache__").exists());
}

#[test]
fn a_step_without_a_test_has_failed() {
    let Some(package) = Package::of("release") else { return };
    package.program("tests/training", "echo; echo 'running 0 tests'");
    package.run(&["--only", "tests-gpu,tests-tf32"]).assert().code(1);
    let results = package.results();
    assert_eq!(results["steps"][0]["ended"], "exit code 0, but no test has such a name");
    assert_eq!(results["steps"][1]["outcome"], "succeeded");
}

#[test]
fn who_is_on_the_gpu_already_is_told() {
    let Some(package) = Package::of("release") else { return };
    let only = ["--only", "tests-gpu", "--results"];
    let alone = package.run(&[&only[..], &["alone"]].concat()).assert().success();
    alone.stdout(contains("note: another").not());
    let bin = package.root().join("bin");
    fs::rename(bin.join("nvidia-smi"), bin.join("alone")).unwrap();
    let busy =
        "case $* in *compute-apps*) echo '77, python, 900 MiB' ;; *) exec alone \"$@\" ;; esac";
    package.program("bin/nvidia-smi", busy);
    let told = contains("note: another process is on the GPU: 77, python, 900 MiB\n");
    package.run(&[&only[..], &["results"]].concat()).assert().success().stdout(told);
    assert_eq!(package.results()["machine"]["other_processes"][0], "77, python, 900 MiB");
}

#[test]
fn tests_that_failed_are_run_again_alone() {
    let Some(package) = Package::of("release") else { return };
    // The second fails because of the first.
    let together = "echo 'test a::first ... note\nFAILED\ntest b ... ok\ntest second ... FAILED\n
        failures:\n\nfailures:\n    a::first\n    second\n
        test result: FAILED. 1 passed; 2 failed' | sed 's/^        //'; exit 101";
    let gpu = format!("case $* in *a::first*) exit 101 ;; *second*) ;; *) {together} ;; esac");
    package.program("tests/training", &gpu);
    let crash = "case $* in *--exact*) ;; *) echo 'test one ... ok'; echo 'test two ... '; kill -SEGV $$ ;; esac";
    package.program("tests/backends", crash);
    package.program("tests/tf32", "echo 'test one ... '; exit 101");
    package.run(&["--only", "tests-gpu,tests-nccl,tests-tf32"]).assert().code(1);
    let results = package.results();
    let alone = |name: &str| {
        let mut steps = results["steps"].as_array().unwrap().iter();
        let step = steps.find(|step| step["name"] == name).unwrap();
        assert_eq!(step["outcome"], "failed");
        let alone = step["alone"].as_array().into_iter().flatten();
        let told = |one: &serde_json::Value| {
            [&one["test"], &one["ended"]].map(|it| it.as_str().unwrap().to_owned())
        };
        alone.map(told).collect::<Vec<_>>()
    };
    let (fails, succeeds) = ("exit code 101", "exit code 0");
    assert_eq!(alone("tests-gpu"), [["a::first", fails], ["second", succeeds]]);
    assert_eq!(alone("tests-nccl"), [["two", succeeds]]);
    assert!(alone("tests-tf32").is_empty());
    assert!(package.root().join("results/tests-gpu.alone-2.txt").exists());
}

#[test]
fn pytorch_that_does_not_load_has_a_version() {
    let Some(package) = Package::of("release") else { return };
    let torch = package.root().join("site/torch");
    fs::create_dir_all(&torch).unwrap();
    fs::write(torch.join("__init__.py"), "raise OSError('libcudart.so.13 is not there')\n")
        .unwrap();
    fs::write(torch.join("version.py"), "__version__ = '2.0.1+cu130'\n").unwrap();
    let mut run = package.run(&["--only", "tests-gpu"]);
    run.env("PYTHONPATH", package.root().join("site")).assert().success();
    assert_eq!(package.results()["pytorch"], "2.0.1+cu130");
}
