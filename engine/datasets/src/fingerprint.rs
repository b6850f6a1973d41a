//! A fingerprint of images and labels. Two data sets with the same fingerprint are the same.

use base16ct::HexDisplay;
use sha2::{Digest as _, Sha256};

use super::{Dataset, SAMPLE};

/// The number of bytes of the hash that the fingerprint has.
const BYTES: usize = 8;

impl Dataset {
    /// Returns the first 16 hexadecimal digits of SHA-256 over the images and the labels.
    ///
    /// The hash is computed once for a data set and all its clones.
    pub fn fingerprint(&self) -> &str {
        self.fingerprint.get_or_init(|| {
            let mut hash = Sha256::new();
            // The number of images separates the images from the labels.
            hash.update((self.len() as u64).to_le_bytes());
            hash.update(self.pixels());
            hash.update(self.labels());
            // The same number of pixels can be images of another shape.
            if self.shape() != SAMPLE {
                self.shape().iter().for_each(|&size| hash.update((size as u64).to_le_bytes()));
            }
            format!("{:x}", HexDisplay(&hash.finalize()[..BYTES]))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PIXELS;

    #[test]
    fn a_fingerprint_is_of_every_pixel_and_label_and_of_nothing_else() {
        let images = vec![[7; PIXELS]; 3];
        let of = |images: &[[u8; PIXELS]], labels: [u8; 3]| {
            Dataset::new(images.to_vec(), labels.to_vec()).unwrap()
        };
        let data = of(&images, [1, 2, 3]);
        assert_eq!(data.fingerprint().len(), 2 * BYTES);
        assert_eq!(of(&images, [1, 2, 3]).fingerprint(), data.fingerprint());
        let mut others = vec![of(&images, [1, 2, 4])];
        for (image, pixel) in [(0, 0), (1, 400), (2, PIXELS - 1)] {
            let mut images = images.clone();
            images[image][pixel] ^= 1;
            others.push(of(&images, [1, 2, 3]));
        }
        // A clone shares the fingerprint until it is truncated.
        let mut shorter = data.clone();
        shorter.truncate(3);
        assert_eq!(shorter.fingerprint(), data.fingerprint());
        shorter.truncate(2);
        others.push(shorter);
        for shape in [[28, 1, 28], [1, 14, 56]] {
            let (pixels, labels) = (images.as_flattened().to_vec(), vec![1, 2, 3]);
            others.push(Dataset::of_shape(pixels, shape, labels, 10).unwrap());
        }
        let mut all: Vec<_> = others.iter().map(Dataset::fingerprint).collect();
        all.push(data.fingerprint());
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 8);
    }
}
