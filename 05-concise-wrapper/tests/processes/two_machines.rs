//! Ranks on two machines that share no memory: two network namespaces, joined by a cable.

use std::process::Command;

use super::binary;
use super::job::{Started, alone, hashes, mpirun, prepare, turn};
use super::training::SMALL;

/// What the script says with this where namespaces may not be made, or something is missing.
const CANNOT: i32 = 3;

#[test]
fn two_machines_give_the_bits_of_one() {
    let _turn = turn();
    let Some(like_mpirun) = mpirun("two machines") else { return };
    let job = |ranks: &str| {
        let mut job = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/two-machines"));
        prepare(&mut job);
        job.envs(like_mpirun.get_envs().filter_map(|(name, value)| Some((name, value?))));
        job.env("RANKS", ranks).arg(binary()).args(SMALL).args(["--shards=4", "--epochs=1"]);
        job
    };
    for ranks in ["1", "2"] {
        let tried = Started::new(job(ranks)).end();
        if tried.code == Some(CANNOT) {
            return println!("SKIPPED: two machines: {}", tried.text.trim());
        }
        assert!(tried.success, "{}", tried.text);
        assert!(tried.text.contains("red cpu:0 (1 core)"), "{}", tried.text);
        assert!(tried.text.contains("blue cpu:0 (1 core)"), "{}", tried.text);
        // The gradients have been through the cable: the network has 12,000 parameters.
        let told = tried.text.lines().find(|line| line.starts_with("two-machines: ")).unwrap();
        println!("{ranks} ranks on each: {told}");
        let numbers = told.split_whitespace().filter_map(|word| word.parse::<u64>().ok());
        assert!(numbers.min().unwrap() > 100_000, "{told}");
        let mut threads = alone();
        threads.args(SMALL).args(["--shards=4", "--epochs=1", "--devices=1"]);
        assert_eq!(hashes(job(ranks)), hashes(threads), "{ranks} ranks on each machine");
    }
}
