//! The convolution of candle, for a GPU without cuDNN.

use candle_core::{Result, Tensor, bail};

/// Computes [`conv2d`](fn@super::conv2d), for sizes that were checked.
///
/// # Errors
///
/// When the last patches leave m rows and n columns of the padded input uncovered, and m ≠ n.
pub(super) fn composed(
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    stride: usize,
    padding: usize,
) -> Result<Tensor> {
    // candle's backward pass uses the number of uncovered rows for the columns too.
    let beyond = |axis| Ok::<_, candle_core::Error>(x.dim(axis)? + 2 * padding - weight.dim(axis)?);
    let (rows, columns) = (beyond(2)? % stride, beyond(3)? % stride);
    if rows != columns {
        bail!(
            "conv2d: on this device stride {stride} must leave as many rows over as columns, not {rows} and \
             {columns}"
        );
    }
    let y = x.conv2d(weight, padding, stride, 1, 1)?;
    match bias {
        Some(bias) => y.broadcast_add(&bias.reshape((1, bias.dim(0)?, 1, 1))?),
        None => Ok(y),
    }
}
