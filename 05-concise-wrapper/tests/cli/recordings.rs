//! What `--record` writes, and where two of them part.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use harness::recording::Entry;

use crate::{SMALL, wrapper};
use predicates::str::contains;

fn entries(file: &Path) -> Vec<Entry> {
    let text = fs::read_to_string(file).expect("a recording");
    text.lines().map(|line| serde_json::from_str(line).expect("an entry")).collect()
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
    assert!(first == again, "the same run has another recording");

    let three = ["--scale=none", "--devices=3"];
    let plain = recording("c", &[&three[..], &["--algorithm=ring"]].concat());
    let first_other = |flags: &[&str]| {
        let other = recording("d", &[&three[..], flags].concat());
        let (Entry { step, rank, kind, name, .. }, _) =
            plain.iter().zip(&other).find(|(one, other)| one != other).expect("a difference");
        (*step, *rank, kind.as_str(), name.as_str())
    };
    // Another order of additions.
    assert_eq!(first_other(&["--algorithm=one-shot"]), (1, 0, "gradient", "fc.bias"));
    let seed = first_other(&["--algorithm=ring", "--seed=2"]);
    assert_eq!(seed, (1, 0, "images", "shard 0"));
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
    // The images of all ranks, and everything else of the first.
    let hashes = |flags: &[&str]| {
        let all = recording(flags).into_iter();
        let counted = all.filter(|entry| entry.rank == 0 || entry.kind == "images");
        let hash = |Entry { step, kind, name, hash, .. }: Entry| ((step, kind, name), hash);
        counted.map(hash).collect::<BTreeMap<_, _>>()
    };
    let one = hashes(&["--devices=1"]);
    for devices in ["2", "4"] {
        assert!(hashes(&["--devices", devices]) == one, "{devices} devices");
    }
    let other = hashes(&["--devices=4", "--seed=2"]);
    let images = (1, "images".to_owned(), "shard 0".to_owned());
    assert_ne!(other[&images], one[&images]);
}
