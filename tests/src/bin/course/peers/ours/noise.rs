//! What training steps are made on: pixels and labels that mean nothing, as the scripts draw theirs.

use datasets::{CLASSES, Dataset, PIXELS};
use harness::random;
use rand::Rng as _;

/// So many images of uniformly random pixels, with uniformly random labels: the same ones every time.
///
/// How long a step takes may depend on the numbers in it: a GPU that multiplies zeros needs less power, and can be faster.
/// Much of a garment's image is black, and nothing of the other side's.
pub(super) fn images(count: usize) -> anyhow::Result<Dataset> {
    let mut images = vec![[0; PIXELS]; count];
    random::generator(1, "peers/images").fill_bytes(images.as_flattened_mut());
    let mut source = random::generator(1, "peers/labels");
    let labels = (0..count).map(|_| (source.next_u32() % CLASSES as u32) as u8).collect();
    Ok(Dataset::new(images, labels)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pixels_and_labels_are_uniform() {
        let images = images(1000).unwrap();
        let mut pixels = [0_usize; 256];
        images.pixels().iter().for_each(|&pixel| pixels[usize::from(pixel)] += 1);
        // 3062.5 each, with a standard deviation of 55.
        assert!(pixels.iter().all(|count| (2750..3400).contains(count)), "{pixels:?}");
        let mut labels = [0_usize; CLASSES];
        images.labels().iter().for_each(|&label| labels[usize::from(label)] += 1);
        // 100 each, with a standard deviation of 9.5.
        assert!(labels.iter().all(|count| (50..150).contains(count)), "{labels:?}");
    }
}
