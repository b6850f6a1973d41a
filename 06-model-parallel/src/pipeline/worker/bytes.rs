//! How much memory a micro-batch keeps between its forward and its backward pass.

use std::collections::HashMap;

use candle_core::{Storage, Tensor};
use concise_wrapper::weights::Weights;

/// The bytes of all tensors that a result was computed from and that its backward pass holds on to.
///
/// Tensors that share memory count once, and the weights not at all: they are there anyway. What an
/// operation keeps to itself, beside its operands and its result, is not seen.
pub(super) fn kept(result: &Tensor, input: &Tensor, weights: &Weights) -> usize {
    let mut sizes = HashMap::new();
    // Apart from the input, variables are what the weights' gradients hang on, a number each.
    let computed = result.sorted_nodes().into_iter().filter(|tensor| !tensor.is_variable());
    for tensor in computed.chain([input]) {
        let bytes = tensor.elem_count() * tensor.dtype().size_in_bytes();
        let size = sizes.entry(place(tensor)).or_insert(bytes);
        *size = bytes.max(*size);
    }
    for parameter in &weights.parameters {
        sizes.remove(&place(&parameter.tensor));
    }
    sizes.values().sum()
}

/// Where a tensor's memory is: equal for those that share it.
fn place(tensor: &Tensor) -> *const Storage {
    let (storage, _) = tensor.storage_and_layout();
    &raw const *storage
}
