//! The binary as a newcomer meets it: help, a small run, and everything it refuses.

mod data;
#[path = "../../../tests/src/files.rs"]
mod files;
#[cfg(target_os = "linux")]
#[path = "../../../tests/src/large_folder.rs"]
mod large_folder;
#[path = "../../../tests/src/program.rs"]
mod program;
#[path = "../../../tests/src/refusals.rs"]
mod refusals;
mod results;
#[path = "../../../tests/src/screen.rs"]
mod screen;
#[path = "../../../tests/src/signals.rs"]
mod signals;

use std::fs;

use assert_cmd::Command;
use devices::{DeviceKind, DevicePlan};
use predicates::prelude::*;
use predicates::str::{contains, starts_with};

fn single_gpu(arguments: &[&str]) -> Command {
    let mut command = program::command(env!("CARGO_BIN_EXE_single-gpu"));
    command.args(arguments);
    command
}

const SMALL: [&str; 6] = [
    "--data=synthetic",
    "--train-size=40",
    "--test-size=20",
    "--epochs=2",
    "--batch-size=16",
    "--device=cpu",
];

#[test]
fn the_help_fits_on_a_screen() {
    screen::check_help(env!("CARGO_BIN_EXE_single-gpu"));
}

#[test]
fn lines_fit_into_a_terminal() {
    for layers in ["--layers=fast", "--layers=plain"] {
        let program = env!("CARGO_BIN_EXE_single-gpu");
        for text in screen::check_width(program, &[&SMALL[..], &[layers]].concat()) {
            assert!(text.lines().count() > 5, "{text}");
        }
    }
}

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
        "--layers <KIND>",
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
        .stdout(contains("one device: test acc 0.").and(contains("\n  on [cpu:0 (1 core)]\n")))
        .stdout(contains(
            "\nThe network is not clearly better than guessing (0.100): train for more epochs,\n",
        ));
}

