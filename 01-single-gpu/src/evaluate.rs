//! Accuracy on images that were not trained on.

use candle_core::{DType, Device, Module, Result};
use tracing::info_span;

use crate::backward::untracked;
use crate::data::Dataset;
use crate::ops::cross_entropy;
use crate::report::trace::COMPUTE;
use crate::train::{BatchSums, read_sums};

/// Images per forward pass: enough to keep a device busy, few enough to fit anywhere.
const BATCH: usize = 256;

/// What one device evaluates of a data set, where several share it: every `of`-th batch, from the `nth` on.
///
/// Whole batches, and not shares of each: then every batch is computed as one device would, to the last bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Which part, counted from 0; less than `of`.
    pub nth: usize,
    /// How many parts there are.
    pub of: usize,
}

impl Part {
    /// All batches.
    pub const WHOLE: Self = Self { nth: 0, of: 1 };

    /// The samples of each of this part's batches, of so many `samples` in batches of `size`; the last may be shorter.
    pub fn batches(self, samples: usize, size: usize) -> impl Iterator<Item = Vec<u32>> {
        let begins = (0..samples).step_by(size).skip(self.nth).step_by(self.of);
        begins.map(move |begin| (begin as u32..).take(size.min(samples - begin)).collect())
    }
}

/// Sums of loss and correct answers over a whole data set, on the model's device.
///
/// # Errors
///
/// When the images do not fit the model.
pub fn evaluate(
    model: &impl Module,
    dataset: &Dataset,
    dtype: DType,
    device: &Device,
) -> Result<BatchSums> {
    evaluate_part(model, dataset, Part::WHOLE, dtype, device)
}

/// The same over a part of it, which may have no batch.
///
/// # Errors
///
/// When the images do not fit the model.
pub fn evaluate_part(
    model: &impl Module,
    dataset: &Dataset,
    part: Part,
    dtype: DType,
    device: &Device,
) -> Result<BatchSums> {
    let _span = info_span!(target: COMPUTE, "evaluate").entered();
    let mut total = BatchSums::default();
    for samples in part.batches(dataset.len(), BATCH) {
        let batch = dataset.batch(&samples, dtype)?.to_device(device)?;
        // Nobody asks for gradients: then what a layer has read need not wait for them.
        let logits = untracked(|| model.forward(&batch.images))?;
        let loss = cross_entropy(&logits, &batch.labels)?;
        total += read_sums(&loss, &logits, &batch)?;
    }
    Ok(total)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use candle_core::Tensor;

    use super::*;
    use crate::data::{Split, synthetic};
    use crate::lenet::Lenet;

    /// A model that notes whether its logits carry a gradient.
    struct Noted(Lenet, Cell<Option<bool>>);

    impl Module for Noted {
        fn forward(&self, images: &Tensor) -> Result<Tensor> {
            let logits = self.0.forward(images)?;
            self.1.set(Some(logits.track_op()));
            Ok(logits)
        }
    }

    #[test]
    fn nothing_of_a_forward_pass_is_kept() {
        let images = synthetic::dataset(Split::Test, 3);
        let (dtype, device) = (DType::F32, &Device::Cpu);
        let model = Noted(Lenet::new(1, dtype, device).unwrap(), Cell::default());
        let sums = evaluate(&model, &images, dtype, device).unwrap();
        assert_eq!(model.1.get(), Some(false));
        // Nor is anything of it another number.
        let batch = images.batch(&[0, 1, 2], dtype).unwrap();
        let logits = model.forward(&batch.images).unwrap();
        assert_eq!(model.1.get(), Some(true));
        let loss = cross_entropy(&logits, &batch.labels).unwrap();
        assert_eq!(sums, read_sums(&loss, &logits, &batch).unwrap());
    }

    #[test]
    fn each_sample_is_in_one_batch_of_one_part() {
        for (samples, of) in [(0, 1), (1, 3), (8, 1), (9, 2), (31, 2), (32, 3), (33, 3)] {
            let batches = |part: Part| part.batches(samples, 4).collect::<Vec<_>>();
            let whole = batches(Part::WHOLE);
            assert_eq!(whole.concat(), (0..samples as u32).collect::<Vec<_>>());
            let mut found = vec![Vec::new(); whole.len()];
            for nth in 0..of {
                for (place, batch) in batches(Part { nth, of }).into_iter().enumerate() {
                    found[nth + place * of] = batch;
                }
            }
            assert_eq!(found, whole, "{samples} samples in {of} parts");
        }
    }
}
