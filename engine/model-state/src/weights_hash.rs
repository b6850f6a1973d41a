//! A hash of a model's weights: two replicas have equal weights if their hashes are equal.

use std::fmt;

use base16ct::HexDisplay;
use candle_core::{DType, Device, Result, Tensor, bail};
use sha2::{Digest, Sha256};

/// SHA-256 over the name, element type, shape and bytes of every tensor, in the order of the names. Equal hashes mean equal *bits*.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct WeightsHash([u8; 32]);

impl WeightsHash {
    /// Hashes named tensors. Fails when an element type is neither f32 nor f64.
    pub fn new(weights: &[(String, Tensor)]) -> Result<Self> {
        let mut sorted: Vec<_> = weights.iter().collect();
        sorted.sort_by_key(|(name, _)| name);
        let mut hash = Sha256::new();
        for (name, value) in sorted {
            // Every length precedes its data, so different models never produce the same bytes.
            hash.update((name.len() as u64).to_le_bytes());
            hash.update(name.as_bytes());
            hash.update(value.dtype().as_str().as_bytes());
            hash.update((value.rank() as u64).to_le_bytes());
            for &size in value.dims() {
                hash.update((size as u64).to_le_bytes());
            }
            let flat = value.flatten_all()?;
            if value.dtype() == DType::F32 {
                flat.to_vec1::<f32>()?.iter().for_each(|v| hash.update(v.to_le_bytes()));
            } else {
                flat.to_vec1::<f64>()?.iter().for_each(|v| hash.update(v.to_le_bytes()));
            }
        }
        Ok(Self(hash.finalize().into()))
    }

    /// Copies the hash to a tensor `[32]` of type u8 on `device`. Fails when the device fails.
    pub fn to_tensor(&self, device: &Device) -> Result<Tensor> {
        Tensor::new(&self.0, device)
    }

    /// Reads a hash from a tensor of [`to_tensor`](Self::to_tensor).
    pub fn from_tensor(tensor: &Tensor) -> Result<Self> {
        match tensor.to_vec1::<u8>()?.try_into() {
            Ok(bytes) => Ok(Self(bytes)),
            Err(_) => bail!("32 bytes of a hash expected, got {:?}", tensor.dims()),
        }
    }
}

impl fmt::Display for WeightsHash {
    /// Prints the first eight hexadecimal digits, such as `3f9c0a12`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", HexDisplay(&self.0[..4]))
    }
}

impl fmt::Debug for WeightsHash {
    /// Prints all 64 hexadecimal digits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", HexDisplay(&self.0))
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    fn named(name: &str, values: &[f32]) -> (String, Tensor) {
        (name.to_owned(), Tensor::new(values, &Device::Cpu).unwrap())
    }

    #[test]
    fn order_does_not_matter_and_everything_else_does() {
        let hash = |weights: &[(String, Tensor)]| WeightsHash::new(weights).unwrap();
        let (a, b) = (named("a", &[1.0, 2.0]), named("b", &[3.0]));
        let both = hash(&[a.clone(), b.clone()]);
        assert_eq!(both, hash(&[b.clone(), a.clone()]));
        assert_ne!(both, hash(std::slice::from_ref(&a)));
        assert_ne!(both, hash(&[named("c", &[1.0, 2.0]), b.clone()]));
        let next = f32::from_bits(3.0f32.to_bits() + 1);
        assert_ne!(both, hash(&[a.clone(), named("b", &[next])]), "one bit of one weight");
        let column = ("a".to_owned(), a.1.reshape((2, 1)).unwrap());
        assert_ne!(both, hash(&[column, b]), "the same bytes in another shape");
    }
}
