//! The binary as a newcomer meets it.

#[path = "../../tests/src/screen.rs"]
mod screen;
#[path = "../../tests/src/signals.rs"]
mod signals;

use assert_cmd::Command;
use predicates::str::contains;

use self::signals::with_default_sigint;

fn params_and_allreduce(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_params-and-allreduce"));
    command.args(["--device=cpu", "--threads-per-device=1"]).args(arguments);
    command
}

/// The lines of a metrics file, which begins with the first number. On a busy machine an interrupt may come before it.
fn metrics(file: &std::path::Path) -> Vec<serde_json::Value> {
    let written = match std::fs::read_to_string(file) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        written => written.expect("a metrics file"),
    };
    written.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

#[test]
fn the_help_fits_on_a_screen() {
    screen::check_help(env!("CARGO_BIN_EXE_params-and-allreduce"));
}

#[test]
fn lines_fit_into_a_terminal() {
    for (devices, is_long) in [("--devices=2", false), ("--devices=9", true)] {
        let arguments = ["--runs=1", "--device=cpu", "--threads-per-device=1", devices];
        for text in screen::check_width(env!("CARGO_BIN_EXE_params-and-allreduce"), &arguments) {
            assert!(text.contains("memory limit  "), "{text}");
            // The middle of a long list is left out.
            assert_eq!(text.contains("\n  …\n"), is_long, "{text}");
        }
    }
}

#[test]
fn it_shows_parameters_and_an_all_reduce() {
    params_and_allreduce(&["--devices=3", "--runs=1"])
        .assert()
        .success()
        .stdout(contains(
            "all-reduce in GB/s, f32, one run\n  bus bandwidth: bytes of the tensor ÷ time",
        ))
        .stdout(contains("parameters copied to cpu:2 (1 core)\n  b1 value: 0 0 0 0 0"))
        .stdout(contains("before all-reduce\n  cpu:0 (1 core): 1 1\n  cpu:1 (1 core): 2 2\n"))
        .stdout(contains("after all-reduce\n  cpu:0 (1 core): 6 6\n  cpu:1 (1 core): 6 6\n"))
        .stdout(contains("each of the 3 devices holds the sum of all tensors.\n"));
}

#[test]
fn it_ends_in_a_table_of_bandwidths() {
    let output = params_and_allreduce(&["--devices=3", "--runs=2"]).output().expect("a run");
    let text = String::from_utf8(output.stdout).expect("text");
    let (_, tables) = text.split_once("all-reduce in GB/s").expect("a caption");
    assert!(tables.starts_with(", f32, the median of 2 runs\n"), "{tables}");
    assert!(tables.contains("these are not the times of GPUs"), "{tables}");
    for row in ["one-shot", "naive", "tree", "ring", "memory limit"] {
        // In the caption and in a sentence, no two spaces follow.
        let begins = format!("{row}  ");
        let rows: Vec<&str> =
            tables.lines().filter(|l| l.trim_start().starts_with(&begins)).collect();
        assert_eq!(rows.len(), 3, "{row} on 2, 3 and 4 devices: {tables}");
        for line in rows {
            let numbers = line.trim_start().trim_start_matches(row).split_whitespace();
            let numbers: Vec<f64> = numbers.map(|n| n.parse().expect("a number")).collect();
            assert!(numbers.len() == 5 && numbers[1..].iter().all(|&n| n > 0.0), "{line}");
            // Where others need the cores, a small tensor may take so long that its rate is 0.000.
            assert!(numbers[0] >= 0.0, "{line}");
        }
    }
    let unwrapped = tables.replace("\n  ", " ");
    let doubts =
        unwrapped.matches("With so few runs, chance decides much: repeat with more --runs.");
    assert_eq!(doubts.count(), 3, "{tables}");
    assert!(!unwrapped.contains("Fastest") && !unwrapped.contains("the memory limit."), "{tables}");
}

#[test]
fn a_number_of_devices_that_is_not_measured_is_told() {
    for (devices, tables, note) in [
        (
            "1",
            2,
            Some("note: one device has nobody to reduce with: the fewest that are measured are 2"),
        ),
        ("2", 2, None),
        ("16", 3, None),
        ("17", 3, Some("note: 17 devices would take minutes: the most that are measured are 16")),
    ] {
        let output = params_and_allreduce(&["--runs=1", "--devices", devices]).output();
        let text = String::from_utf8(output.expect("a run").stdout).expect("text");
        let (_, told) = text.split_once("all-reduce in GB/s").expect("a caption");
        assert_eq!(told.matches("  memory limit  ").count(), tables, "{told}");
        assert_eq!(told.contains("are measured are"), note.is_some(), "{told}");
        assert!(told.contains(note.unwrap_or_default()), "{told}");
    }
}

