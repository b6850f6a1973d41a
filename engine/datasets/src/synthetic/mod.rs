//! Synthetic garments: drawings that replace photographs of clothes on a machine without Fashion-MNIST.
//!
//! Like Fashion-MNIST, they are grey images of 28 by 28 pixels in ten classes, some of them hard to distinguish. The accuracy on
//! drawings says nothing about photographs. An image depends on its seed, split and index alone: all drawing operations (+, -, ×, ÷,
//! √, comparisons, rounding) are exact to the last bit by IEEE 754.

mod fabric;
mod pattern;
mod picture;

use std::sync::LazyLock;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;

use self::fabric::{MIXED, PLAIN, PRINTED, WOVEN, fabric};
use self::pattern::Pattern;
use self::picture::{develop, fill, pose};
use super::{CLASSES, Dataset, PIXELS, Split};

/// The pattern of each class in `garments.txt`, and its fabrics.
const GARMENTS: [(&str, [f32; 4]); CLASSES] = [
    ("top", PRINTED),
    ("trouser", PLAIN),
    ("top", MIXED),
    ("dress", MIXED),
    ("top", PLAIN),
    ("sandal", PLAIN),
    ("top", WOVEN),
    ("sneaker", PLAIN),
    ("bag", MIXED),
    ("ankle-boot", PLAIN),
];

static PATTERNS: LazyLock<[Pattern; CLASSES]> =
    LazyLock::new(|| GARMENTS.map(|(name, _)| Pattern::read(name)));

/// The strip or patch in front of some garments, in pixels.
static OCCLUSION: LazyLock<Pattern> = LazyLock::new(|| Pattern::read("occlusion"));

/// The seed of the data set. It is not the seed of a run: all runs have the same data set.
const SEED: u64 = 1;

/// Draws the first `count` images of a split on all cores. If `count` is 0, there is one image.
pub fn dataset(split: Split, count: usize) -> Dataset {
    let count = count.max(1) as u64;
    let drawn = |index| draw(SEED, split, index);
    let images = match rayon::ThreadPoolBuilder::new().build() {
        Ok(pool) => pool.install(|| (0..count).into_par_iter().map(drawn).collect()),
        // No further thread can start.
        Err(_) => (0..count).map(drawn).collect(),
    };
    let labels = (0..count).map(label).collect();
    Dataset::new(images, labels).expect("as many labels as images, all of them classes")
}

/// Returns the class of an image, from 0 to 9: the classes take turns.
pub fn label(index: u64) -> u8 {
    (index % CLASSES as u64) as u8
}

/// Draws one image, row by row from the top, from 0 (black) to 255 (white). Its class is [`label`]`(index)`.
pub fn draw(seed: u64, split: Split, index: u64) -> [u8; PIXELS] {
    let mut draws = Draws::new(seed, split, index);
    let class = usize::from(label(index));
    let fabric = fabric(&mut draws, &GARMENTS[class].1);
    let parts = PATTERNS[class].sew(&mut draws, class);
    let (to_pixels, to_garment) = pose(&mut draws);
    let mut canvas = [0.0; PIXELS];
    for (outline, tone, flat) in parts {
        let outline: Vec<_> = outline.into_iter().map(&to_pixels).collect();
        let shade = |place| (fabric(to_garment(place)) * tone).clamp(0.0, 1.0);
        fill(&mut canvas, &outline, |place| if flat { tone } else { shade(place) });
    }
    for (outline, shade, _) in OCCLUSION.sew(&mut draws, class) {
        fill(&mut canvas, &outline, |_| shade);
    }
    develop(&canvas, &mut draws)
}

/// The random numbers of one image, which has a stream of its own. The bits become numbers here, so only another ChaCha8
/// could change the images.
struct Draws(ChaCha8Rng);

