//! The named tensors of a network: made while it is built, then walked by everyone else.
//!
//! A network asks for its tensors by name, through candle's [`VarBuilder`]: so layers of `candle_nn` can be
//! used, but for those whose gradients are wrong (the book's chapter 5 has a list). What is behind that builder
//! here keeps a list of what was asked for, in order. The wrapper walks it to copy a replica, the optimiser to
//! update, a checkpoint to save.
//!
//! Two kinds of tensors are told apart by their names, as `candle_nn`'s and PyTorch's are. *Parameters*
//! have gradients. *Buffers* (`running_mean`, `running_var`) are changed by the forward pass, and never by
//! the optimiser.
//!
//! A parameter that is asked for in bf16 is kept in f32, and what the layer gets is a rounded copy:
//! [`precision`](crate::precision) says why. Buffers are f32 in either case.

use std::sync::{Arc, Mutex, MutexGuard};

use candle_core::{DType, Device, Result, Shape, Tensor, Var, bail};
use candle_nn::VarBuilder;
use candle_nn::init::Init;
use candle_nn::var_builder::SimpleBackend;
use devices::move_view;
use harness::lock::locked;
pub use ops::parameters::Snapshot;
use ops::parameters::overwrite;

use crate::gradient_hook::{GradientHook, with_gradient_hook};
use crate::precision::{Copies, Precision};

/// A tensor and its name, such as `layer1.0.conv1.weight`.
#[derive(Clone, Debug)]
pub struct Named {
    /// Unique within its network. The initial value depends on it.
    pub name: String,
    /// The tensor; clones share its memory.
    pub tensor: Tensor,
}

impl Named {
    /// How much memory the tensor takes.
    pub fn bytes(&self) -> usize {
        self.tensor.elem_count() * self.tensor.dtype().size_in_bytes()
    }
}

/// The tensors of one network, each kind in the order in which the network asked for them.
#[derive(Clone, Debug, Default)]
pub struct Weights {
    /// What gradients change.
    pub parameters: Vec<Named>,
    /// What the forward pass changes.
    pub buffers: Vec<Named>,
}

impl Weights {
    /// All tensors: parameters, then buffers.
    pub fn iter(&self) -> impl Iterator<Item = &Named> {
        self.parameters.iter().chain(&self.buffers)
    }

    /// How much memory each parameter takes; its gradient takes as much.
    pub fn parameter_sizes(&self) -> Vec<usize> {
        self.parameters.iter().map(Named::bytes).collect()
    }

    /// How much memory the parameters take together; their gradients take as much.
    pub fn parameter_bytes(&self) -> usize {
        self.parameter_sizes().into_iter().sum()
    }

    /// The tensor with this name.
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        self.iter().find(|named| named.name == name).map(|named| &named.tensor)
    }

    /// Copies of all values.
    ///
    /// # Errors
    ///
    /// When a copy from the device fails.
    pub fn snapshot(&self) -> Result<Snapshot> {
        self.iter()
            .map(|Named { name, tensor }| {
                // `to_device` from the CPU to the CPU shares memory; a copy does not.
                let copy = tensor.detach().force_contiguous()?;
                Ok((name.clone(), copy.to_device(&Device::Cpu)?))
            })
            .collect()
    }

    /// Overwrites all values with those of another replica of the same network.
    ///
    /// # Errors
    ///
    /// When the two are not of the same structure.
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

    /// Writes values into the tensors of these names, and leaves all others as they are.
    ///
    /// # Errors
    ///
    /// When a name is unknown, or a value has another shape or type: the message names it.
    pub fn set(&self, values: &[(String, Tensor)]) -> Result<()> {
        for (name, value) in values {
            let Some(tensor) = self.get(name) else { bail!("the network has no tensor {name}") };
            if tensor.shape() != value.shape() || tensor.dtype() != value.dtype() {
                bail!(
                    "{name} is {:?} {:?}, not {:?} {:?}",
                    tensor.dtype(),
                    tensor.dims(),
                    value.dtype(),
                    value.dims()
                );
            }
            overwrite(tensor, value)?;
        }
        Ok(())
    }
}

/// The first value of a tensor, in CPU memory, from its name, shape, distribution and type.
pub(crate) type Values = dyn Fn(&str, &Shape, Init, DType) -> Result<Tensor> + Send + Sync;

