//! The random draws of one image.
//!
//! Every image has its own stream of random numbers. This module converts bits to numbers itself, so a new version of a
//! random-number crate does not change the images, as long as ChaCha8 stays the same.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::Split;

/// A source of random numbers for one image.
pub struct Draws {
    source: ChaCha8Rng,
}

impl Draws {
    pub fn new(seed: u64, split: Split, index: u64) -> Self {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&seed.to_le_bytes());
        // The split is part of the key, so the index can use all 64 bits of the stream number.
        key[8] = match split {
            Split::Train => 0,
            Split::Test => 1,
        };
        let mut source = ChaCha8Rng::from_seed(key);
        source.set_stream(index);
        Self { source }
    }

    /// Returns a uniform number in [0, 1). It is a multiple of 2⁻²⁴ and so exact in `f32`.
    pub fn unit(&mut self) -> f32 {
        (self.source.next_u32() >> 8) as f32 / 16_777_216.0
    }

    /// Returns a uniform number between two bounds.
    pub fn between(&mut self, low: f32, high: f32) -> f32 {
        low + (high - low) * self.unit()
    }

    pub fn chance(&mut self, probability: f32) -> bool {
        self.unit() < probability
    }

    /// Returns a position in a list of probabilities. The rest of the probability belongs to the position after the list.
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

    /// Returns a nearly normal number with mean 0 and variance 1: the sum of the four bytes of one word. Without a logarithm
    /// its bits are the same on every machine.
    pub fn bell(&mut self) -> f32 {
        // A uniform byte has mean 127.5 and variance (256² - 1) / 12, and four bytes have four times both.
        const MEAN: f32 = 510.0;
        const DEVIATION: f32 = 147.8;
        let sum: u32 = self.source.next_u32().to_le_bytes().map(u32::from).iter().sum();
        (sum as f32 - MEAN) / DEVIATION
    }
}
