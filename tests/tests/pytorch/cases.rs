//! One operation at a time: its inputs, as both sides compute them, and what PyTorch's results say of ours.

use candle_core::Result;

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

pub(crate) fn variable(shape: &[usize], salt: u64, dtype: DType) -> Result<Var> {
    Var::from_tensor(&noise(shape, salt)?.to_dtype(dtype)?)
}

/// Runs an operation on variables, differentiates Σ output · noise, and compares with a case.
pub(crate) fn check_case(
    fixture: &Fixture,
    case: &str,
    (dtype, tolerance): (DType, f64),
    inputs: &[(&str, &Var)],
    output: Tensor,
) -> Result<()> {
    let upstream = noise(output.shape(), UPSTREAM)?.to_dtype(dtype)?;
    let gradients = (&output * upstream)?.flatten_all()?.sum_all()?.backward()?;
    let mut found = vec![("output", output)];
    for (name, input) in inputs {
        found.push((name, gradients.get(input).expect("a gradient").clone()));
    }
    for (name, value) in found {
        let expected = fixture.get(&format!("{case}/{name}"))?;
        let error = relative_difference(&value, expected)?;
        assert!(error <= tolerance, "{case}/{name} in {dtype:?}: {error:.1e}");
    }
    Ok(())
}

/// Calls `check` for every case of an operation, in both precisions. There must be some.
pub(crate) fn for_each_case(
    operation: &str,
    at_least: usize,
    check: impl Fn(&Fixture, &str, &[usize], (DType, f64)) -> Result<()>,
) {
    let fixture = Fixture::load().unwrap();
    let cases = fixture.cases(operation);
    assert!(cases.len() >= at_least, "{} cases of {operation}", cases.len());
    for case in cases {
        let case = format!("{operation}/{case}");
        let geometry = fixture.geometry(&case).unwrap();
        for precision in precisions() {
            check(&fixture, &case, &geometry, precision)
                .unwrap_or_else(|error| panic!("{case}: {error}"));
        }
    }
}
