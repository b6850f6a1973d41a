//! Named parameters of one replica of a model.

use std::ops::Deref;

use candle_core::{Device, Error, Result, Tensor, Var, bail};
use itertools::Itertools as _;
use ops::backward::Gradients;

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

/// The parameters of one replica, in the order in which the model uses them. Every list of gradients has this order.
#[derive(Clone, Debug, Default)]
pub struct Parameters(Vec<Parameter>);

impl Parameters {
    /// Collects parameters. Fails when two parameters have the same name.
    pub fn new(parameters: Vec<Parameter>) -> Result<Self> {
        match parameters.iter().map(|parameter| &parameter.name).duplicates().next() {
            Some(name) => bail!("two parameters are named {name}"),
            None => Ok(Self(parameters)),
        }
    }

    /// Returns the gradient of every parameter, in order, from the result of a backward pass. Fails when one is missing: an
    /// all-reduce that waits for it would hang every other device.
    pub fn gradients(&self, found: &Gradients) -> Result<Vec<Tensor>> {
        let of = |Parameter { name, value }: &Parameter| {
            found.get(value).cloned().ok_or_else(|| Error::Msg(no_gradient(name)))
        };
        self.iter().map(of).collect()
    }

    /// Copies all values to CPU memory. Fails when a copy from the device fails.
    pub fn snapshot(&self) -> Result<Snapshot> {
        let copy = |Parameter { name, value }: &Parameter| {
            // `to_device` from the CPU to the CPU shares memory; `copy` does not.
            let value = value.as_detached_tensor().copy()?;
            Ok((name.clone(), value.to_device(&Device::Cpu)?))
        };
        self.iter().map(copy).collect()
    }
}

impl Deref for Parameters {
    type Target = [Parameter];

    fn deref(&self) -> &[Parameter] {
        &self.0
    }
}
