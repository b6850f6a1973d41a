//! A pipeline evaluates: the sums of one device, no stage runs ahead, and nothing is kept of a forward pass.

use std::sync::atomic::{AtomicUsize, Ordering};

use candle_core::Shape;
use params_and_allreduce::communicator::Error as LineError;
use params_and_allreduce::forward;
use single_gpu::evaluate::Part;

use super::training::{checked, cut, images, on_ranks, one_layer_each};
use crate::prelude::*;

/// A connection that counts the activations that it has sent, less the confirmations that it has received.
struct Counted {
    line: SharedCommunicator,
    unread: AtomicUsize,
    most: AtomicUsize,
}

impl Communicator for Counted {
    forward!(line: rank, world_size, device, send, background);

    fn send_shared(&self, to: usize, tensor: &Tensor) -> Result<(), LineError> {
        let unread = self.unread.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(unread, Ordering::SeqCst);
        self.line.send_shared(to, tensor)
    }

    fn recv(&self, from: usize, shape: &Shape, dtype: DType) -> Result<Tensor, LineError> {
        if dtype == DType::U8 {
            self.unread.fetch_sub(1, Ordering::SeqCst);
        }
        self.line.recv(from, shape, dtype)
    }
}

/// Five batches of images, with the running statistics of batch norms.
#[test]
fn a_pipeline_evaluates_as_one_device_and_does_not_run_ahead() {
    let (layers, data) = (Layers::resnet18(2), images(4 * BATCH + 3));
    let alone = layers.build(0..10, 1, DType::F64, &Device::Cpu).unwrap();
    let expected = alone.evaluate(&data).unwrap();
    let (checked, cut) = (checked(Kind::GPipe, 3, 2), cut("2,6", 10));
    let ended = on_ranks(3, |rank| {
        let (line, zero) = (Arc::new(rank.clone()), AtomicUsize::default);
        let line = Arc::new(Counted { line, unread: zero(), most: zero() });
        let network = layers.build(cut[rank.rank()].clone(), 1, DType::F64, &Device::Cpu)?;
        let (mesh, all) = (Mesh::pipeline(3), line.clone());
        let worker = Executor::new(&checked, vec![network], all, mesh, &SAMPLE)?;
        // The messages before the first step do not count.
        line.unread.store(0, Ordering::SeqCst);
        line.most.store(0, Ordering::SeqCst);
        let sums = worker.evaluate_part(&data, Part::WHOLE)?;
        // Nothing of the first evaluation is left between two stages.
        line.unread.store(0, Ordering::SeqCst);
        assert_eq!(worker.evaluate_part(&data, Part::WHOLE)?, sums);
        let count = |count: &AtomicUsize| count.load(Ordering::SeqCst);
        Ok((sums, count(&line.most), count(&line.unread)))
    });
    for (stage, (sums, most, unread)) in ended.unwrap().into_iter().enumerate() {
        assert_eq!(most, if stage < 2 { 2 } else { 0 }, "messages on their way from {stage}");
        assert_eq!(unread, most, "no stage confirms an activation that nobody waits for");
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
        Executor::new(&checked, vec![network], rank.into(), mesh, &SAMPLE)?
            .evaluate_part(&data, Part::WHOLE)?;
        Ok(counts.each_ref().map(|count| count.load(Ordering::SeqCst)))
    });
    // The sample that tells of shapes, and one batch.
    assert_eq!(ended.unwrap(), [[0, 2]; 2]);
}

#[test]
fn a_stage_that_is_not_the_other_replicas_is_found_before_an_evaluation() {
    let layers = Layers::dense(&[PIXELS, 9, CLASSES]).unwrap();
    let (checked, mesh) = (checked(Kind::OneFOneB, 2, 2), "2x2x1".parse::<Mesh>().unwrap());
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
