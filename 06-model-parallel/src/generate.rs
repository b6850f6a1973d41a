//! A trained GPT in words: the bits that it needs for a byte, and a text that it writes.

use candle_core::{DType, Device, Module as _, Result as TensorResult, Tensor};
use concise_wrapper::weights::Snapshot;
use datasets::source::LoadedData;
use datasets::text::{bigram_bits_per_byte, bits_per_byte};
use harness::random;
use harness::report::paragraph;
use ops::backward::no_grad;
use ops::softmax;
use rand::RngExt as _;

use crate::layers::Layers;
use crate::runs::{Outcome, Training};

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

/// Prints the bits per byte on the validation text beside those of a bigram model, and a text that the first run's GPT writes.
pub fn print_text<R>(all: &[Outcome<'_, R>], training: &Training) -> anyhow::Result<()> {
    const START: &str = "The ";
    /// Fewer than four lines of a terminal.
    const BYTES: usize = 220;
    let LoadedData { train, test, .. } = &training.setup.data;
    let losses = all.iter().filter_map(|it| it.trained.records.last()).map(|it| it.test_loss);
    let losses = losses.filter(|loss| loss.is_finite());
    let (least, most) = losses.fold((f64::INFINITY, 0f64), |(a, b), it| (a.min(it), b.max(it)));
    let [least, most] = [least, most].map(|loss| format!("{:.2}", bits_per_byte(loss)));
    let bits = if least == most { least } else { format!("{least} to {most}") };
    let bigram = bigram_bits_per_byte(train.bytes(), test.bytes());
    paragraph(format_args!(
        "\nThe GPT needs {bits} bits for a byte of the validation text. A bigram model, which counts pairs of bytes, needs {bigram:.2}."
    ))?;
    let Outcome { trained, summary, .. } = &all[0];
    let (context, seed) = (training.sample()[0], training.setup.options.seed);
    let choice = (context, 0.7, seed);
    let text = generate(&training.layers, &trained.weights[1], choice, START.as_bytes(), BYTES)?;
    Ok(paragraph(format_args!("A text by {}: {}", summary.run, printable(&text)))?)
}

/// Bytes as text without control characters: spaces are in their places.
fn printable(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).replace(char::is_control, " ")
}
