//! Synthetic garments, as training data of a test.

use single_gpu::data::{Dataset, Split, synthetic};

/// The first `count` garments and their labels.
///
/// # Panics
///
/// Never: there is a label for every image.
#[expect(clippy::expect_used, reason = "there is a label for every image")]
pub fn garments(count: usize) -> Dataset {
    let indices = || (0..).take(count);
    let images = indices().map(|index| synthetic::draw(1, Split::Train, index)).collect();
    Dataset::new(images, indices().map(synthetic::label).collect()).expect("a label for each")
}
