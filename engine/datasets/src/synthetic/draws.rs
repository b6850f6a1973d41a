//! The random draws of one image.
//!
//! Every image owns a stream of its own, so what it looks like depends on nothing but its address
//! (seed, split, index): not on the other images, nor on the thread that draws it. The conversion
//! from bits to numbers is spelled out here, so a new version of a random-number crate cannot
//! change the images as long as ChaCha8 stays ChaCha8.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::Split;

/// A source of random numbers for one image.
pub struct Draws {
    source: ChaCha8Rng,
}

impl Draws {
    /// The source that belongs to image `index` of a split, under a seed.
    pub fn new(seed: u64, split: Split, index: u64) -> Self {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&seed.to_le_bytes());
        // The split goes into the key rather than the stream number, which leaves all 64 bits of
        // the stream number to the index.
        key[8] = match split {
            Split::Train => 0,
            Split::Test => 1,
        };
        let mut source = ChaCha8Rng::from_seed(key);
        source.set_stream(index);
        Self { source }
    }

    /// A uniform number of [0, 1), a multiple of 2⁻²⁴ and therefore exact in an `f32`.
    pub fn unit(&mut self) -> f32 {
        (self.source.next_u32() >> 8) as f32 / 16_777_216.0
    }

    /// A uniform number between two bounds.
    pub fn between(&mut self, low: f32, high: f32) -> f32 {
        low + (high - low) * self.unit()
    }

    /// True with the given probability.
    pub fn chance(&mut self, probability: f32) -> bool {
        self.unit() < probability
    }

    /// A position in a list of probabilities; the rest of the probability goes to the position one
    /// past the list.
    pub fn pick(&mut self, probabilities: &[f32]) -> usize {
        let mut left = self.unit();
        for (position, share) in probabilities.iter().enumerate() {
            if left < *share {
                return position;
            }
            left -= share;
        }
        probabilities.len()
    }

    /// One or the other sign, equally likely.
    pub fn sign(&mut self) -> f32 {
        if self.chance(0.5) { 1.0 } else { -1.0 }
    }

    /// A number close to normally distributed, of mean 0 and variance 1: the sum of the four bytes
    /// of one word, which costs no logarithm and has the same bits everywhere.
    pub fn bell(&mut self) -> f32 {
        // A uniform byte has mean 127.5 and variance (256² - 1) / 12; four of them have four times
        // as much of both.
        const MEAN: f32 = 510.0;
        const DEVIATION: f32 = 147.8;
        let sum: u32 = self.source.next_u32().to_le_bytes().map(u32::from).iter().sum();
        (sum as f32 - MEAN) / DEVIATION
    }
}
