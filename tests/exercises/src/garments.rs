//! Pictures to train on, where it matters that something can be learnt.

use candle_core::Result;
use single_gpu::data::{Dataset, Split, synthetic};

/// The first `count` synthetic garments of a split, and their labels.
///
/// # Errors
///
/// When there are none: a data set is not empty.
pub fn garments(split: Split, count: u64) -> Result<Dataset> {
    let images = (0..count).map(|index| synthetic::draw(1, split, index)).collect();
    let labels = (0..count).map(synthetic::label).collect();
    Dataset::new(images, labels).map_err(candle_core::Error::wrap)
}