impl Draws {
    fn new(seed: u64, split: Split, index: u64) -> Self {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&seed.to_le_bytes());
        // The split is part of the key, so the index can use all 64 bits of the stream number.
        key[8] = u8::from(split == Split::Test);
        let mut source = ChaCha8Rng::from_seed(key);
        source.set_stream(index);
        Self(source)
    }

    /// Returns a uniform number between two bounds.
    fn between(&mut self, low: f32, high: f32) -> f32 {
        // A multiple of 2⁻²⁴ in [0, 1) is exact in `f32`.
        low + (high - low) * ((self.0.next_u32() >> 8) as f32 / 16_777_216.0)
    }

    /// Returns a position in a list of probabilities. The rest of the probability belongs to the position after the list.
    fn pick(&mut self, probabilities: &[f32]) -> usize {
        let mut left = self.between(0.0, 1.0);
        let is_left = |share: &&f32| {
            left -= **share;
            left >= 0.0
        };
        probabilities.iter().take_while(is_left).count()
    }

    /// Returns a nearly normal number with mean 0 and variance 1: the sum of the four bytes of one word. Without a logarithm
    /// its bits are the same on every machine.
    fn bell(&mut self) -> f32 {
        let sum: u32 = self.0.next_u32().to_le_bytes().map(u32::from).iter().sum();
        // A uniform byte has mean 127.5 and variance (256² - 1) / 12, and four bytes have four times both.
        (sum as f32 - 510.0) / 147.8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first `count` images of a split.
    fn images(seed: u64, split: Split, count: u64) -> Vec<[u8; PIXELS]> {
        (0..count).map(|index| draw(seed, split, index)).collect()
    }

    #[test]
    fn an_image_depends_on_its_address_alone() {
        let forwards = images(7, Split::Train, 31);
        let draw_elsewhere =
            |index| std::thread::spawn(move || draw(7, Split::Train, index)).join();
        for index in (0..31).rev() {
            assert!(draw_elsewhere(index).unwrap() == forwards[index as usize]);
        }
        let others = [draw(8, Split::Train, 20), draw(7, Split::Test, 20), forwards[30]];
        assert!(others.iter().all(|other| *other != forwards[20]));
    }

    #[test]
    fn the_bits_of_pixels_and_labels_are_the_pinned_ones() {
        // A new value means a new data set: accuracies on the two cannot be compared.
        for (seed, split, count, expected) in [
            (1, Split::Train, 2000, "4ce32e8136b12561"),
            (1, Split::Test, 500, "038cb014e7474f2e"),
            (7, Split::Train, 2000, "80fa2c54bf28cbd9"),
            (7, Split::Test, 500, "8c5222fe6c363692"),
            (u64::MAX, Split::Train, 100, "e2a6ed92702fcb08"),
        ] {
            let labels = (0..count).map(label).collect();
            let data = Dataset::new(images(seed, split, count), labels).unwrap();
            assert_eq!(data.fingerprint(), expected, "{seed} {split:?}");
            if seed == SEED {
                assert_eq!(dataset(split, count as usize).fingerprint(), expected);
            }
        }
    }

    #[test]
    fn every_class_is_there_and_the_whole_is_as_bright_as_photographs_of_clothes() {
        let images = [images(7, Split::Train, 100), images(7, Split::Test, 100)].concat();
        let brightness = |images: &[[u8; PIXELS]]| {
            let pixels = images.as_flattened();
            pixels.iter().map(|&p| f32::from(p)).sum::<f32>() / (255 * pixels.len()) as f32
        };
        for class in 0..CLASSES {
            let of_class: Vec<_> = images[class..].iter().step_by(CLASSES).copied().collect();
            assert!(of_class.iter().all(|image| *image != [0; PIXELS]), "{class}");
            let mean = brightness(&of_class);
            assert!((0.05..0.55).contains(&mean), "class {class} has mean {mean}");
        }
        let mean = brightness(&images);
        assert!((0.2..0.32).contains(&mean), "the mean is {mean}");
        // The background is black.
        let black = images.as_flattened().iter().filter(|&&pixel| pixel == 0).count();
        assert!(black > images.len() * PIXELS / 3, "only {black} black pixels");
    }
}