/// Where a network's tensors get their values from while it is built.
pub(crate) enum Source {
    /// Made one by one, on the CPU.
    Fresh(Box<Values>),
    /// Copied from a network of the same structure.
    Copy(Weights),
}

/// What is behind the builder: makes tensors as they are asked for, and keeps them.
pub(crate) struct Registry {
    source: Source,
    hook: Arc<dyn GradientHook>,
    made: Arc<Mutex<Made>>,
}

/// What was asked for, so far.
#[derive(Default)]
pub(crate) struct Made {
    pub(crate) weights: Weights,
    pub(crate) copies: Copies,
}

impl Made {
    /// What layers use under this name.
    fn get(&self, name: &str) -> Option<&Tensor> {
        self.copies.get(name).or_else(|| self.weights.get(name))
    }
}

impl Registry {
    /// A builder of tensors for layers that compute in `dtype`, and the list that it fills.
    pub(crate) fn builder(
        source: Source,
        hook: Arc<dyn GradientHook>,
        dtype: DType,
        device: &Device,
    ) -> (VarBuilder<'static>, Arc<Mutex<Made>>) {
        let made = Arc::<Mutex<Made>>::default();
        let registry = Self { source, hook, made: Arc::clone(&made) };
        (VarBuilder::from_backend(Box::new(registry), dtype, device.clone()), made)
    }

    fn made(&self) -> MutexGuard<'_, Made> {
        locked(&self.made)
    }

    fn value(
        &self,
        shape: &Shape,
        name: &str,
        init: Init,
        dtype: DType,
        device: &Device,
    ) -> Result<Tensor> {
        match &self.source {
            Source::Fresh(values) => values(name, shape, init, dtype)?.to_device(device),
            Source::Copy(weights) => match weights.get(name) {
                Some(tensor) if tensor.shape() == shape => {
                    move_view(&tensor.detach().force_contiguous()?, device)
                }
                Some(tensor) => {
                    bail!("{name} is {:?} in one replica, {shape:?} in another", tensor.shape())
                }
                None => bail!("one replica has a tensor {name}, another has none"),
            },
        }
    }
}

impl SimpleBackend for Registry {
    fn get(
        &self,
        shape: Shape,
        name: &str,
        init: Init,
        dtype: DType,
        device: &Device,
    ) -> Result<Tensor> {
        let mut made = self.made();
        if let Some(tensor) = made.get(name) {
            if tensor.shape() != &shape {
                bail!("{name} is asked for as {:?} and as {shape:?}", tensor.shape());
            }
            return Ok(tensor.clone());
        }
        let kept = Precision::from(dtype).weights();
        let value = self.value(&shape, name, init, kept, device)?;
        let Made { weights, copies } = &mut *made;
        let name = name.to_owned();
        if is_buffer(&name) {
            let tensor = Var::from_tensor(&value)?.into_inner();
            weights.buffers.push(Named { name, tensor: tensor.clone() });
            return Ok(tensor);
        }
        let (slot, hook) = (weights.parameters.len(), Arc::clone(&self.hook));
        let used = with_gradient_hook(&value.to_dtype(dtype)?, kept, slot, hook)?;
        let tensor = if kept == dtype { used.clone() } else { value };
        if kept != dtype {
            copies.push(&name, &tensor, &used);
        }
        weights.parameters.push(Named { name, tensor });
        Ok(used)
    }

    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> Result<Tensor> {
        match self.made().get(name) {
            Some(tensor) => Ok(tensor.clone()),
            None => bail!("{name} cannot be made without a shape"),
        }
    }

    fn contains_tensor(&self, _: &str) -> bool {
        // Whatever is asked for is made.
        true
    }
}

/// Whether a tensor of this name is a buffer, and not a parameter.
pub fn is_buffer(name: &str) -> bool {
    let last = name.rsplit('.').next().unwrap_or(name);
    last.starts_with("running_")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Network;
    use crate::lenet::LeNet;

    #[test]
    fn a_replica_of_fewer_tensors_is_not_copied() {
        let network = Network::new(1, DType::F32, &Device::Cpu, |vb, _| LeNet::new(vb)).unwrap();
        let mut fewer = network.weights().clone();
        fewer.parameters.pop();
        for (mine, theirs) in [(network.weights(), &fewer), (&fewer, network.weights())] {
            let told = mine.copy_from(theirs).unwrap_err().to_string();
            assert!(told.starts_with("one replica has "), "{told}");
        }
    }
}
