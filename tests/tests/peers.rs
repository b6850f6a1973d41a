//! `cargo course peers`: who takes part takes turns, ratios are of neighbours, failures are told.
//!
//! Nothing here needs Python: a shell script stands in for both sides, with answers that are known.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the right answer")]

use assert_cmd::Command;
use predicates::prelude::PredicateBooleanExt as _;
use predicates::str::{contains, diff, starts_with};
use serde_json::Value;
#[cfg(not(debug_assertions))]
use single_gpu::device::{DeviceKind, DevicePlan};

fn course() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_course"));
    command.env("XDG_CACHE_HOME", concat!(env!("CARGO_TARGET_TMPDIR"), "/no-cache"));
    command.env("HOME", concat!(env!("CARGO_TARGET_TMPDIR"), "/no-home"));
    command
}

#[test]
fn mistakes_in_the_flags_are_one_line() {
    let refused = |flags: &[&str]| course().arg("peers").args(flags).assert().code(2);
    refused(&["--alternations", "0"]).stderr(contains("0 is not in 1..=1000"));
    refused(&["--only", "everything"]).stderr(contains("'everything'").and(contains("lenet-step")));
    refused(&["--set-up", "--python", "p"]).stderr(contains("cannot be used with"));
    // All is f32 there, and no step has seven images.
    refused(&["--precision", "tf32"]).stderr(contains("nothing that is measured has all that"));
    refused(&["--only", "lenet-step", "--batch", "7"]).stderr(contains("nothing that is measured"));
    refused(&["--batch", "256", "--update"]).stderr(contains("--only"));
    let nowhere = ["--only", "memory", "--ours", "o", "--output", "/no/such/folder/file"];
    course().arg("peers").args(nowhere).assert().code(1).stderr(starts_with("error: /no/such"));
}

/// On a machine without a GPU; elsewhere there is nothing to refuse.
#[cfg(not(debug_assertions))]
#[test]
fn without_a_gpu_nothing_is_measured_on_one() {
    if DevicePlan::new(DeviceKind::Cuda, 1, None).is_ok() {
        return eprintln!("SKIPPED: there is a GPU");
    }
    let refused = course().args(["peers", "--device", "cuda"]).assert().code(2).stdout("");
    refused.stderr(starts_with("error: ").and(contains("use --device cpu")));
}

#[cfg(debug_assertions)]
#[test]
fn an_unoptimised_build_is_not_measured() {
    let answer = course().args(["peers", "--only", "memory"]).assert().code(1);
    answer.stderr(contains("measure with `cargo course peers`"));
}

#[cfg(unix)]
#[test]
fn without_a_python_the_way_to_one_is_told() {
    let answer = course().args(["peers", "--only", "memory", "--ours", "o"]).assert().code(1);
    let told = contains("there is no Python with PyTorch at").and(contains("--set-up"));
    answer.stderr(told.and(contains("multi-gpu-course/peers/bin/python")));
}

