//! One operation at a time: its inputs, as both sides compute them, and what PyTorch's results say of ours.

use candle_core::Result;
use itertools::iproduct;

use crate::prelude::*;

pub(crate) const INPUT: u64 = 1;
pub(crate) const WEIGHT: u64 = 2;
pub(crate) const BIAS: u64 = 3;
const UPSTREAM: u64 = 9;

/// Types, and by how much a result may differ in them. On a GPU f32 may lose a digit more, to convolutions by way of
/// Winograd's or Fourier's transforms, if cuDNN chooses so; what is no convolution is held to 1e-5 beside the operations.
pub(crate) fn precisions() -> [(DType, f64); 2] {
    [(DType::F64, 1e-12), (DType::F32, if device().is_cuda() { 1e-4 } else { 1e-5 })]
}

/// A case of an operation in one precision.
pub(crate) struct Case<'a> {
    fixture: &'a Fixture,
    pub(crate) name: String,
    pub(crate) dtype: DType,
    tolerance: f64,
}

impl Case<'_> {
    pub(crate) fn variable(&self, shape: &[usize], salt: u64) -> Result<Var> {
        Var::from_tensor(&noise(shape, salt)?.to_dtype(self.dtype)?)
    }

    /// Compares a tensor with PyTorch's of this name.
    pub(crate) fn compare(&self, name: &str, value: &Tensor) -> Result<()> {
        let name = format!("{}/{name}", self.name);
        let error = relative_difference(value, self.fixture.get(&name)?)?;
        assert!(error <= self.tolerance, "{name} in {:?}: {error:.1e}", self.dtype);
        Ok(())
    }

    /// Compares the output of an operation on variables, and the gradients of Σ output · noise.
    pub(crate) fn check(&self, inputs: &[(&str, &Var)], output: &Tensor) -> Result<()> {
        self.check_as("", inputs, output)
    }

    /// The same, with the results of a variant of the case.
    pub(crate) fn check_as(
        &self,
        variant: &str,
        inputs: &[(&str, &Var)],
        output: &Tensor,
    ) -> Result<()> {
        let upstream = noise(output.shape(), UPSTREAM)?.to_dtype(self.dtype)?;
        let gradients = (output * upstream)?.flatten_all()?.sum_all()?.backward()?;
        self.compare(&format!("{variant}output"), output)?;
        for (name, input) in inputs {
            let gradient = gradients.get(input).expect("a gradient");
            self.compare(&format!("{variant}{name}"), gradient)?;
        }
        Ok(())
    }
}

/// Calls `check` for every case of an operation and its N sizes, in both precisions. There must be some.
pub(crate) fn for_each_case<const N: usize>(
    operation: &str,
    at_least: usize,
    check: impl Fn(&Case<'_>, [usize; N]) -> Result<()>,
) {
    let fixture = &Fixture::load().unwrap();
    let cases = fixture.cases(operation);
    assert!(cases.len() >= at_least, "{} cases of {operation}", cases.len());
    for (case, (dtype, tolerance)) in iproduct!(cases, precisions()) {
        let name = format!("{operation}/{case}");
        let geometry = fixture.geometry(&name).unwrap().try_into().unwrap();
        let case = Case { fixture, name, dtype, tolerance };
        check(&case, geometry).unwrap_or_else(|error| panic!("{}: {error}", case.name));
    }
}
