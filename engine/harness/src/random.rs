//! Random numbers that depend on what they are for, and on nothing else.
//!
//! Every random choice of the course (an initial weight, the shuffle of an epoch, a drawn image) comes
//! from a generator keyed by a seed and the *name* of the choice. Nothing is drawn from a shared stream,
//! so adding a layer, a device or a thread never changes anyone else's numbers.

use rand_chacha::ChaCha12Rng;
use rand_chacha::rand_core::SeedableRng;
use sha2::{Digest, Sha256};

/// The generator for one purpose under one seed.
///
/// `purpose` is a path such as `"weights/W1"`. The same two arguments always give the same numbers.
pub fn generator(seed: u64, purpose: &str) -> ChaCha12Rng {
    let mut key = Sha256::new();
    key.update(seed.to_le_bytes());
    key.update(purpose.as_bytes());
    ChaCha12Rng::from_seed(key.finalize().into())
}
