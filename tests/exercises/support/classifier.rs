//! The smallest network that learns to classify garments: one dense layer.
//!
//! LeNet needs hundreds of steps before its accuracy rises. The dense layer needs a few, and its gradients can go wrong in all
//! the ways of data parallelism: two tensors of different shapes, sums over samples.
//!
//! In a run, the model is LeNet.
//!
//! The model counts the samples whose gradients it computes. If every rank does the work of all ranks, the updates are right and
//! only the counts are wrong.

use std::cell::{Cell, RefCell};
use std::thread;
use std::time::Instant;

use candle_core::{D, DType, Device, Module as _, Result, Tensor, Var};
use datasets::{Batch, CLASSES, PIXELS};
use harness::records::BatchSums;
use model_state::parameters::Parameters;
use ops::backward::{backward, no_grad};
use ops::{cross_entropy, linear};
use single_gpu::init;
use single_gpu::lenet::Lenet;
use single_gpu::train::Step;

thread_local! {
    /// The samples of each call of [`Classifier::gradients`] in this thread.
    static WORKED: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// Returns the number of samples of each call of [`Classifier::gradients`] in this thread, and clears the list. A rank is one
/// thread. Empty shards are left out.
pub fn worked() -> Vec<usize> {
    WORKED.take()
}

/// One replica of a dense layer in f64, or of LeNet in f32: `[B, 1, 28, 28]` → logits `[B, 10]`.
#[derive(Debug)]
pub struct Classifier {
    layers: Layers,
    parameters: Parameters,
    /// The device takes so many times its time.
    slowness: f64,
    sums: Cell<BatchSums>,
}

#[derive(Debug)]
enum Layers {
    /// Weights and biases, the same variables as in the list: a clone shares its value.
    Dense(Var, Var),
    Lenet(Lenet),
}

impl Classifier {
    /// A replica with fresh weights that depend on the seed alone: W `[784, 10]`, b `[10]`.
    pub fn new(seed: u64, device: &Device) -> Result<Self> {
        let weights = init::normal("W", &[PIXELS, CLASSES], 0.01, seed, DType::F64, device)?;
        let biases = init::zeros("b", &[CLASSES], DType::F64, device)?;
        let layers = Layers::Dense(weights.value.clone(), biases.value.clone());
        let parameters = Parameters::new(vec![weights, biases])?;
        Ok(Self { layers, parameters, slowness: 1.0, sums: Cell::default() })
    }

    /// A replica of LeNet, on a device that takes `slowness` times its time.
    pub fn lenet(seed: u64, device: &Device, slowness: f64) -> Result<Self> {
        Ok(Self { slowness, ..Self::of(Lenet::new(seed, DType::F32, device)?) })
    }

    /// This replica of LeNet.
    pub fn of(lenet: Lenet) -> Self {
        let parameters = lenet.parameters().clone();
        Self { layers: Layers::Lenet(lenet), parameters, slowness: 1.0, sums: Cell::default() }
    }

    /// Loss and correct answers of all samples whose gradients this replica has computed.
    pub fn sums(&self) -> BatchSums {
        self.sums.get()
    }

    /// The replica's parameters: W, then b.
    pub fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// Loss, correct answers and gradients of a batch or a shard, all summed over its samples. The gradients of an
    /// empty shard are zero. [`worked`] returns the numbers of samples.
    pub fn gradients(&self, batch: &Batch) -> Result<Step> {
        if batch.is_empty() {
            let zeros = self.parameters.iter().map(|parameter| parameter.value.zeros_like());
            let gradients = zeros.collect::<Result<_>>()?;
            return Ok(Step { sums: BatchSums::default(), gradients });
        }
        let begun = Instant::now();
        let (loss, sums) = self.forward(batch)?;
        WORKED.with_borrow_mut(|calls| calls.push(batch.len()));
        let mut all = self.sums.get();
        all += sums;
        self.sums.set(all);
        let gradients = self.parameters.gradients(&backward(&loss)?)?;
        thread::sleep(begun.elapsed().mul_f64(self.slowness - 1.0));
        Ok(Step { sums, gradients })
    }

    /// Loss and correct answers of test images, summed over the images.
    pub fn evaluate(&self, images: &Batch) -> Result<BatchSums> {
        Ok(no_grad(|| self.forward(images))?.1)
    }

    fn forward(&self, batch: &Batch) -> Result<(Tensor, BatchSums)> {
        let logits = match &self.layers {
            Layers::Dense(weights, biases) => {
                linear(&batch.images.flatten_from(1)?, weights, biases)?
            }
            Layers::Lenet(lenet) => lenet.forward(&batch.images)?,
        };
        let loss = cross_entropy(&logits, &batch.labels)?;
        let answers = logits.detach().argmax(D::Minus1)?;
        let correct = answers.eq(&batch.labels)?.to_dtype(DType::U32)?.sum_all()?;
        let sums = BatchSums {
            loss: loss.detach().to_dtype(DType::F64)?.to_scalar()?,
            correct: correct.to_scalar::<u32>()?.into(),
            samples: batch.len() as u64,
            interrupts: 0,
        };
        Ok((loss, sums))
    }
}
