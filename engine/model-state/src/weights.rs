//! The named tensors of a network: wrappers copy them to replicas, optimizers update them, and checkpoints save them.
//!
//! *Parameters* have gradients. *Buffers* (`running_mean`, `running_var`) are changed by the forward pass, and never by the
//! optimizer. Their names distinguish them, as in `candle_nn` and PyTorch.

use candle_core::{Device, Result, Tensor, bail};
use ops::size_in_bytes;
use ops::update::overwrite;

pub use crate::parameters::Snapshot;
use crate::precision::Precision;

// ANCHOR: weights
/// A tensor and its name, such as `layer1.0.conv1.weight`.
#[derive(Clone, Debug)]
pub struct Named {
    /// The name, unique within the network. The initial value depends on it.
    pub name: String,
    /// The tensor. Clones share its memory.
    pub tensor: Tensor,
}

impl Named {
    /// Returns the size of the tensor in bytes.
    pub fn bytes(&self) -> usize {
        size_in_bytes(&self.tensor)
    }
}

/// The tensors of one network, each kind in the order in which the network asked for them.
#[derive(Clone, Debug)]
pub struct Weights {
    /// The type of the tensors, and the type in which layers compute with them.
    pub precision: Precision,
    /// The tensors that the optimizer changes.
    pub parameters: Vec<Named>,
    /// The tensors that the forward pass changes.
    pub buffers: Vec<Named>,
}
// ANCHOR_END: weights

impl Weights {
    // ANCHOR: methods
    /// Returns all tensors: parameters, then buffers.
    pub fn iter(&self) -> impl Iterator<Item = &Named> {
        self.parameters.iter().chain(&self.buffers)
    }

    /// Returns the size of each parameter in bytes. Its gradient has the same size.
    pub fn parameter_sizes(&self) -> Vec<usize> {
        self.parameters.iter().map(Named::bytes).collect()
    }

    /// Returns the size of all parameters together in bytes.
    pub fn parameter_bytes(&self) -> usize {
        self.parameter_sizes().into_iter().sum()
    }

    /// Returns the tensor with this name.
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        self.iter().find(|named| named.name == name).map(|named| &named.tensor)
    }

    /// Copies all values to CPU memory.
    pub fn snapshot(&self) -> Result<Snapshot> {
        let copy = |Named { name, tensor }: &Named| {
            // In CPU memory `to_device` returns the same memory.
            let copy = tensor.detach().force_contiguous()?;
            Ok((name.clone(), copy.to_device(&Device::Cpu)?))
        };
        self.iter().map(copy).collect()
    }

    /// Overwrites all values with those of another replica of the same network. Fails when their structures differ.
    pub fn copy_from(&self, other: &Self) -> Result<()> {
        let [mine, theirs] = [self, other].map(|weights| weights.iter().count());
        if mine != theirs {
            bail!("one replica has {mine} tensors, the other {theirs}");
        }
        for (Named { name, tensor }, theirs) in self.iter().zip(other.iter()) {
            if theirs.name != *name {
                bail!("{name} of one replica is {} of the other", theirs.name);
            }
            overwrite(tensor, &theirs.tensor)?;
        }
        Ok(())
    }

    /// Overwrites the tensors of these names, and no other tensors. Fails when a name is unknown, or a value has another
    /// shape or type: the message names it.
    pub fn set(&self, values: &[(String, Tensor)]) -> Result<()> {
        let kind = |tensor: &Tensor| format!("{:?} {:?}", tensor.dtype(), tensor.dims());
        for (name, value) in values {
            let Some(tensor) = self.get(name) else { bail!("the network has no tensor {name}") };
            if kind(tensor) != kind(value) {
                bail!("{name} is {}, not {}", kind(tensor), kind(value));
            }
            overwrite(tensor, value)?;
        }
        Ok(())
    }
    // ANCHOR_END: methods
}

// ANCHOR: is_buffer
/// Whether a tensor of this name is a buffer, and not a parameter.
pub fn is_buffer(name: &str) -> bool {
    name.rsplit('.').next().unwrap_or(name).starts_with("running_")
}
// ANCHOR_END: is_buffer

#[cfg(test)]
mod tests {
    use candle_core::DType;

    use super::*;

    #[test]
    fn a_replica_of_fewer_tensors_is_not_copied() {
        let named = |name: &str| {
            let tensor = Tensor::zeros(2, DType::F32, &Device::Cpu).unwrap();
            Named { name: name.to_owned(), tensor }
        };
        let weights =
            |parameters| Weights { precision: DType::F32.into(), parameters, buffers: Vec::new() };
        let (two, one) = (weights(vec![named("a"), named("b")]), weights(vec![named("a")]));
        for (mine, theirs) in [(&two, &one), (&one, &two)] {
            let error = mine.copy_from(theirs).unwrap_err().to_string();
            assert!(error.starts_with("one replica has "), "{error}");
        }
    }
}
