//! A device that is stuck.

use std::fs::OpenOptions;
use std::process::Command;
use std::time::Duration;

use predicates::str::contains;

use crate::wrapper;

/// Rank 0 writes its recording to a pipe that nobody reads, and so never comes to the sum that rank 1 waits for.
#[test]
fn a_run_ends_although_a_rank_never_does() {
    let folder = tempfile::tempdir().unwrap();
    let [pipe, run] = ["pipe", "run"].map(|name| folder.path().join(name));
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    // Held open for both, as opening it for one waits for the other.
    let _unread = OpenOptions::new().read(true).write(true).open(&pipe).unwrap();
    let small = ["--data=synthetic", "--model=lenet", "--train-size=640", "--test-size=16"];
    let two = ["--epochs=1", "--devices=2", "--batch-size=8", "--scale=none", "--timeout=1"];
    let mut command = wrapper(&small);
    command.args(two).arg("--record").arg(&pipe).arg("--checkpoint").arg(&run);
    let ended = command.timeout(Duration::from_secs(60)).assert().code(1);
    ended
        .stdout(contains("LeNet on synthetic garments"))
        .stderr(contains("rank 1 waited 1.0 s: rank 0 is alive but sends nothing; "))
        .stderr(contains("s later rank 0 has not come back\n"));
}
