//! Who takes part, in turn, and who fails.

use super::stand_ins::{answers, peers, stored};
use crate::*;

#[test]
fn sides_take_turns_and_ratios_are_of_neighbours() {
    let folder = answers(&[
        ("lenet-step.1", r#"{"seconds": {"step": [0.011, 0.010, 0.009]}}"#),
        ("lenet-step.2", r#"{"seconds": {"step": [0.020]}}"#),
        ("lenet-step.3", "a warning\n{\"seconds\": {\"step\": [0.029, 0.031]}}\n\n"),
        ("lenet_step.py.1", r#"{"seconds": {"step": [0.005]}}"#),
        ("lenet_step.py.2", r#"{"seconds": {"step": [0.005]}}"#),
        ("lenet_step.py.3", r#"{"seconds": {"step": [0.060]}}"#),
        // The comparison with two threads follows.
        ("lenet-step", r#"{"seconds": {"step": [1]}}"#),
        ("lenet_step.py", r#"{"seconds": {"step": [2]}}"#),
    ]);
    let flags = ["--alternations", "3", "--only", "lenet-step"];
    let run = peers(folder.path(), &flags).assert().success();
    let run = run.stdout(diff(
        "work                                           threads      ours  peer                   theirs  ours ÷ theirs (min–max)\n\
         LeNet step, batch 256                                1   20.0 ms  PyTorch               5.00 ms  2.00 (0.50–4.00)\n\
         LeNet step, batch 256                                2   1000 ms  PyTorch               2000 ms  0.50 (0.50–0.50)\n",
    ));
    let run =
        run.stderr(contains("LeNet step, batch 256, threads 1, turn 3 of 3: PyTorch 60.0 ms\n"));
    run.stderr(contains("threads 2, turn 1 of 3: ours 1000 ms\n"));
    let log = fs::read_to_string(folder.path().join("log")).unwrap();
    let turns = "lenet-step\nlenet_step.py\n".repeat(6);
    assert_eq!(log, format!("versions.py\n{turns}"));

    let stored = stored(folder.path());
    assert_eq!(stored["command"], "cargo xtask peers --alternations 3 --only lenet-step");
    assert_eq!(stored["alternations"], 3);
    assert_eq!(stored["quick"], false);
    assert_eq!(stored["versions"]["torch"], "2.0");
    assert_eq!(stored["versions"]["mpi4py"], Value::Null);
    assert!(stored["versions"]["candle"].is_string());
    assert!(stored["machine"]["processor"].is_string());
    assert!(stored["machine"]["cores"].as_u64().unwrap() > 0);
    let row = &stored["rows"][0];
    assert_eq!((&row["topic"], &row["unit"]), (&"lenet-step".into(), &"seconds".into()));
    assert_eq!(row["ours"][0]["median"], 0.02);
    assert_eq!(row["ours"][0]["runs"], serde_json::json!([0.01, 0.02, 0.03]));
    let ratio = serde_json::json!({"median": 2.0, "min": 0.5, "max": 4.0});
    assert_eq!(row["peers"][0]["ratio"], ratio);
}

#[test]
fn the_best_of_our_ways_is_compared_and_a_peer_that_fails_is_told() {
    let all_reduce = |small: f64, large: f64| {
        format!(r#"{{"seconds": {{"4 KB": [{small}], "1 MB": [1], "45 MB": [{large}]}}}}"#)
    };
    // In this order: one-shot, naive, tree, ring.
    let folder = answers(&[
        ("all-reduce.1", &all_reduce(5.0, 45.0)),
        ("all-reduce.2", &all_reduce(4.0, 50.0)),
        ("all-reduce.3", &all_reduce(2.0, 40.0)),
        ("all-reduce.4", &all_reduce(3.0, 30.0)),
        ("all-reduce", &all_reduce(9.0, 90.0)),
        ("all_reduce_mpi.py", &all_reduce(8.0, 60.0)),
        ("add-and-copy", r#"{"seconds": {"4 KB": [1]}}"#),
    ]);
    let run = peers(folder.path(), &["--alternations", "1", "--only", "all-reduce"]).assert();
    let told = contains("all-reduce, 4 KB (ours: tree)")
        .and(contains("all-reduce, 45 MB (ours: ring)"))
        .and(contains("Gloo failed: OSError: all_reduce_gloo.py has no answer\n"))
        .and(contains("limit: add and copy failed: did not measure \"1 MB\""));
    run.code(1).stdout(told).stderr(ends_with("\nerror: failed: Gloo, limit: add and copy\n"));
    let stored = stored(folder.path());
    let large = &stored["rows"][2];
    assert_eq!(large["best"], "ring");
    assert_eq!(large["peers"][0]["failure"], "OSError: all_reduce_gloo.py has no answer");
    assert_eq!(large["peers"][0]["median"], Value::Null);
    assert_eq!(large["peers"][1]["side"], "Open MPI");
    assert_eq!(large["peers"][1]["ratio"]["median"], 0.5);
}

#[test]
fn whoever_hangs_is_named() {
    let folder = answers(&[("lenet-step", r#"{"seconds": {"step": [1]}}"#)]);
    stand_in(folder.path().join("lenet_step.py"), "exec sleep 300").unwrap();
    let flags = ["--alternations", "2", "--patience", "1", "--only", "lenet-step"];
    let run = peers(folder.path(), &flags).assert().code(1);
    run.stderr(contains("turn 1 of 2: PyTorch failed: did not end within 1 s\n"));
    let row = &stored(folder.path())["rows"][0];
    assert_eq!(row["ours"][0]["runs"], serde_json::json!([1.0, 1.0]));
}

#[test]
fn whoever_fails_is_not_asked_again() {
    let step = r#"{"seconds": {"step": [1]}}"#;
    let folder = answers(&[("data-parallel-step", step), ("lenet-step.1", step)]);
    let flags = ["--alternations", "4", "--only", "data-parallel-step"];
    peers(folder.path(), &flags).assert().code(1);
    let log = fs::read_to_string(folder.path().join("log")).unwrap();
    let calls = |name: &str| log.lines().filter(|line| *line == name).count();
    assert_eq!(calls("data-parallel-step"), 4);
    assert_eq!(calls("lenet-step"), 2);
    assert_eq!(calls("data_parallel_step.py"), 1);
    // One run out of four is not a result.
    let one_device = &stored(folder.path())["rows"][0]["peers"][0];
    assert_eq!((&one_device["median"], &one_device["ratio"]), (&Value::Null, &Value::Null));
}

#[test]
fn a_python_without_pytorch_is_told_before_anything_is_measured() {
    let folder = answers(&[]);
    fs::remove_file(folder.path().join("versions.py")).unwrap();
    let run = peers(folder.path(), &[]).assert().code(1).stdout("");
    run.stderr(contains("has no PyTorch that works (OSError").and(contains("--set-up")));
    assert!(!folder.path().join("out.json").exists());
}
