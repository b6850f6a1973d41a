//! Several ranks: they go on together, by shard also in another number.

use std::fs;

use checkpoints::Resume;
use tempfile::TempDir;

use super::run::{Cut, Settings, assert_same, file, hash, lenet, resnet18};
use super::watched::Event;
use crate::prelude::*;

const BUCKETS: Reduction = many_buckets(Algorithm::Ring, true);

fn ddp_goes_on<M: ModuleT + Send + Sync + 'static>(
    network: &Network<M>,
    change: fn(Settings) -> Settings,
) {
    let expected = change(Settings::new()).ddp(network, 2, BUCKETS, Cut::NEVER).unwrap();
    for step in [1, 3, 5] {
        let folder = TempDir::new().unwrap();
        let settings = change(Settings::keeping(&folder));
        settings.ddp(network, 2, BUCKETS, Cut(step, Event::Interrupt)).unwrap();
        let again = settings.resume(Resume::Newest);
        let rest = again.ddp(network, 2, BUCKETS, Cut::NEVER).unwrap();
        assert_same(&rest, &expected, &format!("two ranks, cut after step {step}"));
    }
}

#[test]
fn ddp_goes_on_with_the_same_bits() {
    ddp_goes_on(&lenet(), |settings| settings);
    ddp_goes_on(&lenet(), Settings::adamw);
    // Local batch norms: each rank has running statistics of its own, of which rank 0's are kept.
    ddp_goes_on(&resnet18(), |settings| settings);
}

#[test]
fn by_shard_it_goes_on_on_another_number_of_ranks() {
    let reduction = Reduction::Reproducible { shards: 8 };
    let expected = Settings::new().ddp(&resnet18(), 2, reduction, Cut::NEVER).unwrap();
    for step in [2, 3, 4] {
        for ranks in [1, 4] {
            let folder = TempDir::new().unwrap();
            let settings = Settings::keeping(&folder);
            settings.ddp(&resnet18(), 2, reduction, Cut(step, Event::Interrupt)).unwrap();
            let again = settings.resume(Resume::Newest);
            let rest = again.ddp(&resnet18(), ranks, reduction, Cut::NEVER).unwrap();
            assert_same(&rest, &expected, &format!("cut after {step}, then {ranks} ranks"));
        }
    }
}

#[test]
fn ranks_that_were_not_started_alike_are_told() {
    let folder = TempDir::new().unwrap();
    let settings = Settings::keeping(&folder);
    settings.ddp(&lenet(), 2, BUCKETS, Cut(2, Event::Interrupt)).unwrap();
    let told = |other: Settings| {
        let plan = DevicePlan::slices(2).unwrap();
        let own = settings.resume(Resume::Newest);
        let outcome = run_ranks(&plan, WAIT, |rank| {
            let model = Ddp::new(lenet(), rank, BUCKETS)?;
            if rank.rank() == 1 { other.train(&model) } else { own.train(&model) }
        });
        let failure = outcome.unwrap_err();
        assert_eq!(failure.rank, 1, "{failure}");
        failure.to_string()
    };
    let anew = told(settings.clone());
    assert!(anew.contains("rank 1 has checkpoints every 1000, resume None, rank 0 has"), "{anew}");
    let without = told(Settings { checkpoints: None, ..settings.clone() });
    assert!(without.contains("rank 1 has checkpoints none, rank 0 has every 1000"), "{without}");
    let mut slower = settings.resume(Resume::Newest);
    slower.options.learning_rate = 0.01;
    let slower = told(slower);
    assert!(slower.contains("rank 1 has learning rate 0.01, rank 0 has 0.05"), "{slower}");
    // What the images are called is the same, and how many there are.
    let inverted = |data: &Dataset| {
        let pixels = data.bytes().iter().map(|pixel| !pixel).collect();
        Dataset::of_shape(pixels, SAMPLE, data.labels().to_vec(), CLASSES).unwrap()
    };
    for which in ["training", "test"] {
        let mut other = settings.resume(Resume::Newest);
        let data = if which == "test" { &mut other.data.test } else { &mut other.data.train };
        *data = inverted(data);
        let told = told(other);
        assert!(told.contains(&format!("rank 1 has {which} images with hash ")), "{told}");
    }
    // Only rank 0's folder counts.
    let nowhere = TempDir::new().unwrap();
    let elsewhere = Settings::keeping(&nowhere).resume(Resume::Newest);
    let plan = DevicePlan::slices(2).unwrap();
    let own = settings.resume(Resume::Newest);
    let trained = run_ranks(&plan, WAIT, |rank| {
        let model = Ddp::new(lenet(), rank, BUCKETS)?;
        if rank.rank() == 1 { elsewhere.train(&model) } else { own.train(&model) }
    });
    let expected = Settings::new().ddp(&lenet(), 2, BUCKETS, Cut::NEVER).unwrap();
    let trained = trained.unwrap();
    assert_same(&trained[0], &expected, "two folders");
    assert_eq!(hash(&trained[1]), hash(&expected));
    assert_eq!(fs::read_dir(nowhere.path()).unwrap().count(), 0);
}

#[test]
fn a_damaged_file_on_rank_0_ends_all_ranks() {
    let folder = TempDir::new().unwrap();
    let settings = Settings::keeping(&folder);
    settings.ddp(&lenet(), 2, BUCKETS, Cut(2, Event::Interrupt)).unwrap();
    fs::write(settings.folder().join(file(2)), "no checkpoint").unwrap();
    let again = settings.resume(Resume::Newest);
    let told = again.ddp(&lenet(), 2, BUCKETS, Cut::NEVER).unwrap_err();
    assert!(told.contains("rank 0") && told.contains("is damaged"), "{told}");
}
