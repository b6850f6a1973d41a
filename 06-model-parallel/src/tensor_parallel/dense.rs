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

use candle_core::{Module, Result, Tensor};
use ops::flatten;

use super::conjugate::gather;
use super::cut::Cut;
use super::exchange::Exchange;
use super::group::Group;
use super::linear::{linear_by_column, linear_by_row, linear_relu_by_column, linear_relu_by_row};
use super::parts::Parts;
use crate::layers::{ParameterSpec, dense_parameters};

/// Dense layers with relu between them: `[B, …]`, flattened to `[B, widths[0]]`, → `[B, widths[last]]`, the same
/// on every rank.
///
/// Its tensors, put together, are those of [`dense_parameters`]: names, shapes and initial values of
/// [`Layers::dense`](crate::layers::Layers::dense).
pub struct DenseStack {
    layers: Vec<Layer>,
    outputs: usize,
    group: Group,
}

struct Layer {
    weight: Tensor,
    bias: Tensor,
}

impl DenseStack {
    /// This rank's part of a stack.
    ///
    /// # Errors
    ///
    /// Those of [`dense_parameters`]; when a width that is cut is smaller than the number of ranks: the message names the
    /// tensor.
    pub fn new(widths: &[usize], parts: &Parts<'_>) -> Result<Self> {
        let plan = dense_parameters(widths)?;
        let cut = |tensor: &ParameterSpec, axis| {
            let cut = Cut::new(axis, tensor.shape[axis]);
            parts.cut(tensor.shape.as_slice(), &tensor.name, tensor.init, cut)
        };
        let layer = |(number, [weight, bias]): (usize, &[ParameterSpec; 2])| {
            let by_column = is_by_column(number);
            let weight = cut(weight, if by_column { 1 } else { 0 })?;
            let bias = match by_column {
                true => cut(bias, 0)?,
                false => parts.whole(bias.shape.as_slice(), &bias.name, bias.init)?,
            };
            Ok(Layer { weight, bias })
        };
        let layers = plan.iter().enumerate().map(layer).collect::<Result<_>>()?;
        let outputs = widths[widths.len() - 1];
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
        let mut x = flatten(x)?;
        for (number, Layer { weight, bias }) in self.layers.iter().enumerate() {
            let last = number + 1 == self.layers.len();
            x = match (is_by_column(number), last) {
                (true, false) => linear_relu_by_column(&x, weight, bias, &self.group)?,
                (true, true) => {
                    let here = linear_by_column(&x, weight, bias, &self.group)?;
                    gather(&here, Cut::new(1, self.outputs), &self.group)?
                }
                (false, false) => linear_relu_by_row(&x, weight, bias, &self.group)?,
                (false, true) => linear_by_row(&x, weight, bias, &self.group)?,
            };
        }
        Ok(x)
    }
}
