//! Accuracy on images that were not trained on.

use candle_core::{DType, Device, Module, Result};
use tracing::info_span;

use crate::data::Dataset;
use crate::ops::cross_entropy;
use crate::report::trace::COMPUTE;
use crate::train::{BatchSums, read_sums};

/// Images per forward pass: enough to keep a device busy, few enough to fit anywhere.
const BATCH: usize = 256;

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
    let _span = info_span!(target: COMPUTE, "evaluate").entered();
    let indices: Vec<u32> = (0..).take(dataset.len()).collect();
    let mut total = BatchSums::default();
    for chunk in indices.chunks(BATCH) {
        let batch = dataset.batch(chunk, dtype)?.to_device(device)?;
        let logits = model.forward(&batch.images)?;
        let loss = cross_entropy(&logits, &batch.labels)?;
        total += read_sums(&loss, &logits, &batch)?;
    }
    Ok(total)
}
