//! Five steps of AdamW: every parameter, every moment and every loss is one device's.

use super::{Trained, Way, difference, gpt, hash, texts};
use crate::pipelines::numbers::kinds;
use crate::prelude::*;

/// Compares with one device, and returns the largest difference.
#[track_caller]
fn equals(found: &Trained, expected: &Trained, what: &str) -> f64 {
    let difference = difference(found, expected);
    assert!(difference < 1e-10, "{what}: {difference:.1e}");
    for (found, expected) in found.sums.iter().zip(&expected.sums) {
        assert_eq!((found.samples, found.correct), (expected.samples, expected.correct), "{what}");
        assert!((found.loss / expected.loss - 1.0).abs() < 1e-10, "{what}: {found:?} {expected:?}");
    }
    difference
}

/// The executor with one unit makes the steps of a plain network.
#[test]
fn one_device_trains_and_everything_learns() {
    let layers = gpt();
    let trained = Way::one_device(&layers).train();
    let network = layers.build(0..layers.len(), 1, DType::F64, &Device::Cpu).unwrap();
    for (name, before) in network.weights().snapshot().unwrap() {
        let (_, after) = trained.values.iter().find(|(other, _)| *other == name).unwrap();
        assert!(relative_difference(&before, after).unwrap() > 1e-3, "{name} learns nothing");
    }
    let batch = texts(0, 1);
    let logits = network.forward_training(&batch.shards[0].images).unwrap();
    assert_eq!(logits.dims(), [batch.samples, 20]);
    let labels = batch.shards[0].labels.flatten_all().unwrap();
    let loss = ops::cross_entropy(&logits, &labels).unwrap().to_scalar::<f64>().unwrap();
    assert!((trained.sums[0].loss / loss - 1.0).abs() < 1e-12);
    // Nearly a guess among all tokens.
    assert!((loss / batch.samples as f64 - 20f64.ln()).abs() < 0.05, "{loss}");
    assert!(trained.sums[4].loss < trained.sums[0].loss);
}

#[test]
fn pipelines_of_every_schedule_equal_one_device() {
    let layers = gpt();
    let expected = Way::one_device(&layers).train();
    let mut worst: f64 = 0.0;
    // 7 texts in micro-batches of two sizes, and in more micro-batches than there are texts.
    for micro_batches in [4, 12] {
        for begins in ["3", "1,5", "2,4,7", "1,2,3,4,6", "1,2,3,4,5,6,7"] {
            let parts = begins.split(',').count() + 1;
            for (kind, stages) in kinds(parts, micro_batches) {
                if !(2..=4).contains(&stages) {
                    continue;
                }
                let what = format!("{micro_batches} × {kind}, cut {begins}");
                let way = Way::new(&layers, &format!("1x{stages}x1"), kind, begins, micro_batches);
                worst = worst.max(equals(&way.train(), &expected, &what));
            }
        }
    }
    println!("pipelines: {worst:.1e}");
}

/// Heads, hidden features and the vocabulary are cut.
#[test]
fn parts_equal_one_device() {
    let layers = gpt();
    let expected = Way::one_device(&layers).train();
    let mut worst: f64 = 0.0;
    for ranks in [2, 4] {
        let trained = Way::parts(&layers, ranks).train();
        worst = worst.max(equals(&trained, &expected, &format!("{ranks} ranks")));
    }
    println!("parts: {worst:.1e}");
}

#[test]
fn every_mesh_equals_one_device() {
    let layers = gpt();
    let expected = Way::one_device(&layers).train();
    let mut worst: f64 = 0.0;
    let interleaved = Kind::Interleaved { chunks: 2 };
    for (mesh, kind, begins) in [
        ("2x1x1", Kind::GPipe, ""),
        ("2x1x2", Kind::Naive, ""),
        ("1x2x2", Kind::OneFOneB, "4"),
        ("2x2x1", Kind::ZbH1, "3"),
        ("1x2x4", Kind::ZbH1, "5"),
        ("1x4x2", Kind::OneFOneB, "2,4,6"),
        ("2x2x2", Kind::GPipe, "4"),
        ("2x2x2", Kind::ZbH1, "4"),
        ("2x2x2", interleaved, "2,4,6"),
    ] {
        // 7 texts: uneven micro-batches, and an empty one.
        for micro_batches in [4, 8] {
            let trained = Way::new(&layers, mesh, kind, begins, micro_batches).train();
            let what = format!("{mesh}, {micro_batches} × {kind}");
            worst = worst.max(equals(&trained, &expected, &what));
        }
    }
    println!("meshes: {worst:.1e}");
}

/// Replicas share the micro-batches out.
#[test]
fn by_shards_the_number_of_ranks_changes_no_bit() {
    let layers = gpt();
    let mut all = Vec::new();
    for ranks in [1, 2, 4] {
        let mesh = format!("{ranks}x1x1");
        let way = Way::new(&layers, &mesh, Kind::GPipe, "", 8);
        let trained = Way { by_shards: true, ..way }.train();
        let losses: Vec<u64> = trained.sums.iter().map(|it| it.loss.to_bits()).collect();
        all.push((hash(&trained.values), losses));
    }
    assert!(all.iter().all(|it| *it == all[0]), "{all:?}");
}
