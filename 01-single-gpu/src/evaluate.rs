//! Loss and accuracy on images that the model was not trained on.

mod part;

use candle_core::{DType, Device, Module, Result};
use tracing::info_span;

pub use self::part::{Part, SumsByBatch};
use datasets::Dataset;
use harness::interrupt;
use harness::records::BatchSums;
use harness::report::trace::COMPUTE;
use ops::backward::no_grad;
use ops::cross_entropy;
use trainer::StepSums;

/// Images per forward pass, on one device and on many. This number keeps a device busy, and the
/// images fit into the memory of every device.
pub const BATCH: usize = 256;

/// Sums the loss and counts the correct answers of a model over a whole data set. Fails when the
/// images do not fit the model.
pub fn evaluate(
    model: &impl Module,
    dataset: &Dataset,
    dtype: DType,
    device: &Device,
) -> Result<BatchSums> {
    Ok(evaluate_part(model, dataset, Part::WHOLE, dtype, device)?.total())
}

/// Does the same for each batch of a part of the data set, in order. From stage 4 on, the devices
/// of a run share the batches of a data set in this way. Fails when the images do not fit the
/// model.
pub fn evaluate_part(
    model: &impl Module,
    dataset: &Dataset,
    part: Part,
    dtype: DType,
    device: &Device,
) -> Result<SumsByBatch> {
    let _span = info_span!(target: COMPUTE, "evaluate").entered();
    part.evaluate(dataset.len(), dataset.at_once(BATCH), |samples| {
        if interrupt::is_new() {
            // The sums are not used.
            return Ok(BatchSums::of_no_samples());
        }
        let batch = dataset.batch(samples, dtype)?.to_device(device)?;
        // No backward pass follows, so the layers need not keep their inputs for one.
        let logits = no_grad(|| model.forward(&batch.images))?;
        let loss = cross_entropy(&logits, &batch.labels.flatten_all()?)?;
        StepSums::new(&loss, &logits, &batch)?.read()
    })
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use candle_core::Tensor;

    use super::*;
    use crate::lenet::Lenet;
    use datasets::{Split, synthetic};

    /// A model that records whether its logits carry a gradient.
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
        // A tracked forward pass gives the same numbers.
        let batch = images.batch(&[0, 1, 2], dtype).unwrap();
        let logits = model.forward(&batch.images).unwrap();
        assert_eq!(model.1.get(), Some(true));
        let loss = cross_entropy(&logits, &batch.labels).unwrap();
        assert_eq!(sums, StepSums::new(&loss, &logits, &batch).unwrap().read().unwrap());
    }
}