#[test]
fn the_same_seed_gives_the_same_bits_with_any_number_of_threads() {
    let hash = |threads: &str, seed: &str| {
        let output = single_gpu(&SMALL).args([threads, seed]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        text.rsplit_once("weights ").expect("a result line").1[..8].to_owned()
    };
    let one = hash("--threads-per-device=1", "--seed=3");
    assert!(one.chars().all(|digit| digit.is_ascii_hexdigit()), "{one}");
    assert_eq!(one, hash("--threads-per-device=1", "--seed=3"));
    assert_eq!(one, hash("--threads-per-device=3", "--seed=3"));
    assert_ne!(one, hash("--threads-per-device=1", "--seed=4"));
}

#[test]
fn plain_layers_train_alike_and_show_how_much_faster_the_fast_ones_are() {
    let plain = single_gpu(&SMALL).arg("--layers=plain").output().unwrap().stdout;
    // The sentence may be cut anywhere.
    let plain = String::from_utf8(plain).unwrap().replace('\n', " ");
    for part in ["A step on 16 images takes ", " s with the plain layers and ", "up to rounding. "]
    {
        assert!(plain.contains(part), "{plain}");
    }
    single_gpu(&SMALL).assert().success().stdout(contains("plain layers").not());
    let folder = tempfile::tempdir().unwrap();
    let losses = |layers: &str| {
        let file = folder.path().join(layers);
        let mut run = single_gpu(&SMALL);
        run.args(["--dtype=f64", "--lr=2", "--seed=3", "--layers", layers, "--metrics"]);
        run.arg(&file).assert().success();
        let text = fs::read_to_string(file).unwrap();
        let values = text.lines().map(|line| serde_json::from_str(line).unwrap());
        values.filter_map(|line: serde_json::Value| line["train_loss"].as_f64()).collect()
    };
    let (plain, fast): (Vec<f64>, Vec<f64>) = (losses("plain"), losses("fast"));
    assert_eq!(plain.len(), 2);
    for (plain, fast) in plain.into_iter().zip(fast) {
        approx::assert_relative_eq!(plain, fast, max_relative = 1e-10);
    }
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

/// Flags, and a part of the message.
const REFUSALS: &str = r#"
--epochs 0 | '--epochs <N>': a whole number from 1 to
--batch-size 0 | a whole number from 1 to
--batch-size -4 | invalid value '-4' for '--batch-size <N>': a whole number from 1 to 1,000,000 is expected
--epochs x | a whole number from 1 to
--epochs 1e3 | a whole number from 1 to
--epochs 1000001 | a whole number from 1 to 1,000,000 is expected
--epochs 99999999999999999999 | a whole number from 1 to
--lr NaN | a learning rate is a positive number
--lr -0.1 | a learning rate is a positive number
--lr 0 | a learning rate is a positive number
--lr inf | a learning rate is a positive number
--seed minus | '--seed <N>': a whole number from 0 to 2^64 − 1 is expected
--train-size 0 | a whole number from 1 to 1,000,000 is expected
--train-size 4000000000 | a whole number from 1 to 1,000,000 is expected
--threads-per-device 0 | threads-per-device
--threads-per-device 100000 | at most 4096 threads
--seed -1 | invalid value '-1' for '--seed <N>'
--contact-sheet a.png --epochs 3 | cannot be used with '--epochs <N>'
--data /dev/null | --data /dev/null: this is not a folder
--device tpu | possible values: auto, cpu, cuda
--layers slow | possible values: plain, fast
--layers plain --device cuda | --layers plain: plain layers run on the CPU only; use --device cpu
--contact-sheet a.png --layers plain | cannot be used with '--layers <KIND>'
--device cpu --tf32 | --tf32: only GPUs round to TF32
--data /no/such/folder | --data /no/such/folder: there is no such folder
--data-mirrors ftp://a.example | "ftp://a.example" is no web address
--data-dir Cargo.toml | this is a file; name a folder
--metrics /dev/null/m.jsonl | --metrics /dev/null/m.jsonl
--plot /dev/null/p.svg | --plot /dev/null/p.svg
--trace / | --trace /
--metrics same --trace same | --metrics and --trace both name same
--metrics same --trace ./same | --metrics and --trace both name ./same
--metrics same --plot no-such/../same | --plot no-such/../same:
--metrics same --plot src/../same | both name src/../same
--contact-sheet /dev/null/a.png | --contact-sheet /dev/null/a.png
--contact-sheet a.png --metrics m | cannot be used with '--metrics <FILE.jsonl>'
--tf32 -1 | unexpected argument '-1'
--no-such-flag | unexpected argument '--no-such-flag'
--epocs 3 | unexpected argument '--epocs' found; a similar argument exists: '--epochs'
surplus | unexpected argument 'surplus'
"#;

#[test]
fn what_makes_no_sense_is_refused_in_one_line_with_code_2() {
    refusals::check(REFUSALS, single_gpu);
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

/// The images of the folder have 784 MB, and the limit is 717 MB.
#[cfg(target_os = "linux")]
#[test]
fn a_small_run_on_a_large_folder_needs_little_memory() {
    let folder = large_folder::of_images(1_000_000);
    let mut limited = Command::new("sh");
    let program = env!("CARGO_BIN_EXE_single-gpu");
    limited
        .args(["-c", "ulimit -v 700000 && exec \"$0\" --data \"$@\"", program])
        .arg(folder.path());
    limited.args(["--device=cpu", "--epochs=1", "--threads-per-device=1", "--test-size=9"]);
    let refused = limited.assert().code(2).stdout("");
    refused.stderr(starts_with("error: --train-size 1000000 needs about "));
    limited.arg("--train-size=64").assert().success().stdout(contains(": 64 training and 9 test"));
}

/// The limit is below the memory of a step, and above that of the images. The estimate of the smaller batch is too small
/// for a refusal at the start.
#[cfg(target_os = "linux")]
#[test]
fn memory_beyond_the_limit_of_the_shell_ends_in_one_line() {
    let limited = |batch: &str| {
        let mut limited = Command::new("sh");
        let program = env!("CARGO_BIN_EXE_single-gpu");
        limited.args(["-c", "ulimit -v 1000000 && exec \"$0\" \"$@\"", program, batch]);
        limited.args(["--data=synthetic", "--test-size=1", "--device=cpu", "--epochs=1"]);
        limited.args(["--threads-per-device=1", "--train-size=20000"]);
        limited.env("RUST_BACKTRACE", "1").assert()
    };
    let refused = starts_with("error: --batch-size 20000 needs about 1.2 GB on 1 device (activ")
        .and(contains(" (ulimit -v) are free: take a batch of at most about 1"))
        // A thread that has begun takes 64 MB of address space.
        .and(contains(" and 1.0 GB (").or(contains(" and 9").and(contains(" MB ("))))
        .and(contains("\n").count(1));
    limited("--batch-size=20000").code(2).stdout("").stderr(refused);
    limited("--batch-size=16000").code(1).stderr(
        "error: no memory is left of 1.0 GB (ulimit -v): take a smaller batch or network, or end other programs\n",
    );
}
