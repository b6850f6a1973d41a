//! Named parameters of one replica of a model.

use std::ops::Deref;

use candle_core::{Result, Tensor, Var, bail};

use crate::backward::Gradients;
use devices::move_view;

/// One trainable tensor and its name.
#[derive(Clone, Debug)]
pub struct Parameter {
    /// The name, unique within its model. The initial value depends on the name.
    pub name: String,
    /// The value. Cloning a `Var` shares it; a replica needs a copy.
    pub value: Var,
}

/// Returns the message that backward has not reached a parameter of this name.
pub fn no_gradient(name: &str) -> String {
    format!(
        "parameter {name} has no gradient: the loss does not depend on it, or only through an operation that has no backward pass"
    )
}

/// A model's values by name, in CPU memory. Training does not change a snapshot.
pub type Snapshot = Vec<(String, Tensor)>;

/// The parameters of one replica, in the order in which the model uses them.
///
/// Every list of gradients in the course is in this order.
#[derive(Clone, Debug, Default)]
pub struct Parameters(Vec<Parameter>);

impl Parameters {
    /// Collects parameters. Fails when two parameters have the same name.
    pub fn new(parameters: Vec<Parameter>) -> Result<Self> {
        for (position, parameter) in parameters.iter().enumerate() {
            if parameters[..position].iter().any(|earlier| earlier.name == parameter.name) {
                bail!("two parameters are named {}", parameter.name);
            }
        }
        Ok(Self(parameters))
    }

    /// Returns the value of the parameter with this name.
    pub fn get(&self, name: &str) -> Option<&Var> {
        self.0.iter().find(|parameter| parameter.name == name).map(|parameter| &parameter.value)
    }

    /// Returns the gradient of every parameter, in order, from the result of a backward pass. Fails
    /// when one is missing: an all-reduce that waits for it would hang every other device.
    pub fn gradients(&self, found: &Gradients) -> Result<Vec<Tensor>> {
        self.iter()
            .map(|Parameter { name, value }| match found.get(value) {
                Some(gradient) => Ok(gradient.clone()),
                None => bail!("{}", no_gradient(name)),
            })
            .collect()
    }

    /// Copies all values to CPU memory. Fails when a copy from the device fails.
    pub fn snapshot(&self) -> Result<Snapshot> {
        self.iter()
            .map(|Parameter { name, value }| {
                // `to_device` from the CPU to the CPU shares memory; `copy` does not.
                let value = value.as_detached_tensor().copy()?;
                Ok((name.clone(), value.to_device(&candle_core::Device::Cpu)?))
            })
            .collect()
    }
}

impl Deref for Parameters {
    type Target = [Parameter];

    fn deref(&self) -> &[Parameter] {
        &self.0
    }
}

impl<'a> IntoIterator for &'a Parameters {
    type Item = &'a Parameter;
    type IntoIter = std::slice::Iter<'a, Parameter>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// Overwrites the elements of `tensor` in place with the elements of `value`.
///
/// `value` has the same shape and type and may be on another device. Tensors that share the memory
/// of `tensor` see the new values. Fails when the tensors share memory.
pub fn overwrite(tensor: &Tensor, value: &Tensor) -> Result<()> {
    let value = move_view(&value.detach(), tensor.device())?.contiguous()?;
    // A scalar cannot be sliced, so both tensors get a new first axis.
    tensor.detach().unsqueeze(0)?.slice_set(&value.unsqueeze(0)?, 0, 0)
}

/// Overwrites tensors in place with values of the same shapes, rounded to the types of the tensors.
///
/// A pair is a tensor and its value, on one device. Fails when the two differ in shape or share memory.
pub fn overwrite_rounded(pairs: &[(&Tensor, &Tensor)]) -> Result<()> {
    if let Some((tensor, value)) =
        pairs.iter().find(|(tensor, value)| tensor.dims() != value.dims())
    {
        bail!("{:?} cannot be overwritten with {:?}", tensor.dims(), value.dims());
    }
    #[cfg(feature = "cuda")]
    if pairs.iter().any(|(tensor, _)| tensor.device().is_cuda())
        && pairs.iter().all(|(_, value)| value.dtype() == candle_core::DType::F32)
    {
        return crate::gpu::update::cast(pairs);
    }
    pairs.iter().try_for_each(|(tensor, value)| overwrite(tensor, &value.to_dtype(tensor.dtype())?))
}
