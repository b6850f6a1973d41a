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
