//! A convolution on k ranks: cut by output channels, or by input channels.
//!
//! | | a rank holds | input | result |
//! | --- | --- | --- | --- |
//! | by filters: output channels | `[O/k, C, KH, KW]`, bias `[O/k]` | all C channels | its O/k channels |
//! | by channels: input channels | `[O, C/k, KH, KW]`, bias `[O]` | its C/k channels | a term of all O channels |
//!
//! Relu and pooling work on each channel for itself, so by channels they come after the sum.

use candle_core::{Result, Tensor};
use ops::{add_bias_relu, avg_pool2d, conv2d, conv2d_relu_pool};

use super::group::Group;
use super::mappings::{copy, reduce};

// ANCHOR: convolution
/// A convolution by filters, at stride 1 without padding, then relu, then average pooling over `pool`×`pool` windows:
/// `[B, C, H, W]`, `[O/k, C, KH, KW]`, `[O/k]` → `[B, O/k, H', W']`, this rank's channels. Fails when the shapes do not
/// fit; backward, fails when another rank stops or stalls.
pub fn conv2d_relu_pool_by_filter(
    x: &Tensor,
    weight: &Tensor,
    bias: &Tensor,
    pool: usize,
    group: &Group,
) -> Result<Tensor> {
    conv2d_relu_pool(&copy(x, group)?, weight, bias, pool)
}

/// A convolution by channels, at stride 1 without padding, then relu, then average pooling over `pool`×`pool` windows:
/// `[B, C/k, H, W]`, `[O, C/k, KH, KW]`, `[O]` → `[B, O, H', W']`, the same on every rank.
///
/// As in a dense layer by rows, every rank adds the whole bias once, after the sum. Fails when the shapes do not fit,
/// or another rank stops or stalls.
pub fn conv2d_relu_pool_by_channel(
    x: &Tensor,
    weight: &Tensor,
    bias: &Tensor,
    pool: usize,
    group: &Group,
) -> Result<Tensor> {
    if group.ranks() == 1 {
        return conv2d_relu_pool(x, weight, bias, pool);
    }
    let term = conv2d(x, weight, None, 1, 0)?;
    avg_pool2d(&add_bias_relu(&reduce(&term, group)?, bias)?, pool, pool)
}
// ANCHOR_END: convolution
