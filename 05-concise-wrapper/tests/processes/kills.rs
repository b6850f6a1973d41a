//! A run that is killed again and again, at random moments, and still ends as if nothing had happened.

use std::env;
use std::thread::sleep;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use tempfile::TempDir;

use super::job::{BOUNDED, Ended, Started, alone, hashes_within, processes, turn};
use super::training::{SMALL, checkpoints};

/// How many kills, where somebody wants another number.
const KILLS: &str = "KILLS";

/// More steps than are made between twenty kills, on a machine three times as fast as ours too.
const FLAGS: [&str; 3] = ["--shards=4", "--epochs=300", "--timeout=5"];

/// For all of these steps, on a machine that is slow and does other things.
const ALL: Duration = Duration::from_secs(1200);

/// From the beginning of a job to the kill, at the most: it has started by then, and made some steps.
const LATEST: Duration = Duration::from_millis(2_500);

#[test]
#[ignore = "takes minutes: `FULL=1 bash .ci/mpi` runs it"]
fn a_run_that_is_killed_again_and_again_ends_with_the_same_weights() {
    let _turn = turn();
    let kills: usize = env::var(KILLS).map_or(20, |kills| kills.parse().unwrap());
    // Moments are not repeated exactly anyway.
    let seed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let folder = TempDir::new().unwrap();
    let job = |ranks: usize| {
        let mut job = processes(ranks)?;
        job.args(SMALL).args(FLAGS).args(["--checkpoint-every=1", "--checkpoint"]);
        job.arg(folder.path());
        if !checkpoints(folder.path()).is_empty() {
            // The newest, which has to be whole.
            job.arg("--resume");
        }
        Some(job)
    };
    for kill in 1..=kills {
        let ranks = random.random_range(2..=4);
        let Some(job) = job(ranks) else { return };
        let after = random.random_range(Duration::ZERO..LATEST);
        let mut job = Started::new(job);
        sleep(after);
        let killed = random.random_range(0..ranks);
        job.signal(killed, "-KILL");
        let Ended { success, text, took, .. } = job.end();
        let step = checkpoints(folder.path()).pop().map_or(0, |(step, _)| step);
        println!(
            "kill {kill} of {kills}: rank {killed} of {ranks} after {after:.1?}; the job ended {took:.1?} later, \
             and its newest checkpoint is of step {step}"
        );
        assert!(!success && took < BOUNDED, "{took:?}\n{text}");
    }
    let survived = hashes_within(job(2).unwrap(), ALL).pop().unwrap();
    let mut uninterrupted = alone();
    uninterrupted.args(SMALL).args(FLAGS).arg("--devices=1");
    assert_eq!(survived, hashes_within(uninterrupted, ALL).pop().unwrap());
}
