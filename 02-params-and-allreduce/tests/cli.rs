//! The binary as a newcomer meets it.

use assert_cmd::Command;
use predicates::str::contains;

fn params_and_allreduce(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_params-and-allreduce"));
    command.args(["--device=cpu", "--threads-per-device=1"]).args(arguments);
    command
}

#[test]
fn it_shows_parameters_and_an_all_reduce() {
    params_and_allreduce(&["--devices=3"])
        .assert()
        .success()
        .stdout(contains("parameters copied to cpu:2 (1 core)\n  b1 weight:   0 0 0 0 0"))
        .stdout(contains("before all-reduce\n  cpu:0 (1 core): 1 1\n  cpu:1 (1 core): 2 2\n"))
        .stdout(contains("after all-reduce\n  cpu:0 (1 core): 6 6\n  cpu:1 (1 core): 6 6\n"));
}

#[test]
fn it_ends_in_a_table_of_bandwidths() {
    let output = params_and_allreduce(&["--devices=3"]).output().expect("a run");
    let text = String::from_utf8(output.stdout).expect("text");
    let (_, tables) = text.split_once("all-reduce in GB/s").expect("a caption");
    assert!(tables.contains("these are not the times of GPUs"), "{tables}");
    for row in ["one-shot", "naive", "tree", "ring", "add and copy"] {
        // In the caption, a colon follows.
        let begins = format!("{row} ");
        let rows: Vec<&str> =
            tables.lines().filter(|l| l.trim_start().starts_with(&begins)).collect();
        assert_eq!(rows.len(), 3, "{row} on 2, 3 and 4 devices: {tables}");
        for line in rows {
            let numbers = line.trim_start().trim_start_matches(row).split_whitespace();
            let numbers: Vec<f64> = numbers.map(|n| n.parse().expect("a number")).collect();
            assert!(numbers.len() == 4 && numbers.iter().all(|&n| n > 0.0), "{line}");
        }
    }
}

#[test]
fn help_and_refusals() {
    params_and_allreduce(&["--help"]).assert().success().stdout(contains("--devices <K>"));
    for devices in ["0", "100000000", "two"] {
        params_and_allreduce(&["--devices", devices])
            .assert()
            .code(2)
            .stdout("")
            .stderr(contains("a run has 1 to 1024 devices"));
    }
}
