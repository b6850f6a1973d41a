//! A text that a trained GPT writes.

use candle_core::{DType, Device, Module as _, Result as TensorResult, Tensor};
use concise_wrapper::weights::Snapshot;
use harness::random;
use ops::backward::no_grad;
use ops::softmax;
use rand::RngExt as _;

use crate::layers::Layers;

// ANCHOR: generate
/// Continues a text to so many bytes. The GPT reads at most the last `context` bytes, and the next byte is drawn by its
/// probabilities. A temperature below 1 makes likely bytes likelier. The seed alone decides the numbers that are drawn.
pub fn generate(
    layers: &Layers,
    weights: &Snapshot,
    (context, temperature, seed): (usize, f64, u64),
    text: &[u8],
    bytes: usize,
) -> TensorResult<Vec<u8>> {
    let (device, dtype) = (&Device::Cpu, weights[0].1.dtype());
    let network = layers.build(0..layers.len(), seed, dtype, device)?;
    network.weights().set(weights)?;
    let (mut text, mut random) = (text.to_vec(), random::generator(seed, "generate"));
    while text.len() < bytes {
        let read = &text[text.len().saturating_sub(context)..];
        let tokens = read.iter().map(|&byte| u32::from(byte)).collect();
        let tokens = Tensor::from_vec(tokens, (1, read.len()), device)?;
        let logits = no_grad(|| network.forward(&tokens))?.get(read.len() - 1)?;
        let shares = softmax(&(logits.to_dtype(DType::F64)? / temperature)?)?.to_vec1::<f64>()?;
        let mut rest: f64 = random.random_range(0.0..1.0);
        let drawn = shares.iter().position(|share| {
            rest -= share;
            rest < 0.0
        });
        text.push(drawn.unwrap_or(shares.len() - 1) as u8);
    }
    Ok(text)
}
// ANCHOR_END: generate
