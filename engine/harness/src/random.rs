//! Random numbers that depend on a seed and on the name of their purpose alone.
//!
//! No two choices share a stream of numbers, so a further layer, device or thread does not change any other number.

use rand_chacha::ChaCha12Rng;
use rand_chacha::rand_core::SeedableRng;
use sha2::{Digest, Sha256};

/// Returns the generator for one seed and one purpose, a path such as `"weights/W1"`.
pub fn generator(seed: u64, purpose: &str) -> ChaCha12Rng {
    let mut key = Sha256::new();
    key.update(seed.to_le_bytes());
    key.update(purpose.as_bytes());
    ChaCha12Rng::from_seed(key.finalize().into())
}
