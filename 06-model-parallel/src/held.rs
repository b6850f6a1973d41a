//! The bytes that a computation graph holds.

use std::collections::HashMap;

use candle_core::{Storage, Tensor};
use concise_wrapper::weights::Weights;
use ops::size_in_bytes;

/// The bytes of all tensors that a result was computed from and that its backward pass keeps.
///
/// Tensors that share memory count once, and the weights do not count. Their rounded copies count when layers compute in
/// bf16. An operation may keep more than its operands and its result, which does not count either.
pub fn activations(result: &Tensor, input: &Tensor, weights: &Weights) -> usize {
    // Equal for tensors that share memory.
    let address = |tensor: &Tensor| -> *const Storage { &raw const *tensor.storage_and_layout().0 };
    let mut sizes = HashMap::new();
    // Apart from the input, variables are the anchors of parameters, a number each.
    let computed = result.sorted_nodes().into_iter().filter(|tensor| !tensor.is_variable());
    for tensor in computed.chain([input]) {
        let size = sizes.entry(address(tensor)).or_insert(0);
        *size = size_in_bytes(tensor).max(*size);
    }
    for parameter in &weights.parameters {
        sizes.remove(&address(&parameter.tensor));
    }
    sizes.values().sum()
}