/// Our side in earnest: each kind of work at its smallest.
#[test]
fn our_side_answers_with_what_it_is_asked_for() {
    let answer = |flags: &[&str]| -> Value {
        let output = course().arg("peers-ours").args(flags).assert().success().get_output().clone();
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

#[cfg(unix)]
mod with_stand_ins {
    use std::fs;
    use std::path::Path;

    use super::*;

    const STAND_IN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/stand-in.sh");

    /// A folder with these answers, and those that every run asks for.
    fn answers(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let versions = ("versions.py", r#"{"python": "3.0", "torch": "2.0", "mpi4py": null}"#);
        for (name, answer) in files.iter().chain([&versions]) {
            fs::write(folder.path().join(name), answer).unwrap();
        }
        folder
    }

    fn peers(answers: &Path, flags: &[&str]) -> Command {
        let mut command = course();
        command.env("ANSWERS", answers).args(["peers", "--ours", STAND_IN, "--python", STAND_IN]);
        command.arg("--output").arg(answers.join("out.json")).args(flags);
        command
    }

    fn stored(answers: &Path) -> Value {
        serde_json::from_slice(&fs::read(answers.join("out.json")).unwrap()).unwrap()
    }

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
        run.stdout(diff(
            "work                                           threads      ours  peer                   theirs  ours ÷ theirs (min–max)\n\
             LeNet step, batch 256                                1   20.0 ms  PyTorch               5.00 ms  2.00 (0.50–4.00)\n\
             LeNet step, batch 256                                2   1000 ms  PyTorch               2000 ms  0.50 (0.50–0.50)\n",
        ));
        let log = fs::read_to_string(folder.path().join("log")).unwrap();
        let turns = "lenet-step\nlenet_step.py\n".repeat(6);
        assert_eq!(log, format!("versions.py\n{turns}"));

        let stored = stored(folder.path());
        assert_eq!(stored["command"], "cargo course peers --alternations 3 --only lenet-step");
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
    fn what_is_stored_has_a_stable_order() {
        let answer = r#"{"seconds": {"drawing": [1], "decoding": [2]}}"#;
        let folder = answers(&[("drawing", answer), ("decoding", answer)]);
        let store = || {
            peers(folder.path(), &["--only", "data", "--quick"]).assert().success();
            let text = fs::read_to_string(folder.path().join("out.json")).unwrap();
            // Midnight may lie between the two.
            let dateless = text.lines().filter(|line| !line.starts_with("  \"date\""));
            dateless.map(|line| format!("{line}\n")).collect::<String>()
        };
        let first = store();
        assert_eq!(first, store());
        assert!(first.starts_with("{\n  \"command\": \"cargo course peers --alternations 1"));
        assert!(first.ends_with("}\n"));
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
        run.code(1).stdout(told).stderr("error: failed: Gloo, limit: add and copy\n");
        let stored = stored(folder.path());
        let large = &stored["rows"][2];
        assert_eq!(large["best"], "ring");
        assert_eq!(large["peers"][0]["failure"], "OSError: all_reduce_gloo.py has no answer");
        assert_eq!(large["peers"][0]["median"], Value::Null);
        assert_eq!(large["peers"][1]["side"], "Open MPI");
        assert_eq!(large["peers"][1]["ratio"]["median"], 0.5);
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
    fn an_update_replaces_its_own_rows_and_no_others() {
        let step = |seconds: &str| format!(r#"{{"seconds": {{"step": [{seconds}]}}}}"#);
        let with = |ours: &str| {
            let (ours, theirs) = (step(ours), step("2"));
            answers(&[("lenet-step", &ours), ("lenet_step.py", &theirs)])
        };
        let (before, after) = (with("2"), with("1"));
        peers(before.path(), &["--only", "lenet-step"]).assert().success();
        fs::copy(before.path().join("out.json"), after.path().join("out.json")).unwrap();
        peers(after.path(), &["--only", "lenet-step", "--update"]).assert().success();
        let medians = |table: &Value| -> Vec<Value> {
            let rows = table["rows"].as_array().unwrap();
            rows.iter().map(|row| row["ours"][0]["median"].clone()).collect()
        };
        assert_eq!(medians(&stored(before.path())), [2.0, 2.0]);
        assert_eq!(medians(&stored(after.path())), [1.0, 1.0]);
        // Alternations are part of how the table was measured.
        let flags = ["--only", "lenet-step", "--update", "--alternations", "3"];
        let refused = || {
            fs::remove_file(after.path().join("log")).unwrap();
            let refused = peers(after.path(), &flags).assert().code(1).stdout("");
            // Before anything was measured.
            assert_eq!(fs::read_to_string(after.path().join("log")).unwrap(), "versions.py\n");
            refused
        };
        refused().stderr(contains("another entry \"alternations\""));
        fs::write(after.path().join("out.json"), "no table").unwrap();
        refused().stderr(contains("the stored table"));
    }

    #[test]
    fn parts_of_a_table_add_up_in_one_file() {
        let at = |seconds: &str| format!(r#"{{"seconds": {{"step": [{seconds}]}}}}"#);
        let folder = answers(&[]);
        // All sides take so long.
        let part = |seconds: &str, flags: &[&str]| {
            for name in ["resnet18-step", "resnet18_step.py", "lenet-step", "lenet_step.py"] {
                fs::write(folder.path().join(name), at(seconds)).unwrap();
            }
            let flags = [&["--update", "--alternations", "1"], flags].concat();
            peers(folder.path(), &flags).assert().success();
            let stored = stored(folder.path());
            // That of the whole table.
            assert_eq!(stored["command"], "cargo course peers --alternations 1");
            let rows = stored["rows"].as_array().unwrap().iter();
            let row = |row: &Value| {
                let what = row["what"].as_str().unwrap().replace(" step, batch", "");
                let threads = row["threads"].as_str().unwrap();
                format!("{what} × {threads}: {}", row["ours"][0]["median"])
            };
            rows.map(row).collect::<Vec<_>>()
        };
        let [sixteen, lenet, sixty_four] = [
            ["ResNet-18 16 × 1", "ResNet-18 16 × 2"],
            ["LeNet 256 × 1", "LeNet 256 × 2"],
            ["ResNet-18 64 × 1", "ResNet-18 64 × 2"],
        ];
        let rows = |parts: &[([&str; 2], &str)]| -> Vec<String> {
            let row = |(names, seconds): &([&str; 2], &str)| {
                names.map(|name| format!("{name}: {seconds}"))
            };
            parts.iter().flat_map(row).collect()
        };
        let of_batch = |batch| ["--only", "resnet18-step", "--precision", "f32", "--batch", batch];
        // The first one begins the file.
        assert_eq!(part("1", &of_batch("16")), rows(&[(sixteen, "1.0")]));
        let lenets = part("2", &["--only", "lenet-step"]);
        assert_eq!(lenets, rows(&[(sixteen, "1.0"), (lenet, "2.0")]));
        let sixty_fours = part("3", &of_batch("64"));
        assert_eq!(sixty_fours, rows(&[(sixteen, "1.0"), (sixty_four, "3.0"), (lenet, "2.0")]));
        let again = part("4", &of_batch("16"));
        assert_eq!(again, rows(&[(sixteen, "4.0"), (sixty_four, "3.0"), (lenet, "2.0")]));
        // Work that there was once.
        let path = folder.path().join("out.json");
        let older =
            fs::read_to_string(&path).unwrap().replace("LeNet step, batch 256", "LeNet step");
        fs::write(&path, older).unwrap();
        let renewed = part("5", &["--only", "lenet-step"]);
        assert_eq!(renewed, rows(&[(sixteen, "4.0"), (sixty_four, "3.0"), (lenet, "5.0")]));
    }

    #[test]
    fn what_was_measured_is_in_the_file_before_the_next_comparison_ends() {
        use std::os::unix::fs::PermissionsExt as _;

        let step = r#"{"seconds": {"step": [1]}}"#;
        let folder = answers(&[("lenet-step.1", step), ("lenet_step.py", step)]);
        // The second call is of the second comparison.
        let second = folder.path().join("lenet-step.2");
        let script = format!("#!/bin/sh\ncd \"$ANSWERS\"\ncp out.json then.json\necho '{step}'\n");
        fs::write(&second, script).unwrap();
        fs::set_permissions(&second, fs::Permissions::from_mode(0o755)).unwrap();
        peers(folder.path(), &["--only", "lenet-step", "--alternations", "1"]).assert().success();
        let rows = |name: &str| {
            let table = fs::read(folder.path().join(name)).unwrap();
            let table: Value = serde_json::from_slice(&table).unwrap();
            table["rows"].as_array().unwrap().len()
        };
        assert_eq!((rows("then.json"), rows("out.json")), (1, 2));
    }

    #[test]
    fn a_python_without_pytorch_is_told_before_anything_is_measured() {
        let folder = answers(&[]);
        fs::remove_file(folder.path().join("versions.py")).unwrap();
        let run = peers(folder.path(), &[]).assert().code(1).stdout("");
        run.stderr(contains("has no PyTorch that works (OSError").and(contains("--set-up")));
        assert!(!folder.path().join("out.json").exists());
    }
}
