//! A pipeline evaluates: the sums of one device, no stage runs ahead, and nothing is kept of a forward pass.

use std::sync::atomic::{AtomicUsize, Ordering};

use single_gpu::evaluate::Part;

use super::training::{checked, checked_on, cut, executor, images, on_ranks, one_layer_each};
use crate::prelude::*;

/// Nine batches of images, a list of eight and a list of one, with the running statistics that a step has left.
#[test]
fn a_pipeline_evaluates_as_one_device() {
    let (layers, data) = (Layers::resnet18(2), images(8 * BATCH + 3));
    let (checked, cut) = (checked(Kind::GPipe, 2, 2), cut("6", 10));
    let ended = on_ranks(2, |rank| {
        let layers = (&layers, cut[rank.rank()].clone());
        let executor = executor(rank, Mesh::pipeline(2), &checked, layers, &SAMPLE)?;
        let shares = ShardLoader::new(&images(8), 8, 1, DType::F64, executor.hosts());
        executor.backward(&shares.epoch(1).next().unwrap()?)?;
        let sums = executor.evaluate_part(&data, Part::WHOLE)?;
        // Nothing of the first evaluation is left between two stages, or in the running statistics.
        assert_eq!(executor.evaluate_part(&data, Part::WHOLE)?, sums);
        Ok((sums.total(), executor.whole(executor.weights().snapshot()?)?))
    });
    let [(of_first, whole), (of_last, _)] = ended.unwrap().try_into().unwrap();
    assert_eq!(of_first, BatchSums::default(), "the first stage knows of no sums");
    let alone = layers.build(0..10, 1, DType::F64, &Device::Cpu).unwrap();
    alone.weights().set(&whole.unwrap()).unwrap();
    assert_eq!(of_last, alone.evaluate(&data).unwrap(), "to the last bit");
}

/// The last of three stages is slow.
#[test]
fn no_stage_runs_ahead_by_more_than_a_list() {
    const LIST: usize = 4 * 3;
    let (checked, data) = (checked(Kind::GPipe, 3, 2), images(30 * BATCH));
    let passes = Arc::new([0, 0, 0].map(AtomicUsize::new));
    let ended = on_ranks(3, |rank| {
        let (stage, passes) = (rank.rank(), Arc::clone(&passes));
        let network = Network::new(1, DType::F64, &Device::Cpu, move |vb, _| {
            let inputs = if stage == 0 { PIXELS } else { CLASSES };
            let weight = vb.get((inputs, CLASSES), &format!("weight{stage}"))?;
            let (bias, passes) = (vb.get(CLASSES, &format!("bias{stage}"))?, Arc::clone(&passes));
            Ok(move |x: &Tensor| {
                let mine = passes[stage].fetch_add(1, Ordering::SeqCst);
                if stage == 2 {
                    std::thread::sleep(Duration::from_millis(2));
                }
                let ahead = mine.saturating_sub(passes[2].load(Ordering::SeqCst));
                assert!(ahead <= LIST, "stage {stage} is {ahead} batches ahead");
                linear(&flatten(x)?, &weight, &bias)
            })
        })?;
        Executor::new(
            &checked,
            vec![network],
            rank.into(),
            Mesh::pipeline(3),
            &SAMPLE,
            Settings::IMAGES,
        )?
        .evaluate_part(&data, Part::WHOLE)
    });
    assert_eq!(ended.unwrap()[2].total().samples, 30 * BATCH as u64);
}

/// In f64, the sum of five numbers tells in which order they were added.
#[test]
fn replicas_of_a_pipeline_find_the_sums_of_one_device_to_the_last_bit() {
    let (layers, data) = (Layers::dense(&[PIXELS, 9, CLASSES]).unwrap(), images(4 * BATCH + 3));
    let alone = layers.build(0..2, 1, DType::F64, &Device::Cpu).unwrap();
    let expected = alone.evaluate(&data).unwrap();
    for (mesh, replicas) in [("1x2x1", 1), ("2x2x1", 2), ("3x2x1", 3)] {
        let mesh = mesh.parse::<Mesh>().unwrap();
        let checked = checked_on(mesh, Kind::GPipe, 1);
        let found = on_ranks(2 * replicas, |rank| {
            one_layer_each(rank, mesh, &checked, &layers)?.evaluate(&data)
        });
        let found = found.unwrap();
        assert_eq!(found, vec![expected; 2 * replicas], "{replicas} replicas");
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
    let ended = on_ranks(2, |rank| {
        let inputs = if rank.rank() == 0 { PIXELS } else { CLASSES };
        let counts = Arc::new([0, 0].map(AtomicUsize::new));
        let counted = Arc::clone(&counts);
        let network = Network::new(1, DType::F64, &Device::Cpu, move |vb, _| {
            let vb = vb.pp(inputs);
            let (weight, bias) = (vb.get((inputs, CLASSES), "weight")?, vb.get(CLASSES, "bias")?);
            Ok(Dense { weight, bias, counts: Arc::clone(&counted) })
        })?;
        let mesh = Mesh::pipeline(2);
        Executor::new(&checked, vec![network], rank.into(), mesh, &SAMPLE, Settings::IMAGES)?
            .evaluate_part(&data, Part::WHOLE)?;
        Ok(counts.each_ref().map(|count| count.load(Ordering::SeqCst)))
    });
    // The sample that tells of shapes, and one batch.
    assert_eq!(ended.unwrap(), [[0, 2]; 2]);
}

#[test]
fn a_stage_that_is_not_the_other_replicas_is_found_before_an_evaluation() {
    let layers = Layers::dense(&[PIXELS, 9, CLASSES]).unwrap();
    let mesh = "2x2x1".parse::<Mesh>().unwrap();
    let checked = checked_on(mesh, Kind::OneFOneB, 2);
    let failure = on_ranks(4, |rank| {
        let model = one_layer_each(rank, mesh, &checked, &layers)?;
        if rank.rank() == 3 {
            let weight = &model.weights().parameters[0].tensor;
            overwrite(weight, &weight.detach().affine(1.0 + 1e-15, 0.0)?)?;
        }
        model.evaluate(&images(3))
    });
    let told = failure.unwrap_err().to_string();
    assert!(told.contains("rank 1 failed: replica 1 holds weights "), "{told}");
}
