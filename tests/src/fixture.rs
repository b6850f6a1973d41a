//! The committed PyTorch results: `fixtures/pytorch.safetensors`, made by `fixtures/make_fixtures.py`,
//! `fixtures/resnet18.safetensors`, made by `fixtures/make_resnet18.py`, and `fixtures/gpt.safetensors`, made by
//! `fixtures/make_gpt.py`.

use std::collections::{BTreeMap, BTreeSet};

use candle_core::{Device, Result, Tensor, bail};

const OPERATIONS: &[u8] = include_bytes!("../fixtures/pytorch.safetensors");
const GPT: &[u8] = include_bytes!("../fixtures/gpt.safetensors");
const RESNET18: &[u8] = include_bytes!("../fixtures/resnet18.safetensors");

/// All tensors of the fixture, by name.
#[derive(Debug)]
pub struct Fixture {
    tensors: BTreeMap<String, Tensor>,
}

impl Fixture {
    /// The operations one by one, and LeNet.
    pub fn load() -> Result<Self> {
        Self::read(OPERATIONS)
    }

    /// A small GPT in training.
    pub fn gpt() -> Result<Self> {
        Self::read(GPT)
    }

    /// A narrow ResNet-18 in training.
    pub fn resnet18() -> Result<Self> {
        Self::read(RESNET18)
    }

    fn read(bytes: &[u8]) -> Result<Self> {
        let tensors = candle_core::safetensors::load_buffer(bytes, &Device::Cpu)?;
        Ok(Self { tensors: tensors.into_iter().collect() })
    }

    /// The cases of an operation: the middle part of the names `operation/case/tensor`.
    pub fn cases(&self, operation: &str) -> BTreeSet<&str> {
        let prefix = |name: &'_ str| name.split('/').next() == Some(operation);
        self.tensors
            .keys()
            .filter(|name| prefix(name))
            .filter_map(|n| n.split('/').nth(1))
            .collect()
    }

    /// A tensor by its full name.
    pub fn get(&self, name: &str) -> Result<&Tensor> {
        match self.tensors.get(name) {
            Some(tensor) => Ok(tensor),
            None => bail!("the fixture has no tensor {name}"),
        }
    }

    /// The whole numbers that say what a case is.
    pub fn geometry(&self, case: &str) -> Result<Vec<usize>> {
        let numbers = self.get(&format!("{case}/geometry"))?.to_vec1::<i64>()?;
        Ok(numbers.into_iter().map(|number| number as usize).collect())
    }
}
