//! What is left of a step when the script is ended: its results, if it had any. When it is killed, and cannot end the step
//! itself: nothing.

use std::process::Stdio;
use std::thread::sleep;

use super::package::Package;
use crate::*;

/// Kills the script while it runs this step, and waits until the process has ended whose number is in `results/pid`.
#[track_caller]
fn ends_with_the_script(package: &Package, step: &str) {
    let mut run = package.command(&["--only", step]).stdout(Stdio::null()).spawn().unwrap();
    let pid = package.root().join("results/pid");
    wait_until(|| pid.exists());
    run.kill().unwrap();
    run.wait().unwrap();
    let status = Path::new("/proc").join(fs::read_to_string(pid).unwrap().trim()).join("status");
    // A process that is ended stays in the table until whoever inherits it looks.
    wait_until(|| fs::read_to_string(&status).map_or(true, |status| status.contains("Z (zombie)")));
}

#[test]
fn a_step_ends_with_a_script_that_is_killed() {
    let Some(package) = Package::of("release") else { return };
    package.program("tests/training", "echo $$ >pid.new; mv pid.new pid; exec sleep 300");
    ends_with_the_script(&package, "tests-gpu");
}

#[test]
fn so_does_what_is_watched_by_a_tool_that_leaves_it_behind() {
    let Some(package) = Package::of("release") else { return };
    let watches = "sleep 300 & echo $! >pid.new; mv pid.new pid; wait";
    package.program("bin/compute-sanitizer", watches);
    ends_with_the_script(&package, "sanitizer-racecheck");
}

#[test]
fn a_step_that_had_ended_is_not_lost() {
    let Some(package) = Package::of("release") else { return };
    // The GPU does not answer any more: once a step is done, it is asked how it is.
    package.program("tests/training", "echo 'exec sleep 300' >>../bin/nvidia-smi; touch done");
    let answers = package.root().join("bin/nvidia-smi");
    let answer = fs::read_to_string(&answers).unwrap();
    package.program("bin/nvidia-smi", &answer.replace("#!/bin/sh\n", ""));
    let mut run = package.command(&["--only", "tests-gpu"]).stdout(Stdio::null()).spawn().unwrap();
    let done = package.root().join("results/done");
    wait_until(|| done.exists());
    sleep(Duration::from_millis(500));
    let ended = std::process::Command::new("kill").arg(run.id().to_string()).status().unwrap();
    assert!(ended.success());
    assert_eq!(run.wait().unwrap().code(), Some(143));
    assert_eq!(package.results()["steps"][0]["outcome"], "succeeded");
    assert!(package.root().join("results/results.tar.gz").exists());
}
