//! Weights of several ranks: equal to each other to the last bit, and to the right weights up to rounding.

use candle_core::{Result, Tensor};
use model_state::weights_hash::WeightsHash;
use ops::difference::largest_difference;

use crate::mismatch::fail;

/// Weights by name.
pub type Weights = Vec<(String, Tensor)>;

/// Relative differences in f64 that are rounding.
const ROUNDING: f64 = 1e-10;

/// Compares the weights of all ranks with each other.
/// Panics when two ranks have different ones: the message begins with `what`.
#[track_caller]
pub fn agree(what: &str, replicas: &[Weights]) -> Result<()> {
    let hashes = replicas.iter().map(|weights| Ok(WeightsHash::new(weights)?.to_string()));
    let hashes = hashes.collect::<Result<Vec<String>>>()?;
    if hashes.iter().any(|hash| *hash != hashes[0]) {
        let law = "all ranks make the same update, to the last bit";
        fail(&format!("{what}: replicas part"), "one hash on all ranks", &hashes.join(" "), law);
    }
    Ok(())
}

/// Compares weights with the right weights.
/// Fails when they are not of one structure.
/// Panics when they differ by more than rounding in f64: the message begins with `what`.
#[track_caller]
pub fn equal(what: &str, expected: &Weights, got: &Weights, law: &str) -> Result<()> {
    let apart = largest_difference(got, expected)?;
    // NaN counts as a difference.
    let equal = apart <= ROUNDING;
    if !equal {
        let f32 = if apart < 1e-5 { ": was it computed in f32?" } else { "" };
        let got = format!("a relative difference of {apart:.1e}{f32}");
        fail(what, &format!("rounding ({ROUNDING:.0e})"), &got, law);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;

    use candle_core::Device;

    use super::*;

    fn weights(value: f64) -> Weights {
        vec![("W".to_owned(), Tensor::new(&[value, 1.0], &Device::Cpu).unwrap())]
    }

    fn message_of(check: fn() -> Result<()>) -> String {
        *catch_unwind(check).unwrap_err().downcast().unwrap()
    }

    #[test]
    fn rounding_is_allowed_for_between_runs_and_not_between_ranks() {
        let rounded = 1.0 + f64::EPSILON;
        agree("step 1", &[weights(1.0), weights(1.0)]).unwrap();
        equal("step 1", &weights(1.0), &weights(rounded), "k equal one").unwrap();
        let message = message_of(|| agree("step 1", &[weights(1.0), weights(1.0 + f64::EPSILON)]));
        assert!(message.starts_with("step 1: replicas part\n  expected one hash"), "{message}");
    }

    #[test]
    fn a_difference_is_told_with_its_law() {
        for message in [
            message_of(|| equal("step 1", &weights(1.0), &weights(1.5), "k equal one")),
            message_of(|| equal("step 1", &weights(1.0), &weights(f64::NAN), "k equal one")),
        ] {
            assert!(message.starts_with("step 1\n  expected rounding (1e-10)"), "{message}");
            assert!(message.ends_with("law: k equal one"), "{message}");
        }
    }
}