#[test]
fn metrics_have_every_number_of_the_tables() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("metrics.jsonl");
    let output = params_and_allreduce(&["--devices=3", "--metrics"]).arg(&file).output();
    let text = String::from_utf8(output.expect("a run").stdout).expect("text");
    let lines = metrics(&file);
    assert!(text.ends_with("/metrics.jsonl\n"), "{text}");
    // Five rows of five sizes on 2, 3 and 4 devices.
    assert_eq!(lines.len(), 5 * 5 * 3, "{lines:?}");
    for line in &lines {
        let number = |name: &str| line[name].as_f64().expect(name);
        let devices = line["devices"].as_array().expect("devices").len() as f64;
        let share = 2.0 * (devices - 1.0) / devices;
        let rate = number("bytes") * share / number("seconds") / 1e9;
        assert!((rate / number("gb_per_s") - 1.0).abs() < 1e-9, "{line}");
        let rate = format!("{:.3}", number("gb_per_s"));
        assert!(text.split_whitespace().any(|word| word == rate), "{line} is not in {text}");
        assert_eq!(line["kind"], "all-reduce");
    }
}

/// What a run tells that a signal ends, a while after a line with these words; and its metrics.
fn interrupted(
    runs: &str,
    (signal, code): (&str, i32),
    (words, milliseconds): (&str, u64),
) -> (String, Vec<serde_json::Value>) {
    use std::io::{BufRead as _, BufReader};
    use std::process::{Command, Stdio};

    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("metrics.jsonl");
    let mut run = with_default_sigint(env!("CARGO_BIN_EXE_params-and-allreduce"))
        .args(["--device=cpu", "--threads-per-device=1", "--devices=3", runs, "--metrics"])
        .arg(&file)
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program");
    let lines = BufReader::new(run.stdout.take().expect("its output")).lines();
    let mut lines = lines.map(|line| line.expect("text") + "\n");
    let mut told = String::new();
    while !told.contains(words) {
        told += &lines.next().expect("a run that has not ended yet");
    }
    std::thread::sleep(std::time::Duration::from_millis(milliseconds));
    let kill = Command::new("kill").args([signal, &run.id().to_string()]).status();
    assert!(kill.expect("kill").success());
    told.extend(lines);
    assert_eq!(run.wait().expect("an end").code(), Some(code), "{told}");
    assert!(told.contains("4 devices: left out after the interrupt\n"), "{told}");
    assert_eq!(told.contains("\n--metrics: "), file.exists(), "{told}");
    (told, metrics(&file))
}

/// The numbers that are complete are told and written: of the table under way, and of those before it.
#[test]
fn an_interrupt_loses_nothing_that_was_measured() {
    // Behind the caption the first table is measured, for half a minute and more.
    let first = ("these are not the times of GPUs", 500);
    let (told, written) = interrupted("--runs=10000", ("-INT", 130), first);
    assert!(told.contains("–: left out after the interrupt\n"), "{told}");
    assert!(written.len() < 5 * 5, "{told}");
    let (_, tables) = told.split_once(first.0).expect("a caption");
    // Rates have three decimals, and the words of sentences have none.
    let is_rate = |word: &&str| {
        let decimals = word.split_once('.').map_or("", |(_, decimals)| decimals);
        decimals.len() == 3 && decimals.parse::<u32>().is_ok()
    };
    let numbers = tables.split_whitespace().filter(is_rate);
    assert_eq!(numbers.count(), written.len(), "{told}");
    for line in &written {
        let rate = format!("{:.3}", line["gb_per_s"].as_f64().expect("a rate"));
        assert!(told.split_whitespace().any(|word| word == rate), "{line} is not in {told}");
    }
    // The second table takes seconds.
    let second = ("\n  memory limit  ", 50);
    let (told, written) = interrupted("--runs=200", ("-TERM", 143), second);
    assert!(told.contains("left out after the interrupt"), "{told}");
    assert!((5 * 5..2 * 5 * 5).contains(&written.len()), "{told}");
}

#[test]
fn help_and_refusals() {
    for runs in ["0", "10001", "many"] {
        let refused = params_and_allreduce(&["--runs", runs]).assert().code(2);
        refused.stderr(contains(format!("'{runs}'"))).stderr(contains("--runs <N>"));
    }
    params_and_allreduce(&["--help"]).assert().success().stdout(contains("--devices <K>"));
    for devices in ["0", "100000000", "two"] {
        params_and_allreduce(&["--devices", devices])
            .assert()
            .code(2)
            .stdout("")
            .stderr(contains("a run has 1 to 1024 devices"));
    }
    let nowhere = ["--metrics", "/dev/null/file"];
    params_and_allreduce(&nowhere)
        .assert()
        .code(2)
        .stdout("")
        .stderr(contains("--metrics /dev/null/file: "));
}
