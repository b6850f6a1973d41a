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
/// images fit into the memory of every device. Of a text, fewer windows: [`Dataset::at_once`].
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
        let loss = cross_entropy(&logits, &batch.labels)?;
        StepSums::new(&loss, &logits, &batch)?.read()
    })
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use candle_core::Tensor;

    use super::*;
    use crate::lenet::Lenet;
    use datasets::{Split, synthetic, text};

    /// A model that records whether its logits carry a gradient.
    struct Noted(Lenet, Cell<Option<bool>>);

    impl Module for Noted {
        fn forward(&self, images: &Tensor) -> Result<Tensor> {
            let logits = self.0.forward(images)?;
            self.1.set(Some(logits.track_op()));
            Ok(logits)
        }
    }

    /// A bigram model: a token's row of the table is the logits of the next token.
    struct Bigram(Tensor);

    impl Module for Bigram {
        fn forward(&self, tokens: &Tensor) -> Result<Tensor> {
            ops::embedding(tokens, &self.0)?.flatten(0, 1)
        }
    }

    #[test]
    fn the_loss_of_a_text_is_a_sum_over_tokens() {
        // Several batches of windows, and the last is shorter.
        let text: Vec<u8> = (0..30_000_u32).map(|i| (i * i / 7 % 97) as u8).collect();
        let data = Dataset::text(text, 50).unwrap();
        let (dtype, device) = (DType::F64, &Device::Cpu);
        let mut counts = vec![0.05; 256 * 256];
        for pair in data.bytes().windows(2) {
            counts[usize::from(pair[0]) << 8 | usize::from(pair[1])] += 1.0;
        }
        let table = Tensor::from_vec(counts, (256, 256), device).unwrap().log().unwrap();
        let model = Bigram(table);
        let sums = evaluate(&model, &data, dtype, device).unwrap();
        assert_eq!(sums.samples, 50 * 599);
        let expected = text::bigram_bits_per_byte(data.bytes(), data.bytes());
        let found = text::bits_per_byte(sums.mean_loss());
        approx::assert_relative_eq!(found, expected, max_relative = 1e-12);
        let part = |nth| evaluate_part(&model, &data, Part { nth, of: 2 }, dtype, device).unwrap();
        assert_eq!(part(1).and(part(0)).total(), sums);
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
