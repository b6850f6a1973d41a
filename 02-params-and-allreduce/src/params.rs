//! Parameters on another device.

// ANCHOR: get_params
use candle_core::{Device, Result, Var};
use devices::move_view;
use model_state::parameters::{Parameter, Parameters};

/// Copies parameters to a device: new variables with the same names and values.
///
/// A copy has its own memory, even on the same device: an update of the copy leaves the original alone. Fails when a copy
/// fails.
pub fn get_params(parameters: &Parameters, device: &Device) -> Result<Parameters> {
    let copies = parameters.iter().map(|Parameter { name, value }| {
        let value = move_view(&value.as_detached_tensor(), device)?;
        // `from_tensor` copies a plain tensor. Given a variable, it would return the same variable.
        Ok(Parameter { name: name.clone(), value: Var::from_tensor(&value)? })
    });
    Parameters::new(copies.collect::<Result<_>>()?)
}
// ANCHOR_END: get_params

#[cfg(test)]
mod tests {
    use candle_core::{DType, Tensor};
    use single_gpu::lenet::Lenet;

    use super::*;

    #[test]
    fn a_copy_has_the_same_values_and_its_own_memory() {
        let original = Lenet::new(1, DType::F32, &Device::Cpu).unwrap();
        let original = original.parameters();
        let copy = get_params(original, &Device::Cpu).unwrap();
        assert_eq!(copy.len(), original.len());
        for (ours, theirs) in copy.iter().zip(original.iter()) {
            assert_eq!(ours.name, theirs.name);
            let values = |p: &Parameter| p.value.flatten_all().unwrap().to_vec1::<f32>().unwrap();
            let before = values(theirs);
            assert_eq!(values(ours), before);
            let ones = Tensor::ones(ours.value.shape(), DType::F32, &Device::Cpu).unwrap();
            ours.value.set(&ones).unwrap();
            assert_eq!(values(theirs), before, "{}: the original changed with its copy", ours.name);
        }
    }
}
