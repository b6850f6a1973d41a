//! A stage as a model that stage 5's loop trains: its part of a batch, evaluation, the whole model again.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use candle_core::{DType, Device, ModuleT, Shape, Tensor};
use concise_wrapper::checkpoint::{About, Checkpoints};
use concise_wrapper::optimiser::Momentum;
use concise_wrapper::shares::Shares;
use concise_wrapper::train::{Extras, Trained, train};
use concise_wrapper::{Error, Model as _, Network};
use model_parallel::layers::Layers;
use model_parallel::mesh::Mesh;
use model_parallel::pipeline::worker::Worker;
use model_parallel::pipeline::{Kind, PipelineParallel};
use model_parallel::whole::Whole as _;
use params_and_allreduce::communicator::{
    Communicator, Error as LineError, Received, SharedCommunicator,
};
use params_and_allreduce::thread::run_ranks;
use single_gpu::data::loader::Epochs as _;
use single_gpu::data::source::LoadedData;
use single_gpu::data::{CLASSES, Dataset, PIXELS, SAMPLE};
use single_gpu::difference::largest_difference;
use single_gpu::evaluate::{BATCH, Part};
use single_gpu::ops::{flatten, linear};
use single_gpu::parameters::overwrite;
use single_gpu::report::Report;
use single_gpu::train::{BatchSums, TrainOptions};

use crate::training::{CONSTANTS, checked, cut, plan, sorted};

/// Noise of all brightnesses.
fn images(count: usize) -> Dataset {
    let pixel = |image: usize, i: usize| ((image * 31 + i * i * 7 + image * i) % 251) as u8;
    let images = (0..count).map(|image| std::array::from_fn(|i| pixel(image, i))).collect();
    Dataset::new(images, (0..count).map(|image| (image % CLASSES) as u8).collect()).unwrap()
}

/// A connection that counts the activations it has sent and nobody has confirmed.
struct Counted {
    line: SharedCommunicator,
    unread: AtomicUsize,
    most: AtomicUsize,
}

impl Communicator for Counted {
    fn rank(&self) -> usize {
        self.line.rank()
    }

    fn world_size(&self) -> usize {
        self.line.world_size()
    }

    fn device(&self) -> &Device {
        self.line.device()
    }

    fn send(&self, to: usize, tensor: &Tensor) -> Result<(), LineError> {
        self.line.send(to, tensor)
    }

    fn share(&self, to: usize, tensor: &Tensor) -> Result<(), LineError> {
        let unread = self.unread.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(unread, Ordering::SeqCst);
        self.line.share(to, tensor)
    }

    fn recv(&self, from: usize, shape: &Shape, dtype: DType) -> Result<Tensor, LineError> {
        if dtype == DType::U8 {
            self.unread.fetch_sub(1, Ordering::SeqCst);
        }
        self.line.recv(from, shape, dtype)
    }

    fn borrow(&self, from: usize, shape: &Shape, dtype: DType) -> Result<Received, LineError> {
        self.line.borrow(from, shape, dtype)
    }
}

/// Five batches of images, with the running statistics of batch norms.
#[test]
fn a_pipeline_evaluates_as_one_device_and_does_not_run_ahead() {
    let (layers, data) = (Layers::resnet18(2), images(4 * BATCH + 3));
    let alone = layers.build(0..10, 1, DType::F64, &Device::Cpu).unwrap();
    let expected = alone.evaluate(&data).unwrap().unwrap();
    let (checked, cut) = (checked(Kind::GPipe, 3, 2), cut("2,6", 10));
    let ended = run_ranks(&plan(3), Duration::from_secs(60), |rank| {
        let (line, zero) = (Arc::new(rank.line()), AtomicUsize::default);
        let line = Arc::new(Counted { line, unread: zero(), most: zero() });
        let network = layers.build(cut[rank.rank()].clone(), 1, DType::F64, &Device::Cpu)?;
        let worker = Worker::new(&checked, network, line.clone(), &SAMPLE, Instant::now()).unwrap();
        let sums = worker.evaluate(&data, Part::WHOLE).unwrap();
        let count = |count: &AtomicUsize| count.load(Ordering::SeqCst);
        Ok::<_, Error>((sums, count(&line.most), count(&line.unread)))
    });
    for (stage, (sums, most, unread)) in ended.unwrap().into_iter().enumerate() {
        assert_eq!(most, if stage < 2 { 2 } else { 0 }, "messages on their way from {stage}");
        assert_eq!(unread, 0, "nothing is left between two stages");
        let sums = sums.total();
        if stage < 2 {
            assert_eq!(sums, BatchSums::default(), "stage {stage} knows of none");
            continue;
        }
        assert_eq!(sums, expected, "to the last bit");
    }
}

