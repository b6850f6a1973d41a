//! The smallest network that learns to tell garments apart: one dense layer.
//!
//! LeNet needs hundreds of steps before its accuracy moves. This one needs a handful, and its gradients have
//! all that data parallelism can get wrong: two tensors of different shapes, sums over samples.

use candle_core::{D, DType, Device, Result, Tensor, Var, bail};
use params_and_allreduce::get_params;
use single_gpu::data::{Batch, CLASSES, PIXELS};
use single_gpu::init;
use single_gpu::ops::{cross_entropy, linear};
use single_gpu::parameters::Parameters;
use single_gpu::train::{BatchSums, Step};

/// One replica of a dense layer in f64: `[B, 1, 28, 28]` → logits `[B, 10]`.
#[derive(Debug)]
pub struct Classifier {
    weights: Var,
    biases: Var,
    parameters: Parameters,
}

impl Classifier {
    /// A replica with fresh weights that depend on the seed alone: W `[784, 10]`, b `[10]`.
    ///
    /// # Errors
    ///
    /// When the tensors cannot be made on `device`.
    pub fn new(seed: u64, device: &Device) -> Result<Self> {
        let weights = init::normal("W", &[PIXELS, CLASSES], 0.01, seed, DType::F64, device)?;
        let biases = init::zeros("b", &[CLASSES], DType::F64, device)?;
        Self::with_parameters(Parameters::new(vec![weights, biases])?)
    }

    /// A copy on another device, with memory of its own.
    ///
    /// # Errors
    ///
    /// When the copy fails.
    pub fn replica(&self, device: &Device) -> Result<Self> {
        Self::with_parameters(get_params(&self.parameters, device)?)
    }

    fn with_parameters(parameters: Parameters) -> Result<Self> {
        let named = |name| match parameters.get(name) {
            Some(value) => Ok(value.clone()),
            None => bail!("a classifier needs a parameter {name}"),
        };
        Ok(Self { weights: named("W")?, biases: named("b")?, parameters })
    }

    /// The replica's parameters: W, then b.
    pub fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// Loss, correct answers and gradients of a batch or a shard, all summed over its samples; nothing is
    /// updated. An empty shard's are zero.
    ///
    /// # Errors
    ///
    /// When the batch does not fit the model.
    pub fn gradients(&self, batch: &Batch) -> Result<Step> {
        if batch.is_empty() {
            let zeros = self.parameters.iter().map(|parameter| parameter.value.zeros_like());
            let gradients = zeros.collect::<Result<_>>()?;
            return Ok(Step { sums: BatchSums::default(), gradients });
        }
        let (loss, sums) = self.forward(batch)?;
        Ok(Step { sums, gradients: self.parameters.gradients(&loss.backward()?)? })
    }

    /// Loss and correct answers of images that were not trained on, summed over them.
    ///
    /// # Errors
    ///
    /// When the images do not fit the model.
    pub fn evaluate(&self, images: &Batch) -> Result<BatchSums> {
        Ok(self.forward(images)?.1)
    }

    fn forward(&self, batch: &Batch) -> Result<(Tensor, BatchSums)> {
        let logits = linear(&batch.images.flatten_from(1)?, &self.weights, &self.biases)?;
        let loss = cross_entropy(&logits, &batch.labels)?;
        let answers = logits.detach().argmax(D::Minus1)?;
        let correct = answers.eq(&batch.labels)?.to_dtype(DType::U32)?.sum_all()?;
        let sums = BatchSums {
            loss: loss.detach().to_scalar()?,
            correct: correct.to_scalar::<u32>()?.into(),
            samples: batch.len() as u64,
            interrupts: 0,
        };
        Ok((loss, sums))
    }
}
