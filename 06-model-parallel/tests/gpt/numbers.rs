//! Five steps of AdamW: every parameter, every moment and every loss is one device's.

use concise_wrapper::optimizer::AdamW;

use super::{RATE, SIZES, Trained, Way, difference, gpt, hash, on_ranks, texts};
use crate::pipelines::mesh::evaluates_as_one_device;
use crate::pipelines::numbers::kinds;
use crate::prelude::*;
use crate::random_numbers::Random;
use ops::backward::is_recorded;

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

/// The executor with one unit makes the steps of a plain network, to the last bit.
#[test]
fn one_device_trains_and_everything_learns() {
    let layers = gpt();
    let trained = Way::one_device(&layers).train();
    let network = layers.build(0..layers.len(), 1, DType::F64, &Device::Cpu).unwrap();
    let before = network.weights().snapshot().unwrap();
    let mut adamw = AdamW::default();
    for (step, sums) in trained.sums.iter().enumerate() {
        let done = network.step(&texts(step, 1), &mut adamw, RATE).unwrap().sums.read().unwrap();
        assert_eq!(done, *sums, "step {step}");
    }
    for ((name, before), (_, after)) in before.iter().zip(network.weights().snapshot().unwrap()) {
        assert!(relative_difference(before, &after).unwrap() > 1e-3, "{name} learns nothing");
        let (_, found) = trained.values.iter().find(|(other, _)| other == name).unwrap();
        assert_eq!(relative_difference(found, &after).unwrap(), 0.0, "{name}");
    }
    // At first, nearly a guess among all tokens.
    let [first, .., last] = &trained.sums[..] else { panic!("five steps") };
    assert!((first.loss / first.samples as f64 - 20f64.ln()).abs() < 0.05, "{first:?}");
    assert!(last.loss < first.loss);
}

#[test]
fn pipelines_of_every_schedule_equal_one_device() {
    let layers = gpt();
    let expected = Way::one_device(&layers).train();
    let mut worst: f64 = 0.0;
    // 7 texts in micro-batches of two sizes, and in more micro-batches than there are texts.
    for micro_batches in [4, 12] {
        // The cut and the schedule change no bit.
        let mut hashes = Vec::new();
        for begins in ["3", "1,5", "2,4,7", "1,2,3,4,6", "1,2,3,4,5,6,7"] {
            let parts = begins.split(',').count() + 1;
            for (kind, stages) in kinds(parts, micro_batches) {
                if !(2..=4).contains(&stages) {
                    continue;
                }
                let what = format!("{micro_batches} × {kind}, cut {begins}");
                let way = Way::new(&layers, &format!("1x{stages}x1"), kind, begins, micro_batches);
                let trained = way.train();
                worst = worst.max(equals(&trained, &expected, &what));
                hashes.push(hash(&trained.values));
            }
        }
        assert!(hashes.len() > 10 && hashes.iter().all(|it| *it == hashes[0]), "{hashes:?}");
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

/// In parts and in stages, too.
#[test]
fn in_f32_and_in_bf16_losses_are_close() {
    let layers = gpt();
    let expected = Way::one_device(&layers).train();
    for (dtype, bound) in [(DType::F32, 1e-4), (DType::BF16, 2e-2)] {
        let parts = Way::new(&layers, "1x2x2", Kind::ZbH1, "3", 4);
        for way in [Way::one_device(&layers), parts] {
            let found = Way { dtype, ..way }.train();
            for (found, expected) in found.sums.iter().zip(&expected.sums) {
                assert!((found.loss / expected.loss - 1.0).abs() < bound, "{dtype:?}: {found:?}");
            }
        }
    }
}

/// Replicas share the micro-batches out, and stages share the layers out.
#[test]
fn by_shards_the_mesh_changes_no_bit() {
    let layers = gpt();
    let trained = |(mesh, kind, begins): (&str, Kind, &str)| {
        let way = Way::new(&layers, mesh, kind, begins, 8);
        let trained = Way { by_shards: true, ..way }.train();
        let losses: Vec<u64> = trained.sums.iter().map(|it| it.loss.to_bits()).collect();
        (hash(&trained.values), losses)
    };
    let all = [
        ("1x1x1", Kind::GPipe, ""),
        ("2x1x1", Kind::GPipe, ""),
        ("4x1x1", Kind::GPipe, ""),
        ("1x2x1", Kind::OneFOneB, "4"),
        ("2x2x1", Kind::GPipe, "4"),
        ("2x2x1", Kind::ZbH1, "3"),
        ("1x4x1", Kind::OneFOneB, "2,4,6"),
    ];
    let all = all.map(trained);
    assert!(all.iter().all(|it| *it == all[0]), "{all:?}");
}

/// Windows of a text, over several lists of batches and a rest.
#[test]
fn every_mesh_evaluates_as_one_device() {
    let layers = gpt();
    let mut random = Random(1);
    let text = 0..SIZES.context * (2 * BATCH + 3) + 1;
    let text = text.map(|_| random.below(SIZES.vocabulary) as u8).collect();
    let data = Dataset::text(text, SIZES.context).unwrap();
    let meshes = [("1x1x1", ""), ("1x1x4", ""), ("1x2x2", "3"), ("2x2x2", "4")];
    let expected = evaluates_as_one_device(&layers, &[SIZES.context], &data, &meshes);
    assert_eq!(expected.samples, (data.len() * SIZES.context) as u64);
}

/// Every unit of a pipeline is on the tape: otherwise candle's slower backward pass runs, and not in halves.
#[test]
fn every_layer_is_recorded() {
    let layers = gpt();
    let mut x = texts(0, 1).shards[0].images.clone();
    for layer in 0..layers.len() {
        let network = layers.build(layer..layer + 1, 1, DType::F64, &Device::Cpu).unwrap();
        let input = if layer == 0 { x } else { Var::from_tensor(&x).unwrap().into_inner() };
        let output = network.forward_training(&input).unwrap();
        assert!(is_recorded(&output), "layer {layer}");
        x = output.detach();
    }
}

/// All other parameters are in a single part.
#[test]
fn a_rank_of_k_holds_a_kth_and_the_norms_positions_and_biases_of_rows() {
    let layers = gpt();
    let parameters = layers.parameters(0..layers.len()).unwrap();
    let whole: usize = parameters.iter().map(|it| it.elements()).sum();
    let is_whole = |name: &str| {
        ["norm.", "output.bias", "down.bias", "positions"].iter().any(|part| name.contains(part))
    };
    for spec in &parameters {
        assert_eq!(spec.cut.is_none(), is_whole(&spec.name), "{}", spec.name);
    }
    let everywhere = parameters.iter().filter(|it| it.cut.is_none());
    let everywhere: usize = everywhere.map(|it| it.elements()).sum();
    for ranks in [1, 2, 4] {
        let held = on_ranks(ranks, |rank| {
            let (executor, _) = Way::parts(&layers, ranks).executor(rank)?;
            Ok(executor.weights().parameter_bytes() / 8)
        });
        let expected = (whole - everywhere) / ranks + everywhere;
        assert!(held.unwrap().iter().all(|&held| held == expected), "{ranks} ranks");
    }
}
