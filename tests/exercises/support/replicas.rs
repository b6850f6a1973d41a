//! Weights of several ranks: equal to each other to the last bit, and to the right weights up to rounding.

use candle_core::{Result, Tensor};
use model_state::weights_hash::WeightsHash;
use ops::difference::largest_difference;

use crate::outcome::{Outcome, expect};

/// Weights by name.
pub type Weights = Vec<(String, Tensor)>;

/// Relative differences in f64 that are rounding.
const ROUNDING: f64 = 1e-10;

/// Demands that all ranks have the same weights. The finding begins with `what`.
pub fn agree(what: &str, replicas: &[Weights]) -> Outcome {
    let hashes = replicas.iter().map(|weights| Ok(WeightsHash::new(weights)?.to_string()));
    let hashes = hashes.collect::<Result<Vec<String>>>()?;
    let law = "all ranks make the same update, to the last bit";
    let (alike, all) = (hashes.iter().all(|hash| *hash == hashes[0]), hashes.join(" "));
    expect(alike, format!("{what}: replicas part"), ("one hash on all ranks", all), law)
}

/// Demands that weights differ from the right weights by no more than rounding in f64. The finding begins with `what`.
/// Fails when the weights are not of one structure.
pub fn equal(what: &str, expected: &Weights, got: &Weights, law: &str) -> Outcome {
    let apart = largest_difference(got, expected)?;
    let f32 = if apart < 1e-5 { ": was it computed in f32?" } else { "" };
    let got = format!("a relative difference of {apart:.1e}{f32}");
    // NaN counts as a difference.
    expect(apart <= ROUNDING, what, (format!("rounding ({ROUNDING:.0e})"), got), law)
}
