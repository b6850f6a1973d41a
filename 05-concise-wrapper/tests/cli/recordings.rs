//! What `--record` writes, and where two of them part.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use course::divergence::{first_divergence, read};
use harness::recording::Entry;

use crate::{SMALL, wrapper};
use predicates::str::contains;

fn entries(file: &Path) -> Vec<Entry> {
    let file = BufReader::new(File::open(file).expect("a recording"));
    read(file).expect("entries")
}

#[test]
fn a_run_that_goes_on_counts_its_steps_from_where_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let checkpoint = format!("--checkpoint={}", path("run").display());
    let run = |epochs: &str, name: &str, flags: &[&str]| {
        let small = SMALL.iter().map(|&flag| if flag == "--epochs=2" { epochs } else { flag });
        let mut command = wrapper(&small.collect::<Vec<_>>());
        command.args(["--shards=4", "--devices=2"]).args(flags).arg("--record").arg(path(name));
        command.assert()
    };
    let entries = |name: &str| entries(&path(name));
    run("--epochs=2", "whole", &[]).success();
    run("--epochs=1", "first", &[&checkpoint]).success();
    // The first half would be gone.
    let refused = run("--epochs=2", "first", &[&checkpoint, "--resume"]).code(2).stdout("");
    refused.stderr(contains("with --resume, take a new file"));
    run("--epochs=2", "second", &[&checkpoint, "--resume"]).success();
    let (mut halves, rest) = (entries("first"), entries("second"));
    // The first half ends with what the second begins with.
    let end: Vec<Entry> = halves.extract_if(.., |entry| entry.step == 6).collect();
    let is_of_weights = |entry: &&Entry| ["parameter", "buffer"].contains(&entry.kind.as_str());
    let begin: Vec<Entry> =
        rest.iter().filter(|entry| entry.step == 6).filter(is_of_weights).cloned().collect();
    assert_eq!(end.len(), 2 * 62 + 40);
    assert!(end == begin, "the second half begins with other weights than the first ends with");
    assert!([halves, rest].concat() == entries("whole"), "two halves are not the whole");
}

/// Ranks that go on all have rank 0's running statistics, where before each had its own. It makes no difference to anything.
#[test]
fn with_local_norms_a_run_that_goes_on_parts_nowhere() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let checkpoint = format!("--checkpoint={}", path("run").display());
    let run = |name: &str, flags: &[&str]| {
        let small = SMALL.iter().filter(|flag| **flag != "--epochs=2");
        let mut command = wrapper(&small.copied().collect::<Vec<_>>());
        command.args(["--scale=none", "--devices=2"]).args(flags).arg("--record").arg(path(name));
        command.assert().success();
        entries(&path(name))
    };
    let whole = run("whole", &["--epochs=2"]);
    run("first", &["--epochs=1", &checkpoint, "--checkpoint-every=3"]);
    // What is left is of the middle of an epoch: at its end, the test would have given all ranks the same.
    std::fs::remove_file(path("run/step-00000005.safetensors")).unwrap();
    let second = run("second", &["--epochs=2", &checkpoint, "--resume"]);
    assert_eq!(first_divergence(&whole, &second), None);
    let of_the_rest = |entry: &&Entry| entry.step > 3;
    assert!(whole.iter().filter(of_the_rest).eq(&second));
}

#[test]
fn two_recordings_part_where_a_difference_first_shows() {
    let folder = tempfile::tempdir().unwrap();
    let recording = |name: &str, flags: &[&str]| {
        let file = folder.path().join(name);
        wrapper(&SMALL).args(flags).arg("--record").arg(&file).assert().success();
        entries(&file)
    };
    let shards = ["--shards=4", "--devices=2"];
    let (first, again) = (recording("a", &shards), recording("b", &shards));
    // Ten steps; 62 parameters and gradients, a loss and two shards for each of two ranks, 40 buffers of the first; and the
    // end.
    assert_eq!(first.len(), 10 * (2 * (2 * 62 + 1 + 2) + 40) + 2 * 62 + 40);
    assert_eq!(first_divergence(&first, &again), None);

    let three = ["--scale=none", "--devices=3"];
    let plain = recording("c", &[&three[..], &["--algorithm=ring"]].concat());
    let told = |flags: &[&str]| {
        let other = recording("d", &[&three[..], flags].concat());
        first_divergence(&plain, &other).unwrap()
    };
    // Another order of additions.
    let order = told(&["--algorithm=one-shot"]);
    assert!(order.starts_with("step 1, rank 0: the first difference"), "{order}");
    assert!(order.contains("gradient fc.bias"), "{order}");
    let seed = told(&["--algorithm=ring", "--seed=2"]);
    assert!(seed.contains("images shard 0"), "{seed}");
}

#[test]
fn with_shards_any_number_of_devices_has_the_same_recording() {
    let folder = tempfile::tempdir().unwrap();
    let recording = |flags: &[&str]| {
        let file = folder.path().join("recording");
        let run = ["--epochs=1", "--shards=4"];
        let small = SMALL.iter().filter(|flag| !flag.starts_with("--epochs"));
        wrapper(&run).args(small).args(flags).arg("--record").arg(&file).assert().success();
        entries(&file)
    };
    let one = recording(&["--devices=1"]);
    for devices in ["2", "4"] {
        let several = recording(&["--devices", devices]);
        assert_ne!(one.len(), several.len());
        assert_eq!(first_divergence(&one, &several), None, "{devices} devices");
        assert_eq!(first_divergence(&several, &one), None, "{devices} devices");
    }
    let other = recording(&["--devices=4", "--seed=2"]);
    let told = first_divergence(&one, &other).unwrap();
    assert!(told.starts_with("step 1, rank 0: the first difference, after 0"), "{told}");
    assert!(told.ends_with("compare seed, batch and sampler"), "{told}");
}
