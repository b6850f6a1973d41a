//! The binary as a newcomer meets it.

#[path = "../../tests/src/screen.rs"]
mod screen;

use assert_cmd::Command;
use predicates::prelude::PredicateBooleanExt as _;
use predicates::str::contains;

fn split_batch(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_split-batch"));
    command.args(["--device=cpu", "--threads-per-device=1"]).args(arguments);
    command
}

#[test]
fn the_help_fits_on_a_screen() {
    screen::check_help(env!("CARGO_BIN_EXE_split-batch"));
}

#[test]
fn lines_fit_into_a_terminal() {
    for arguments in [
        &[][..],
        &["--devices=3", "--batch-size=7"],
        &["--devices=8", "--batch-size=9", "--epoch-samples=40"],
        &["--devices=1000", "--batch-size=1000", "--epoch-samples=1000"],
        &["--batch-size=1000", "--epoch-samples=1000"],
        &["--break=own-shuffle", "--epoch-samples=100"],
        &["--break=drop-last", "--epoch-samples=4"],
    ] {
        let arguments = [&["--device=cpu", "--threads-per-device=1"], arguments].concat();
        for text in screen::check_width(env!("CARGO_BIN_EXE_split-batch"), &arguments) {
            assert!((8..160).contains(&text.lines().count()), "{text}");
            // The last paragraph is the conclusion.
            let (_, conclusion) = text.rsplit_once("\n\n").expect("paragraphs");
            assert!(conclusion.starts_with(['I', 'T']), "{conclusion}");
        }
    }
}

#[test]
fn it_shows_the_example() {
    split_batch(&[])
        .assert()
        .success()
        .stdout(contains("on cpu:0 (1 core)\n    0   1   2   3   4\n    5   6   7   8   9\n"))
        .stdout(contains("on cpu:1 (1 core)\n   10  11  12  13  14\n   15  16  17  18  19\n"));
}

#[test]
fn uneven_shards_lose_nothing() {
    split_batch(&["--devices=3", "--batch-size=5"])
        .assert()
        .success()
        .stdout(contains("on cpu:2 (1 core)\n   20  21  22  23  24\n\ngathered again\n    0   1"));
}

#[test]
fn two_epochs_are_shared_out() {
    let output = split_batch(&["--devices=3", "--epoch-samples=7"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let epochs: Vec<&str> = text.split("  epoch ").skip(1).collect();
    assert_eq!(epochs.len(), 2);
    assert_ne!(epochs[0][1..], epochs[1][1..], "a new shuffle each epoch");
    for epoch in epochs {
        let ranks = epoch.lines().skip(1).take(3).filter_map(|line| line.split_once(": "));
        let mut samples: Vec<u32> =
            ranks.flat_map(|(_, s)| s.split([' ', '|']).filter_map(|s| s.parse().ok())).collect();
        samples.sort_unstable();
        assert_eq!(samples, (0..7).collect::<Vec<u32>>());
    }
}

#[test]
fn a_mistake_is_shown_with_what_it_does_to_the_samples() {
    for (breakage, told) in [
        ("own-shuffle", "more than once: "),
        ("own-shuffle", "; never: "),
        ("same-order", "every sample once\n"),
        ("drop-last", "\n    never: "),
        ("fill-up", "\n    more than once: "),
        ("fill-up", "\nThe bug of --break fill-up: A last batch that is not full is filled with"),
    ] {
        let arguments = ["--break", breakage];
        let begins = predicates::str::starts_with("an epoch of 10 samples");
        split_batch(&arguments).assert().success().stdout(begins).stdout(contains(told));
    }
    let full = ["--break=drop-last", "--epoch-samples=12"];
    split_batch(&full).assert().success().stdout(contains("All batches are full"));
    let right = contains("every sample once\n").count(2);
    split_batch(&[]).assert().success().stdout(right).stdout(contains("order of").not());
}

#[test]
fn large_numbers_stay_apart() {
    let arguments = ["--devices=1", "--batch-size=300", "--epoch-samples=300"];
    let output = split_batch(&arguments).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let (batches, epochs) = text.split_once("\nan epoch of 300 samples").unwrap();
    let rows = batches.lines().filter(|line| line.starts_with("  ") && !line.contains('…'));
    let values: Vec<usize> =
        rows.flat_map(|row| row.split_whitespace().map(|value| value.parse().unwrap())).collect();
    // The batch, the shard of the one device, and the gathered batch. Of each, the first samples and the last are shown.
    let shown = |_| (0..14 * 5).chain(299 * 5..1500);
    assert!(values.iter().copied().eq((0..3).flat_map(shown)), "{batches}");
    let ranks: Vec<&str> =
        epochs.lines().filter_map(|line| line.split_once(": ")).map(|(_, s)| s).collect();
    assert_eq!(ranks.len(), 2);
    for rank in ranks {
        let samples: Vec<u32> =
            rank.split_whitespace().map_while(|sample| sample.parse().ok()).collect();
        // As many as fit into a line.
        assert!(samples.len() == 11 && samples.iter().all(|&sample| sample < 300), "{rank}");
    }
    assert_eq!(epochs.matches("… 300 samples in 1 step\n").count(), 2, "{epochs}");
}

#[test]
fn help_and_refusals() {
    split_batch(&["--help"]).assert().success().stdout(contains("--batch-size <N>"));
    for (arguments, complaint) in [
        (["--devices", "0"], "a run has 1 to 1024 devices"),
        (
            ["--devices", "5"],
            "--batch-size 4 gives 5 devices less than a sample each: use --batch-size 5 or more",
        ),
        (["--break=own-shuffle", "--devices=1"], "--break own-shuffle needs --devices 2 or more"),
        (["--batch-size", "0"], "a whole number from 1 to 1,000 is expected"),
        (["--epoch-samples", "0"], "a whole number from 1 to 1,000 is expected"),
    ] {
        split_batch(&arguments).assert().code(2).stdout("").stderr(contains(complaint));
    }
}
