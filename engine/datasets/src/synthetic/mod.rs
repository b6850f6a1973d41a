//! Synthetic garments: drawings that replace photographs of clothes on a machine without Fashion-MNIST.
//!
//! Like Fashion-MNIST, they are grey images of 28 by 28 pixels in ten classes, bright on black, and some classes are
//! hard to distinguish. The accuracy on these drawings says nothing about photographs. An image depends on its seed,
//! split and index alone. All drawing operations (+, -, ×, ÷, √, comparisons, rounding) are exact to the last bit by
//! IEEE 754, so an image is the same on every machine.

mod canvas;
mod clothes;
mod draws;
mod garment;
mod outline;
mod shoes;
mod tops;

use rayon::prelude::*;

use self::canvas::Canvas;
use self::clothes::{bag, dress, trouser};
use self::draws::Draws;
use self::garment::{Fabric, Garment, MIXED, Odds, PLAIN, PRINTED, WOVEN};
use self::outline::Pose;
use self::shoes::{ankle_boot, sandal, sneaker};
use self::tops::{Kind, top};
use super::{CLASSES, Dataset, PIXELS, Split};

/// Adds the parts of a random garment of one class.
type Sew = fn(&mut Garment, &mut Draws);

/// The fabric of each class, and the function that sews its parts.
const GARMENTS: [(Odds, Sew); CLASSES] = [
    (PRINTED, |garment, draws| top(garment, draws, Kind::TShirt)),
    (PLAIN, trouser),
    (MIXED, |garment, draws| top(garment, draws, Kind::Pullover)),
    (MIXED, dress),
    (PLAIN, |garment, draws| top(garment, draws, Kind::Coat)),
    (PLAIN, sandal),
    (WOVEN, |garment, draws| top(garment, draws, Kind::Shirt)),
    (PLAIN, sneaker),
    (MIXED, bag),
    (PLAIN, ankle_boot),
];

/// The seed of the data set. It is not the seed of a run: all runs have the same data set.
const SEED: u64 = 1;

/// Draws the first `count` images of a split on all cores. If `count` is 0, there is one image.
pub fn dataset(split: Split, count: usize) -> Dataset {
    let count = count.max(1) as u64;
    let drawn = |index| draw(SEED, split, index);
    let images = match rayon::ThreadPoolBuilder::new().build() {
        Ok(pool) => pool.install(|| (0..count).into_par_iter().map(drawn).collect()),
        // If no further thread can start, this thread draws all images.
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
    let (odds, sew) = &GARMENTS[usize::from(label(index))];
    let mut garment = Garment::of(Fabric::draw(&mut draws, odds));
    sew(&mut garment, &mut draws);
    let pose = Pose::draw(&mut draws);
    let mut canvas = Canvas::black();
    garment.paint(&pose, &mut canvas);
    canvas::occlude(&mut canvas, &mut draws);
    canvas::develop(&canvas, &mut draws)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Some images of every class, from both splits.
    fn sample() -> Vec<[u8; PIXELS]> {
        let of = |split| (0..100).map(move |index| draw(7, split, index));
        of(Split::Train).chain(of(Split::Test)).collect()
    }

    #[test]
    fn an_image_depends_on_its_address_alone() {
        let forwards: Vec<_> = (0..30).map(|index| draw(7, Split::Train, index)).collect();
        for index in (0..30).rev() {
            let drawn_elsewhere = std::thread::spawn(move || draw(7, Split::Train, index)).join();
            assert!(drawn_elsewhere.is_ok_and(|image| image == forwards[index as usize]));
        }
    }

    #[test]
    fn another_address_is_another_image() {
        let image = draw(7, Split::Train, 20);
        assert_ne!(image, draw(8, Split::Train, 20));
        assert_ne!(image, draw(7, Split::Test, 20));
        assert_ne!(image, draw(7, Split::Train, 30));
    }

    #[test]
    fn the_bits_are_the_pinned_ones() {
        // FNV-1a of the bytes. A new value means a new data set: accuracies on the two cannot be compared.
        let digest =
            sample().as_flattened().iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
                (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
            });
        assert_eq!(digest, 0x049e_c461_9a6d_519e);
    }

    #[test]
    fn every_class_is_there_and_neither_dark_nor_bright() {
        let images = sample();
        for class in 0..CLASSES {
            let sums: Vec<u32> = images[class..]
                .iter()
                .step_by(CLASSES)
                .map(|image| image.iter().copied().map(u32::from).sum())
                .collect();
            assert!(sums.iter().all(|&sum| sum > 0), "class {class} has an empty image");
            let mean = sums.iter().sum::<u32>() as f32 / (255 * PIXELS * sums.len()) as f32;
            assert!((0.05..0.55).contains(&mean), "class {class} has mean {mean}");
        }
    }

    #[test]
    fn the_background_is_black_and_the_whole_as_bright_as_photographs_of_clothes() {
        let images = sample();
        let pixels = images.as_flattened();
        let mean =
            pixels.iter().map(|&pixel| f32::from(pixel)).sum::<f32>() / (255 * pixels.len()) as f32;
        assert!((0.2..0.32).contains(&mean), "the mean is {mean}");
        let black = pixels.iter().filter(|&&pixel| pixel == 0).count();
        assert!(black > pixels.len() / 3, "only {black} black pixels");
    }
}
