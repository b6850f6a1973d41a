//! A pipeline as a model that stage 5's loop trains: its part of a batch, and the whole model again.

use concise_wrapper::train::Trained;

use super::training::{
    CONSTANTS, checked_on, executor, images, on_ranks, on_the_mesh, one_layer_each, sorted,
};
use crate::prelude::*;

/// Test images of three batches, the last of them shorter: the first replica takes two, the second one.
fn data() -> LoadedData {
    LoadedData { name: "noise".to_owned(), train: images(19), test: images(300) }
}

/// Batches of 8, 8 and 3 samples, twice.
const OPTIONS: TrainOptions =
    TrainOptions { epochs: 2, batch_size: 8, learning_rate: 0.01, seed: 1 };

fn trained(
    model: &impl concise_wrapper::Model,
    checkpoints: Option<&dyn Store>,
) -> Result<Trained, Error> {
    let report = &mut Report::silent();
    let sgd = &mut Sgd::new(CONSTANTS);
    train(model, &data(), &OPTIONS, (sgd, 0), checkpoints, report, |_| Ok(()))
}

#[test]
fn replicas_of_a_pipeline_train_and_evaluate_as_one_device() {
    let layers = Layers::dense(&[PIXELS, 9, CLASSES]).unwrap();
    let alone = layers.build(0..2, 1, DType::F64, &Device::Cpu).unwrap();
    let expected = trained(&alone, None).unwrap();
    let expected_weights = sorted(expected.weights);
    let mesh = "2x2x1".parse::<Mesh>().unwrap();
    let checked = checked_on(mesh, Kind::OneFOneB, 2);
    let ended = on_ranks(4, |rank| {
        let model = one_layer_each(rank, mesh, &checked, &layers)?;
        let found = trained(&model, None)?;
        let samples = model.evaluate(&data().test)?.samples;
        assert_eq!(samples, 300, "every rank returns the sums of all");
        Ok((found.records, model.whole(found.weights)?, model.measured()))
    });
    for (rank, (records, whole, measured)) in ended.unwrap().into_iter().enumerate() {
        for (record, expected) in records.iter().zip(&expected.records) {
            let close = |a: f64, b: f64| assert!((a / b - 1.0).abs() < 1e-10, "{rank}: {a} {b}");
            close(record.train_loss, expected.train_loss);
            assert_eq!((record.part, record.train_accuracy), (1.0, expected.train_accuracy));
            if rank == 0 {
                close(record.test_loss, expected.test_loss);
                assert_eq!(record.test_accuracy, expected.test_accuracy);
            }
        }
        assert_eq!(whole.is_some(), rank % 2 == 0, "on the first stage of every replica");
        if let Some(whole) = whole {
            let difference = largest_difference(&sorted(whole), &expected_weights).unwrap();
            assert!(difference < 1e-10, "{difference:e}");
        }
        // Micro-batches of two samples; the last batch of an epoch has smaller ones.
        let (widths, losses) = [(2 * (PIXELS + 9), 0), (9 + CLASSES, 1)][rank % 2];
        let parameters = 8 * [PIXELS * 9 + 9, 9 * CLASSES + CLASSES][rank % 2];
        let expected = Bytes {
            parameters,
            // The sum, and the gradients of one micro-batch.
            gradients: 2 * parameters,
            optimizer: parameters,
            activations: 8 * (2 * widths + losses),
            messages: 8 * 2 * 9,
        };
        assert_eq!(measured.held.peak, expected, "rank {rank}");
        // Two micro-batches of two samples, of nine numbers each.
        assert_eq!(measured.held.sent, 8 * 2 * 2 * 9, "rank {rank}");
    }
}

/// Another replica takes long: that is no work of this one's.
#[test]
fn to_wait_for_another_replica_is_not_measured_as_work() {
    let layers = Layers::dense(&[PIXELS, CLASSES]).unwrap();
    let mesh = "2x1x1".parse::<Mesh>().unwrap();
    let checked = checked_on(mesh, Kind::Naive, 1);
    let late = Duration::from_millis(400);
    let busy = on_ranks(2, |rank| {
        let model = executor(rank, mesh, &checked, (&layers, 0..1), &SAMPLE)?;
        let shares = ShardLoader::new(&images(8), 8, 1, DType::F64, model.hosts());
        let share = shares.epoch(1).next().unwrap()?;
        if rank.rank() == 1 {
            std::thread::sleep(late);
        }
        model.backward(&share)?;
        Ok(model.timelines()?[0].busy(0))
    });
    assert!(busy.unwrap()[0] < late.as_secs_f64() / 2.0);
}

/// Each rank's file would hold a part.
#[test]
fn a_model_in_parts_has_no_checkpoints() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("checkpoints");
    let configuration = Configuration::default();
    let checkpoints = Checkpoints {
        folder: folder.clone(),
        every: 1,
        keep: 1,
        resume: None,
        scale: 1,
        configuration,
    };
    let layers = Layers::dense(&[PIXELS, 9, CLASSES]).unwrap();
    for (mesh, begins) in [("1x2x1", "1"), ("1x1x2", ""), ("2x1x2", "")] {
        let mesh: Mesh = mesh.parse().unwrap();
        let checked = checked_on(mesh, Kind::OneFOneB, 2);
        let failure = on_ranks(mesh.devices(), |rank| {
            let (layers, sample) = ((&layers, begins), (&SAMPLE[..], DType::F64));
            let (model, _) = on_the_mesh(rank, mesh, &checked, layers, sample, Settings::IMAGES)?;
            trained(&model, Some(&checkpoints)).map(drop)
        });
        let told = failure.unwrap_err().to_string();
        assert!(told.contains("a model in parts has no checkpoints"), "{mesh}: {told}");
    }
    assert!(!folder.exists());
}