/// In f64, the sum of five numbers tells in which order they were added.
#[test]
fn replicas_of_a_pipeline_find_the_sums_of_one_device_to_the_last_bit() {
    let (layers, data) = (Layers::dense(&[PIXELS, 9, CLASSES]).unwrap(), images(4 * BATCH + 3));
    let alone = layers.build(0..2, 1, DType::F64, &Device::Cpu).unwrap();
    let expected = alone.evaluate(&data).unwrap();
    for (mesh, replicas) in [("1x2x1", 1), ("2x2x1", 2), ("3x2x1", 3)] {
        let (checked, mesh) = (checked(Kind::GPipe, 2, 1), mesh.parse::<Mesh>().unwrap());
        let found = run_ranks(&plan(2 * replicas), Duration::from_secs(60), |rank| {
            let stage = rank.rank() % 2;
            let network = layers.build(stage..stage + 1, 1, DType::F64, &Device::Cpu)?;
            let line = Arc::new(rank.line());
            PipelineParallel::new(&checked, network, line, mesh, &SAMPLE)?.evaluate(&data)
        });
        let found = found.unwrap();
        assert_eq!(found[0], expected, "{replicas} replicas");
        assert!(found[1..].iter().all(Option::is_none), "one rank tells");
    }
}

/// A stage of one dense layer, which counts its results that carry a gradient, and those that carry none.
struct Dense {
    weight: Tensor,
    bias: Tensor,
    counts: Arc<[AtomicUsize; 2]>,
}

impl ModuleT for Dense {
    fn forward_t(&self, x: &Tensor, _train: bool) -> candle_core::Result<Tensor> {
        let y = linear(&flatten(x)?, &self.weight, &self.bias)?;
        self.counts[usize::from(!y.track_op())].fetch_add(1, Ordering::SeqCst);
        Ok(y)
    }
}

#[test]
fn stages_keep_nothing_of_a_forward_pass_that_nobody_differentiates() {
    let (checked, data) = (checked(Kind::GPipe, 2, 1), images(5));
    let ended = run_ranks(&plan(2), Duration::from_secs(60), |rank| {
        let inputs = if rank.rank() == 0 { PIXELS } else { CLASSES };
        let counts = Arc::new([0, 0].map(AtomicUsize::new));
        let counted = Arc::clone(&counts);
        let network = Network::new(1, DType::F64, &Device::Cpu, move |vb, _| {
            let (weight, bias) = (vb.get((inputs, CLASSES), "weight")?, vb.get(CLASSES, "bias")?);
            Ok(Dense { weight, bias, counts: Arc::clone(&counted) })
        })?;
        let line = Arc::new(rank.line());
        let worker = Worker::new(&checked, network, line, &SAMPLE, Instant::now()).unwrap();
        worker.evaluate(&data, Part::WHOLE).unwrap();
        Ok::<_, Error>(counts.each_ref().map(|count| count.load(Ordering::SeqCst)))
    });
    // The sample that tells of shapes, and one batch.
    assert_eq!(ended.unwrap(), [[0, 2]; 2]);
}

/// Test images of three batches, the last of them shorter: the first replica takes two, the second one.
fn data() -> LoadedData {
    LoadedData { name: "noise".to_owned(), note: None, train: images(19), test: images(300) }
}

/// Batches of 8, 8 and 3 samples, twice.
const OPTIONS: TrainOptions =
    TrainOptions { epochs: 2, batch_size: 8, learning_rate: 0.01, seed: 1 };

const EXTRAS: Extras = Extras { constants: CONSTANTS, warm_up: 0 };

fn trained(
    model: &impl concise_wrapper::Model,
    checkpoints: Option<&Checkpoints>,
) -> Result<Trained, Error> {
    let report = &mut Report::silent();
    train(model, &data(), &OPTIONS, &EXTRAS, checkpoints, report)
}

