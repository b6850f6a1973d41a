//! A stack of dense layers on k ranks: by columns, by rows, by columns, …
//!
//! ```text
//! widths [784, 512, 256, 128, 10], two ranks
//!
//! 0   by columns   [B, 784] → [B, 256] here     relu
//! 1   by rows      [B, 256] → [B, 256] sum      relu     the same on both ranks
//! 2   by columns   [B, 256] → [B, 64] here      relu
//! 3   by rows      [B, 64]  → [B, 10] sum                logits, the same on both ranks
//! ```
//!
//! With an odd number of layers the last one is by columns, and its outputs are gathered.

use candle_core::{Module, Result, Tensor, bail};
use candle_nn::init::{Init, ZERO};
use single_gpu::ops::relu;

use super::conjugate::gather;
use super::cut::Cut;
use super::exchange::Exchange;
use super::group::Group;
use super::linear::{linear_by_column, linear_by_row, linear_relu_by_column};
use super::parts::Parts;

/// Dense layers with relu between them: `[B, widths[0]]` → `[B, widths[last]]`, the same on every rank.
///
/// Layer i has the tensors `i.weight` `[widths[i], widths[i + 1]]`, drawn from N(0, 2 / widths\[i\]) (He et
/// al., 2015), and `i.bias`, zeros.
pub struct DenseStack {
    layers: Vec<Layer>,
    outputs: usize,
    group: Group,
}

struct Layer {
    weight: Tensor,
    bias: Tensor,
}

/// The initial weights of a layer with this many inputs.
pub fn init(inputs: usize) -> Init {
    Init::Randn { mean: 0.0, stdev: (2.0 / inputs as f64).sqrt() }
}

impl DenseStack {
    /// This rank's part of a stack.
    ///
    /// # Errors
    ///
    /// When there are fewer than two widths, or one that is cut is smaller than the number of ranks: the
    /// message names the tensor.
    pub fn new(widths: &[usize], parts: &Parts<'_>) -> Result<Self> {
        let [.., _, outputs] = *widths else {
            bail!("a stack of layers has at least two widths, got {widths:?}");
        };
        let layer = |(number, pair): (usize, &[usize])| {
            let (parts, (inputs, outputs)) = (parts.pp(number), (pair[0], pair[1]));
            let (shape, drawn) = ((inputs, outputs), init(inputs));
            let (weight, bias) = if is_by_column(number) {
                (
                    parts.cut(shape, "weight", drawn, Cut::new(1, outputs))?,
                    parts.cut(outputs, "bias", ZERO, Cut::new(0, outputs))?,
                )
            } else {
                (
                    parts.cut(shape, "weight", drawn, Cut::new(0, inputs))?,
                    parts.whole(outputs, "bias", ZERO)?,
                )
            };
            Ok(Layer { weight, bias })
        };
        let layers = widths.windows(2).enumerate().map(layer).collect::<Result<_>>()?;
        Ok(Self { layers, outputs, group: parts.group().clone() })
    }

    /// What a training step on a batch exchanges, forward and backward.
    pub fn exchanges(widths: &[usize], batch: usize) -> Vec<Exchange> {
        let layers = widths.len().saturating_sub(1);
        let mut exchanges = Vec::new();
        for (number, pair) in widths.windows(2).enumerate() {
            let (inputs, outputs, last) = (pair[0], pair[1], number + 1 == layers);
            if !is_by_column(number) {
                exchanges.push(Exchange::AllReduce { elements: batch * outputs });
                continue;
            }
            // Nobody wants a gradient of the data.
            if number > 0 {
                exchanges.push(Exchange::AllReduce { elements: batch * inputs });
            }
            if last {
                exchanges.push(Exchange::AllGather { rows: batch, cut: Cut::new(1, outputs) });
            }
        }
        exchanges
    }
}

fn is_by_column(number: usize) -> bool {
    number.is_multiple_of(2)
}

impl Module for DenseStack {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let mut x = x.clone();
        for (number, Layer { weight, bias }) in self.layers.iter().enumerate() {
            let last = number + 1 == self.layers.len();
            x = match (is_by_column(number), last) {
                (true, false) => linear_relu_by_column(&x, weight, bias, &self.group)?,
                (true, true) => {
                    let here = linear_by_column(&x, weight, bias, &self.group)?;
                    gather(&here, Cut::new(1, self.outputs), &self.group)?
                }
                (false, false) => relu(&linear_by_row(&x, weight, bias, &self.group)?)?,
                (false, true) => linear_by_row(&x, weight, bias, &self.group)?,
            };
        }
        Ok(x)
    }
}
