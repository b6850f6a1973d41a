//! What cannot work is told once, by one process, before anybody trains.

use std::process::Command;

use tempfile::TempDir;

use super::binary;
use super::job::{Ended, Started, alone, mpirun, processes, refused, turn};
use super::training::SMALL;

#[test]
fn flags_that_make_no_sense_are_told_once() {
    let _turn = turn();
    let refusals: [(&[&str], &str); 6] = [
        (&["--devices=2"], "3 processes were started, one for each device, and --devices is 2"),
        (&["--wrapper=data-parallel"], "each of these processes is one rank of --wrapper ddp"),
        (&["--shards=2"], "2 shards cannot be shared out over 3 devices"),
        (&["--slow-link=25"], "for --slow-link and other wrappers, start this program by itself"),
        (&["--epochs=none"], "invalid value 'none' for '--epochs <N>'"),
        (&["--metrics=/dev/null/at/all"], "--metrics /dev/null/at/all"),
    ];
    for (flags, says) in refusals {
        let Some(mut job) = processes(3) else { return };
        job.args(SMALL).args(flags);
        refused(job, 2, says);
    }
}

#[test]
fn mpis_own_sum_is_for_several_processes() {
    let _turn = turn();
    let Some(mut job) = processes(1) else { return };
    job.args(SMALL).args(["--devices=2", "--algorithm=native"]);
    refused(job, 2, "--algorithm native: there is no native all-reduce here: it needs NCCL");
}

/// One process of a machine looks for the images, and tells what it uses.
#[test]
fn missing_images_are_told_once() {
    let _turn = turn();
    let Some(mut job) = processes(3) else { return };
    let small = SMALL.iter().filter(|flag| **flag != "--data=synthetic");
    job.args(small).arg("--epochs=1");
    let Ended { success, text, .. } = Started::new(job).end();
    assert!(success, "{text}");
    assert_eq!(text.matches("note: no mirror answers, so drawn garments").count(), 1, "{text}");
}

#[test]
fn help_is_told_once() {
    let _turn = turn();
    let Some(mut job) = processes(2) else { return };
    job.arg("--help");
    let Ended { success, text, .. } = Started::new(job).end();
    assert!(success, "{text}");
    assert_eq!(text.matches("Usage:").count(), 1, "{text}");
}

/// What the launcher of another MPI library makes, or srun with an --mpi that this one does not speak.
#[test]
fn a_process_that_mpi_does_not_connect_to_the_others_does_not_train_alone() {
    let _turn = turn();
    for (variable, by) in [("OMPI_COMM_WORLD_SIZE", "mpirun"), ("SLURM_STEP_NUM_TASKS", "srun")] {
        let mut job = alone();
        job.args(SMALL).env(variable, "2");
        refused(job, 1, &format!("{by} started 2 processes, and MPI connects 1 of them"));
    }
}

/// Starts rank 0 with some flags, and rank 1 with others.
fn unlike(of_rank_0: &[&str], of_rank_1: &[&str]) -> Option<Command> {
    let mut job = mpirun("two different ranks")?;
    job.args(["-n", "1", binary()]).args(SMALL).args(of_rank_0);
    job.args([":", "-n", "1", binary()]).args(SMALL).args(of_rank_1);
    Some(job)
}

#[test]
fn what_one_rank_alone_cannot_do_is_told_with_its_number() {
    let _turn = turn();
    let Some(job) = unlike(&["--epochs=1"], &["--epochs=0"]) else { return };
    refused(job, 2, "on rank 1: invalid value '0' for '--epochs <N>'");
    let nowhere = ["--data=/nowhere/at/all"];
    let mut job = mpirun("two different ranks").unwrap();
    job.args(["-n", "1", binary()]).args(SMALL).args([":", "-n", "1", binary()]).args(nowhere);
    refused(job, 2, "on rank 1: ");
}

#[test]
fn ranks_that_were_not_started_alike_are_told_the_difference() {
    let _turn = turn();
    let folder = TempDir::new().unwrap();
    let run = folder.path().join("run");
    let checkpoint = format!("--checkpoint={}", run.display());
    let differences: [(&[&str], &[&str], &str); 9] = [
        (&[], &["--seed=2"], "seed 2, rank 0 has 1"),
        // Each of two ranks takes half of it.
        (&[], &["--lr=0.3"], "learning rate 0.6, rank 0 has 0.2"),
        (&[], &["--epochs=9"], "epochs 9, rank 0 has 5"),
        (&[], &["--weight-decay=0.1"], "weight decay 0.1, rank 0 has 0.0"),
        (
            &["--bn=sync"],
            &[],
            "batch norm over each of 2 parts of a batch, rank 0 has over the whole batch",
        ),
        (&["--algorithm=tree"], &[], "way of adding up gradients"),
        (&["--shards=4"], &[], "way of adding up gradients"),
        (&[&checkpoint], &[], "checkpoints none, rank 0 has every 100"),
        (&["--test-norm=batch"], &[], "--test-norm running, rank 0 has batch"),
    ];
    for (of_rank_0, of_rank_1, says) in differences {
        let Some(job) = unlike(of_rank_0, of_rank_1) else { return };
        let Ended { success, text, .. } = Started::new(job).end();
        assert!(!success, "{text}");
        assert!(text.contains("rank 1 failed: rank 1 has "), "{text}");
        assert!(text.contains(says), "{says:?} in:\n{text}");
        assert!(!run.exists(), "nothing has begun");
    }
    // Another network, and another batch size.
    let width: Vec<_> = SMALL.into_iter().filter(|flag| *flag != "--width=4").collect();
    let batch: Vec<_> = SMALL.into_iter().filter(|flag| *flag != "--batch-size=32").collect();
    let other = [
        ([&width[..], &["--width=3"]].concat(), "model ResNet-18 of width 3, rank 0 has "),
        ([&batch[..], &["--batch-size=16"]].concat(), "batch size 32, rank 0 has 64"),
    ];
    for (flags, says) in other {
        let mut job = mpirun("two different ranks").unwrap();
        job.args(["-n", "1", binary()]).args(SMALL).args([":", "-n", "1", binary()]).args(flags);
        let Ended { success, text, .. } = Started::new(job).end();
        assert!(!success && text.contains(says), "{says:?} in:\n{text}");
    }
}
