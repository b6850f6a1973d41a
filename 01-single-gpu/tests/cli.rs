//! The binary as a newcomer meets it: help, a small run, and everything it refuses.

use std::fs;
#[cfg(unix)]
use std::io::{BufRead as _, BufReader, Read as _};
use std::net::TcpListener;
use std::path::Path;
#[cfg(unix)]
use std::process::{Command as Process, Stdio};
use std::time::{Duration, Instant};

use assert_cmd::Command;
use predicates::prelude::*;
use predicates::str::contains;
use single_gpu::device::{DeviceKind, DevicePlan};

/// A mirror that nobody runs.
const NOBODY: &str = "http://127.0.0.1:9";

fn single_gpu(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_single-gpu"));
    // No test depends on a network, or on what is in this user's cache.
    command.env("COURSE_MIRRORS", NOBODY);
    command.env("COURSE_DATA_DIR", concat!(env!("CARGO_TARGET_TMPDIR"), "/no-data"));
    command.args(arguments);
    command
}

/// A run small enough for a test.
const SMALL: [&str; 6] = [
    "--data=synthetic",
    "--train-size=40",
    "--test-size=20",
    "--epochs=2",
    "--batch-size=16",
    "--device=cpu",
];

#[test]
fn help_names_every_flag_and_its_default() {
    let mut help = single_gpu(&["--help"]).assert().success();
    for text in [
        "--data <SOURCE>",
        "[default: 0.2]",
        "[default: 256]",
        "--metrics",
        "--plot",
        "--trace",
        "--device",
    ] {
        help = help.stdout(contains(text));
    }
}

#[test]
fn a_small_run_reports_epochs_and_a_result() {
    single_gpu(&SMALL)
        .arg("--threads-per-device=1")
        .assert()
        .success()
        .stdout(contains("LeNet on synthetic garments: 40 training and 20 test images, batch 16"))
        .stdout(contains("epoch 2/2  loss"))
        .stdout(contains("s/epoch on [cpu:0 (1 core)], weights "));
}

