//! Three axes at once: replicas of pipelines, whose stages hold parts of their layers.

use std::sync::atomic::{AtomicU64, Ordering};

use super::numbers::SAMPLES;
use super::training::{
    Case, checked_on, close, cut, dense, hash, images, lenet, on_ranks, on_the_mesh, resnet18,
    sorted,
};
use crate::before::Before;
use crate::prelude::*;

/// The seven samples of a batch make micro-batches of two sizes. Stages of the dense stack begin at a layer by columns,
/// and in the middle of a pair.
#[test]
fn every_mesh_equals_one_device() {
    let one_f_one_b = (Kind::OneFOneB, "2");
    let schedules = [one_f_one_b, (Kind::OneFOneB, "3"), (Kind::ZbH1, "2"), (Kind::GPipe, "1")];
    let interleaved = (Kind::Interleaved { chunks: 2 }, "1,2,4");
    let meshes = ["2x2x1", "1x2x2", "2x1x2", "2x2x2", "1x2x3"];
    // LeNet is split in stages only.
    for (case, meshes) in [(dense(), &meshes[..]), (lenet(), &meshes[..1])] {
        let expected = case.on_one_device(SAMPLES);
        for (kind, begins) in schedules.into_iter().chain([interleaved]) {
            for mesh in meshes {
                let mesh: Mesh = mesh.parse().unwrap();
                let of_stages = if mesh.pipeline == 1 { "" } else { begins };
                let kind = if mesh.pipeline == 1 { Kind::Naive } else { kind };
                let what = format!("{}, {mesh}, {kind}, cut {of_stages}", case.name);
                let (checked, cut) = (checked_on(mesh, kind, 4 / mesh.data), cut(of_stages, 5));
                let (found, steps, _) = case.on_mesh(mesh, &checked, &cut, SAMPLES, false);
                close((&found, &steps), &expected, 1e-10, &what);
            }
        }
    }
}

/// A batch norm normalises each micro-batch by itself, so one device has the same four micro-batches.
#[test]
fn replicas_of_a_pipeline_with_batch_norms_equal_one_device_on_the_micro_batches() {
    let case = resnet18();
    let expected = case.on_micro_batches(SAMPLES, 4);
    for (kind, begins) in [(Kind::OneFOneB, "4"), (Kind::Interleaved { chunks: 2 }, "1,2,6")] {
        for mesh in ["2x2x1", "4x1x1"] {
            let mesh: Mesh = mesh.parse().unwrap();
            let cut = cut(if mesh.pipeline == 1 { "" } else { begins }, case.layers.len());
            let kind = if mesh.pipeline == 1 { Kind::GPipe } else { kind };
            let checked = checked_on(mesh, kind, 4 / mesh.data);
            let (found, steps, _) = case.on_mesh(mesh, &checked, &cut, SAMPLES, false);
            close((&found, &steps), &expected, 1e-8, &format!("{mesh}, {kind}"));
        }
    }
}

/// Sums of gradients travel on the second threads, while the parts of a stage add activations up on their main threads. Each
/// message of both is late by its own time.
#[test]
fn collectives_of_both_threads_do_not_meet() {
    static MESSAGES: AtomicU64 = AtomicU64::new(0);
    let late = || {
        let number = MESSAGES.fetch_add(1, Ordering::Relaxed);
        std::thread::sleep(Duration::from_micros(number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56));
        Ok(())
    };
    let (mesh, cut) = ("2x2x2".parse::<Mesh>().unwrap(), cut("1,2,4", 5));
    let checked = checked_on(mesh, Kind::Interleaved { chunks: 2 }, 2);
    let case = Case { steps: 10, ..dense() };
    for by_shards in [false, true] {
        let (expected, losses, _) = case.on_mesh(mesh, &checked, &cut, SAMPLES, by_shards);
        for _ in 0..3 {
            let ended = on_ranks(mesh.devices(), |rank| {
                let all =
                    Before { comm: rank.into(), first: Arc::new(late), second: Arc::new(late) };
                case.on_rank(Arc::new(all), mesh, &checked, &cut, SAMPLES, by_shards)
            });
            for (whole, sums, _) in ended.unwrap() {
                let found: Vec<f64> = sums.into_iter().map(|sums| sums.loss).collect();
                assert_eq!(found, losses);
                if let Some(whole) = whole {
                    assert_eq!(hash(&sorted(whole)), hash(&expected));
                }
            }
        }
    }
}

/// Checks the sums of an evaluation on meshes, whose stages begin with these layers. Returns the sums of one device.
pub fn evaluates_as_one_device(
    layers: &Layers,
    sample: &[usize],
    data: &Dataset,
    meshes: &[(&str, &str)],
) -> BatchSums {
    let alone = layers.build(0..layers.len(), 1, DType::F64, &Device::Cpu).unwrap();
    let expected = alone.evaluate(data).unwrap();
    for &(mesh, begins) in meshes {
        let mesh: Mesh = mesh.parse().unwrap();
        let checked = checked_on(mesh, Kind::OneFOneB, 2);
        let found = on_ranks(mesh.devices(), |rank| {
            let (layers, settings) = ((layers, begins), Settings::of(layers));
            let of_sample = (sample, DType::F64);
            on_the_mesh(rank, mesh, &checked, layers, of_sample, settings)?.0.evaluate(data)
        });
        for sums in found.unwrap() {
            assert_eq!((sums.samples, sums.correct), (expected.samples, expected.correct));
            assert!((sums.loss / expected.loss - 1.0).abs() < 1e-10, "{mesh}");
        }
    }
    expected
}

/// The replicas share several batches, and the loss of one part counts.
#[test]
fn every_mesh_evaluates_as_one_device() {
    let layers = Layers::dense(&[PIXELS, 15, 9, CLASSES]).unwrap();
    let meshes = [("1x1x2", ""), ("1x1x3", ""), ("2x1x2", ""), ("1x2x2", "1"), ("2x2x2", "1")];
    evaluates_as_one_device(&layers, &SAMPLE, &images(2 * BATCH + 3), &meshes);
}