#[test]
fn replicas_of_a_pipeline_train_and_evaluate_as_one_device() {
    let layers = Layers::dense(&[PIXELS, 9, CLASSES]).unwrap();
    let alone = layers.build(0..2, 1, DType::F64, &Device::Cpu).unwrap();
    let expected = trained(&alone, None).unwrap();
    let expected_weights = sorted(expected.weights);
    let (checked, mesh) = (checked(Kind::OneFOneB, 2, 2), "2x2x1".parse::<Mesh>().unwrap());
    let ended = run_ranks(&plan(4), Duration::from_secs(60), |rank| {
        let stage = rank.rank() % 2;
        let network = layers.build(stage..stage + 1, 1, DType::F64, &Device::Cpu)?;
        let line = Arc::new(rank.line());
        let model = PipelineParallel::new(&checked, network, line, mesh, &SAMPLE)?;
        let found = trained(&model, None)?;
        let evaluated = model.evaluate(&data().test)?;
        let samples = evaluated.map(|sums| sums.samples);
        assert_eq!(
            samples,
            (rank.rank() == 0).then_some(300),
            "one rank tells what all have found"
        );
        Ok::<_, Error>((found.records, model.whole(found.weights)?, model.held(EXTRAS.constants)))
    });
    for (rank, (records, whole, held)) in ended.unwrap().into_iter().enumerate() {
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
        assert_eq!(held.activations, 8 * (2 * widths + losses), "rank {rank}");
        assert_eq!((held.gradients, held.optimiser), (2 * held.parameters, held.parameters));
        let nothing = Momentum::default();
        assert_eq!(model_parallel::held::Held::new(alone.weights(), nothing, 0).optimiser, 0);
    }
}

#[test]
fn a_stage_that_is_not_the_other_replicas_is_found_before_an_evaluation() {
    let layers = Layers::dense(&[PIXELS, 9, CLASSES]).unwrap();
    let (checked, mesh) = (checked(Kind::OneFOneB, 2, 2), "2x2x1".parse::<Mesh>().unwrap());
    let failure = run_ranks(&plan(4), Duration::from_secs(60), |rank| {
        let stage = rank.rank() % 2;
        let network = layers.build(stage..stage + 1, 1, DType::F64, &Device::Cpu)?;
        let line = Arc::new(rank.line());
        let model = PipelineParallel::new(&checked, network, line, mesh, &SAMPLE)?;
        if rank.rank() == 3 {
            let weight = &model.weights().parameters[0].tensor;
            overwrite(weight, &weight.detach().affine(1.0 + 1e-15, 0.0)?)?;
        }
        model.evaluate(&images(3))
    });
    let told = failure.unwrap_err().to_string();
    assert!(told.contains("rank 1 failed: replica 1 holds weights "), "{told}");
}

/// Another replica takes long: that is no work of this one's.
#[test]
fn to_wait_for_another_replica_is_not_measured_as_work() {
    let layers = Layers::dense(&[PIXELS, CLASSES]).unwrap();
    let (checked, mesh) = (checked(Kind::Naive, 1, 1), "2x1x1".parse::<Mesh>().unwrap());
    let late = Duration::from_millis(400);
    let busy = run_ranks(&plan(2), Duration::from_secs(60), |rank| {
        let network = layers.build(0..1, 1, DType::F64, &Device::Cpu)?;
        let line = Arc::new(rank.line());
        let model = PipelineParallel::new(&checked, network, line, mesh, &SAMPLE)?;
        let shares = Shares::new(&images(8), 8, 1, DType::F64, model.hosts());
        let share = shares.epoch(1).next().unwrap()?;
        if rank.rank() == 1 {
            std::thread::sleep(late);
        }
        model.backward(&share)?;
        Ok::<_, Error>(model.timelines()?[0].busy(0))
    });
    assert!(busy.unwrap()[0] < late.as_secs_f64() / 2.0);
}

#[test]
fn a_stage_has_no_checkpoints() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("checkpoints");
    let about = About::default();
    let checkpoints =
        Checkpoints { folder: folder.clone(), every: 1, keep: 1, resume: None, about };
    let layers = Layers::dense(&[PIXELS, 9, CLASSES]).unwrap();
    let checked = checked(Kind::OneFOneB, 2, 2);
    let failure = run_ranks(&plan(2), Duration::from_secs(60), |rank| {
        let stage = rank.rank();
        let network = layers.build(stage..stage + 1, 1, DType::F64, &Device::Cpu)?;
        let line = Arc::new(rank.line());
        let model = PipelineParallel::new(&checked, network, line, Mesh::pipeline(2), &SAMPLE)?;
        trained(&model, Some(&checkpoints)).map(drop)
    });
    let told = failure.unwrap_err().to_string();
    assert!(told.contains("a model in parts has no checkpoints"), "{told}");
    assert!(!folder.exists());
}