#[test]
fn the_same_seed_gives_the_same_bits_with_any_number_of_threads() {
    let hash = |threads: &str, seed: &str| {
        let output = single_gpu(&SMALL).args([threads, seed]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        text.rsplit_once("weights ").expect("a result line").1.trim().to_owned()
    };
    let one = hash("--threads-per-device=1", "--seed=3");
    assert_eq!(one.len(), 8, "{one}");
    assert_eq!(one, hash("--threads-per-device=1", "--seed=3"));
    assert_eq!(one, hash("--threads-per-device=3", "--seed=3"));
    assert_ne!(one, hash("--threads-per-device=1", "--seed=4"));
}

#[test]
fn metrics_are_an_object_per_epoch_and_a_summary() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("metrics.jsonl");
    single_gpu(&SMALL)
        .args(["--threads-per-device=1", "--seed=3", "--metrics"])
        .arg(&file)
        .assert()
        .success();
    let text = fs::read_to_string(&file).unwrap();
    let lines: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let kinds: Vec<_> = lines.iter().map(|line| line["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["epoch", "epoch", "summary"]);
    assert_eq!(lines[1]["epoch"], 2);
    let summary = &lines[2];
    assert_eq!(summary["options"]["seed"], 3);
    assert_eq!(summary["devices"][0], "cpu:0 (1 core)");
    assert_eq!(summary["weights_hash"].as_str().unwrap().len(), 64);
    assert_eq!(summary["test_accuracy"], lines[1]["test_accuracy"]);
}

#[test]
fn what_makes_no_sense_is_refused_in_one_line_with_code_2() {
    for (arguments, complaint) in [
        (&["--epochs", "0"][..], "'--epochs <N>': 0 is not in"),
        (&["--batch-size", "0"], "0 is not in"),
        (&["--batch-size", "-4"], "-4"),
        (&["--lr", "NaN"], "a learning rate is a positive number"),
        (&["--lr", "-0.1"], "a learning rate is a positive number"),
        (&["--lr", "0"], "a learning rate is a positive number"),
        (&["--lr", "inf"], "a learning rate is a positive number"),
        (&["--seed", "minus one"], "invalid digit"),
        (&["--train-size", "0"], "0 is not in"),
        (&["--train-size", "4000000000"], "is not in 1..=1000000"),
        (&["--threads-per-device", "0"], "threads-per-device"),
        (&["--threads-per-device", "100000"], "at most 4096 threads"),
        (&["--device", "tpu"], "possible values: auto, cpu, cuda"),
        (&["--data", "/no/such/folder"], "--data /no/such/folder: there is no such folder"),
        (&["--data-mirrors", "ftp://a.example"], "\"ftp://a.example\" is no web address"),
        (
            &["--data-dir", concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")],
            "this is not a folder",
        ),
        (&["--metrics", "/no/such/folder/m.jsonl"], "--metrics /no/such/folder/m.jsonl"),
        (&["--plot", "/no/such/folder/p.svg"], "--plot /no/such/folder/p.svg"),
        (&["--trace", "/"], "--trace /"),
        (&["--metrics", "same", "--trace", "same"], "--metrics and --trace both name same"),
        (&["--contact-sheet", "/no/such/folder/a.png"], "--contact-sheet /no/such/folder/a.png"),
        (&["--no-such-flag"], "unexpected argument '--no-such-flag'"),
        (&["surplus"], "unexpected argument 'surplus'"),
    ] {
        single_gpu(arguments).assert().code(2).stdout("").stderr(contains(complaint).and(
            predicate::function(|text: &str| {
                text.starts_with("error: ") && text.lines().count() == 1
            }),
        ));
    }
}

/// A run of one step, on whatever data there is.
const ONE_STEP: [&str; 5] =
    ["--train-size=16", "--test-size=10", "--epochs=1", "--batch-size=16", "--device=cpu"];

#[test]
fn offline_a_default_run_loses_less_than_five_seconds_and_says_what_it_uses() {
    // It takes connections and says nothing, like a network that swallows everything.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let mirror = format!("http://{}", silent.local_addr().unwrap());
    let time = |data: &str| {
        let started = Instant::now();
        let run = single_gpu(&ONE_STEP).args(["--data", data, "--data-mirrors", &mirror]).assert();
        (run.success().stdout(contains("LeNet on synthetic garments")), started.elapsed())
    };
    let (run, with) = time("auto");
    run.stderr(contains(
        "note: Fashion-MNIST is not on this machine and cannot be had (cannot download \
         t10k-labels-idx1-ubyte.gz; from http://127.0.0.1",
    ));
    let (run, without) = time("synthetic");
    run.stderr("");
    let lost = with.saturating_sub(without);
    assert!(lost < Duration::from_secs(5), "{lost:?}");
}

#[test]
fn who_insists_on_fashion_mnist_is_told_why_it_cannot_be_had() {
    let run = single_gpu(&ONE_STEP).arg("--data=fashion-mnist").assert().code(1).stdout("");
    run.stderr(
        contains(
            "error: Fashion-MNIST: cannot download t10k-labels-idx1-ubyte.gz; from http://127",
        )
        .and(predicate::function(|text: &str| text.lines().count() == 1)),
    );
}

#[test]
fn a_folder_may_be_called_like_a_keyword() {
    let folder = data_folder();
    let named = folder.path().join("fashion-mnist");
    fs::create_dir(&named).unwrap();
    for entry in fs::read_dir(folder.path()).unwrap().map(Result::unwrap) {
        if entry.path().is_file() {
            fs::rename(entry.path(), named.join(entry.file_name())).unwrap();
        }
    }
    let mut run = single_gpu(&["--device=cpu", "--epochs=1", "--data=./fashion-mnist"]);
    let run = run.current_dir(folder.path()).assert().success();
    run.stdout(contains("LeNet on fashion-mnist: 2 training"));
    // What lies unpacked in the folder for downloads is used without a network.
    let mut run = single_gpu(&["--device=cpu", "--epochs=1", "--data-dir"]);
    run.arg(&named).assert().success().stdout(contains("LeNet on Fashion-MNIST: 2 training"));
}

#[test]
fn cuda_is_refused_where_there_is_none() {
    let complaint = match DevicePlan::new(DeviceKind::Cuda, 1, None) {
        Ok(_) => return eprintln!("SKIPPED: there is a GPU here"),
        Err(_) if cfg!(feature = "cuda") => "no CUDA GPU was found",
        Err(_) => "build it with --features cuda, or use --device cpu",
    };
    single_gpu(&["--device", "cuda"]).assert().code(2).stderr(contains(complaint));
}

/// A folder with two training and two test images.
fn data_folder() -> tempfile::TempDir {
    let header = [0x803u32, 2, 28, 28].map(u32::to_be_bytes).concat();
    let images = [header, vec![7; 2 * 784]].concat();
    let labels = [0, 0, 8, 1, 0, 0, 0, 2, 3, 9];
    let folder = tempfile::Builder::new().prefix("my-clothes").tempdir().expect("a folder");
    for split in ["train", "t10k"] {
        let file = |name: &str| folder.path().join(format!("{split}-{name}"));
        fs::write(file("images-idx3-ubyte"), &images).expect("room for images");
        fs::write(file("labels-idx1-ubyte"), labels).expect("room for labels");
    }
    folder
}

#[test]
fn a_folder_of_ones_own_is_trained_on() {
    let folder = data_folder();
    let run = single_gpu(&["--device=cpu", "--epochs=1", "--data"]).arg(folder.path()).assert();
    let text = ": 2 training and 2 test images";
    run.success().stdout(contains("LeNet on my-clothes").and(contains(text)));
}

#[test]
fn a_malformed_file_is_a_failure_that_names_it() {
    let folder = data_folder();
    let file = "train-images-idx3-ubyte";
    let path = folder.path().join(file);
    fs::write(&path, &fs::read(&path).unwrap()[..1000]).unwrap();
    let metrics = folder.path().join("metrics.jsonl");
    single_gpu(&["--data"])
        .arg(folder.path())
        .arg("--metrics")
        .arg(&metrics)
        .assert()
        .code(1)
        .stderr(contains(file).and(contains("ends after 984 of the 1568 bytes").count(1)));
    assert!(!metrics.exists(), "a run that never began leaves no metrics");
}

#[test]
fn a_missing_file_is_named() {
    let folder = data_folder();
    fs::remove_file(folder.path().join("t10k-labels-idx1-ubyte")).unwrap();
    let refusal = single_gpu(&["--data"]).arg(folder.path()).assert().code(2);
    refusal.stderr(contains("no t10k-labels-idx1-ubyte, nor t10k-labels-idx1-ubyte.gz"));
}

#[test]
fn a_contact_sheet_is_a_png() {
    let folder = tempfile::tempdir().unwrap();
    let sheet = folder.path().join("garments.png");
    single_gpu(&["--data=synthetic", "--train-size=100", "--test-size=10", "--contact-sheet"])
        .arg(&sheet)
        .assert()
        .success()
        .stdout(contains("row 10: Ankle boot"));
    assert!(fs::read(&sheet).unwrap().starts_with(b"\x89PNG\r\n"));
}

/// The names of the files in a folder, in order.
fn files(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("a folder");
    let name = |entry: std::io::Result<fs::DirEntry>| {
        entry.expect("an entry").file_name().to_string_lossy().into_owned()
    };
    let mut names: Vec<String> = entries.map(name).collect();
    names.sort();
    names
}

/// Arguments that write all three files of results into the current folder.
const FILES: [&str; 3] = ["--metrics=m.jsonl", "--plot=p.svg", "--trace=t.json"];

#[test]
fn a_run_leaves_a_plot_and_a_trace_and_ends_with_a_chart() {
    let folder = tempfile::tempdir().expect("a folder");
    let run = single_gpu(&SMALL).args(FILES).current_dir(&folder).assert().success();
    run.stdout(contains("test acc by epoch, from ▁ 0.").and(contains("  one device\n")));
    assert_eq!(files(folder.path()), ["m.jsonl", "p.svg", "t.json"]);
    let plot = fs::read_to_string(folder.path().join("p.svg")).expect("a plot");
    assert!(plot.contains("LeNet on synthetic garments") && plot.trim_end().ends_with("</svg>"));
    let trace = fs::read(folder.path().join("t.json")).expect("a trace");
    let trace: serde_json::Value = serde_json::from_slice(&trace).expect("JSON");
    let events = trace["traceEvents"].as_array().expect("events");
    for name in ["load", "forward", "backward", "update"] {
        // 40 images in batches of 16 are three steps, in each of two epochs.
        let count = events.iter().filter(|event| event["name"] == name).count();
        assert!(count >= 6, "{count} of {name}");
    }
}

#[test]
fn a_run_that_fails_leaves_whole_lines_and_nothing_else() {
    let folder = tempfile::tempdir().expect("a folder");
    let run = single_gpu(&SMALL).args(FILES).args(["--lr=1e30"]).current_dir(&folder).assert();
    run.code(1)
        .stderr(contains("the loss is").and(contains("the learning rate 1e30 is too large")));
    assert_eq!(files(folder.path()), ["m.jsonl"]);
}

#[cfg(unix)]
#[test]
fn ctrl_c_ends_with_the_results_so_far() {
    a_signal_ends_with_the_results_so_far("-INT", 130);
}

#[cfg(unix)]
#[test]
fn sigterm_does_so_too() {
    a_signal_ends_with_the_results_so_far("-TERM", 143);
}

#[cfg(unix)]
fn a_signal_ends_with_the_results_so_far(signal: &str, exit_code: i32) {
    let folder = tempfile::tempdir().expect("a folder");
    let mut run = Process::new(env!("CARGO_BIN_EXE_single-gpu"))
        .args(SMALL.iter().filter(|argument| !argument.starts_with("--epochs")))
        .args(["--epochs=100000", "--threads-per-device=1"])
        .args(FILES)
        .current_dir(&folder)
        .stdout(Stdio::piped())
        .spawn()
        .expect("a process");
    let mut output = BufReader::new(run.stdout.take().expect("its output"));
    // It has begun to train when it has told of two epochs.
    let lines: Vec<_> = output.by_ref().lines().map_while(Result::ok).take(3).collect();
    assert!(lines[2].contains("epoch      2/100000"), "{lines:?}");
    let kill = Process::new("kill").args([signal, &run.id().to_string()]).status();
    assert!(kill.expect("kill").success());
    let mut rest = String::new();
    output.read_to_string(&mut rest).expect("text");
    assert_eq!(run.wait().expect("an end").code(), Some(exit_code));
    assert!(rest.contains("(interrupted after ") && rest.contains(" weights "), "{rest}");
    assert_eq!(files(folder.path()), ["m.jsonl", "p.svg", "t.json"]);
    let metrics = fs::read_to_string(folder.path().join("m.jsonl")).expect("metrics");
    let last = metrics.lines().last().expect("a line");
    let summary: serde_json::Value = serde_json::from_str(last).expect("JSON");
    assert_eq!((&summary["kind"], &summary["interrupted"]), (&"summary".into(), &true.into()));
}
