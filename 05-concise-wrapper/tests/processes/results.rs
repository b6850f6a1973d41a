//! The same bits, whatever the ranks are and however many.

use std::fs;

use harness::report::counted;
use tempfile::TempDir;

use super::job::{alone, hashes, processes, turn};
use super::training::{SMALL, STEPS, checkpoints};

/// Flags of the runs of the table.
fn flags(model: &str) -> Vec<&str> {
    // LeNet has no width.
    let small = SMALL.iter().filter(|flag| model != "--model=lenet" || **flag != "--width=4");
    small.copied().chain([model, "--shards=8", "--epochs=2"]).collect()
}

/// Law 3 in one table.
#[test]
fn one_hash_for_any_number_of_devices_as_threads_and_as_processes_and_after_a_resume() {
    let _turn = turn();
    for model in ["--model=lenet", "--model=resnet18"] {
        let flags = flags(model);
        let mut table = Vec::new();
        for devices in [1, 2, 4, 8] {
            let mut threads = alone();
            threads.args(&flags).args(["--devices", &devices.to_string()]);
            // With several devices, one device comes first.
            let hash = hashes(threads).pop().unwrap();
            table.push((counted(devices, "thread"), hash));
        }
        for ranks in [1, 2, 4, 8] {
            let Some(mut job) = processes(ranks) else { return };
            // A single process may have any number of devices.
            job.args(&flags).args(["--devices", &ranks.to_string()]);
            table.push((counted(ranks, "process"), hashes(job).pop().unwrap()));
        }
        // Begun with some devices, cut in the second epoch, gone on with others.
        for (before, after) in [(4, 2), (2, 8)] {
            let folder = TempDir::new().unwrap();
            let run = folder.path().join("run");
            let keep = ["--checkpoint-every=1", "--keep=100", "--checkpoint"];
            let mut begun = processes(before).unwrap();
            begun.args(&flags).args(keep).arg(&run);
            hashes(begun);
            let cut = STEPS + 3;
            for (_, later) in checkpoints(&run).split_off(cut) {
                fs::remove_file(later).unwrap();
            }
            let on_threads = after == 8;
            let mut gone_on = if on_threads { alone() } else { processes(after).unwrap() };
            gone_on.args(&flags).args(["--devices", &after.to_string()]);
            gone_on.args(keep).arg(&run).arg("--resume");
            let then = counted(after, if on_threads { "thread" } else { "process" });
            let hash = hashes(gone_on).pop().unwrap();
            table.push((format!("{}, then {then}", counted(before, "process")), hash));
        }
        println!("{model}");
        for (ranks, hash) in &table {
            println!("  {:<28}{}", ranks, &hash[..16]);
        }
        for (ranks, hash) in &table {
            assert_eq!(*hash, table[0].1, "{model}: {ranks}");
        }
    }
}

/// With the course's own algorithms on any number of ranks; MPI's own order of adding shows from three ranks on.
#[test]
fn processes_give_the_bits_that_threads_give() {
    let _turn = turn();
    for ranks in [2, 3, 4] {
        for norms in ["--bn=local", "--bn=sync"] {
            let own = ["ring", "one-shot", "tree"];
            for algorithm in own.iter().chain((ranks == 2).then_some(&"native")) {
                let Some(mut job) = processes(ranks) else { return };
                let flags = ["--epochs=1", norms, "--algorithm"];
                job.args(SMALL).args(flags).arg(algorithm);
                let mut threads = alone();
                let same = if *algorithm == "native" { "ring" } else { algorithm };
                threads.args(SMALL).args(flags).arg(same).args(["--devices", &ranks.to_string()]);
                let (job, threads) = (hashes(job).pop(), hashes(threads).pop());
                assert_eq!(job, threads, "{ranks} ranks, {norms} {algorithm}");
            }
        }
    }
}

#[test]
fn processes_are_recorded_as_threads_are() {
    let _turn = turn();
    let folder = TempDir::new().unwrap();
    let (of_processes, of_threads) = (folder.path().join("a"), folder.path().join("b"));
    let Some(mut job) = processes(3) else { return };
    let mut threads = alone();
    threads.arg("--devices=3");
    for (command, file) in [(&mut job, &of_processes), (&mut threads, &of_threads)] {
        command.args(SMALL).args(["--epochs=1", "--record"]).arg(file);
    }
    assert_eq!(hashes(job).pop(), hashes(threads).pop());
    let read = |file| fs::read_to_string(file).unwrap();
    let recording = read(of_processes);
    assert!(recording.lines().any(|line| line.contains(r#""rank":2"#)));
    assert_eq!(recording, read(of_threads));
}
