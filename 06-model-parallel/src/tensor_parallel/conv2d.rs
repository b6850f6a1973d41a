//! A convolution on k ranks: cut by output channels, or by input channels.
//!
//! Across channels a convolution is a dense layer: each output channel is a sum over all input channels. So
//! the same two cuts exist, with other names (Dryden et al., SC19):
//!
//! | | a rank holds | it takes | it makes |
//! | --- | --- | --- | --- |
//! | by filters: output channels | `[O/k, C, KH, KW]`, bias `[O/k]` | all C channels | its O/k channels |
//! | by channels: input channels | `[O, C/k, KH, KW]`, bias `[O]` | its C/k channels | a term of all O channels |
//!
//! What follows, relu and pooling, works on each channel for itself. By filters it stays with the rank, in one
//! pass with the convolution; by channels it has to wait for the sum. Between two convolutions there is a
//! choice: [gather](super::conjugate::gather) the channels and cut the second by filters too, or cut the second
//! by channels and send nothing in between. Which sends less depends on the shapes:
//! [`exchange`](super::exchange) counts.

use candle_core::{Result, Tensor};
use ops::{add_bias_relu, avg_pool2d, conv2d, conv2d_relu_pool};

use super::conjugate::{copy, reduce};
use super::group::Group;

/// A convolution by filters, at stride 1 without padding, then relu, then average pooling over `pool`×`pool`
/// windows: `[B, C, H, W]`, `[O/k, C, KH, KW]`, `[O/k]` → `[B, O/k, H', W']`, this rank's channels.
///
/// # Errors
///
/// When the shapes do not fit; backward, when another rank stops or stalls.
pub fn conv2d_relu_pool_by_filter(
    x: &Tensor,
    weight: &Tensor,
    bias: &Tensor,
    pool: usize,
    group: &Group,
) -> Result<Tensor> {
    conv2d_relu_pool(&copy(x, group)?, weight, bias, pool)
}

/// A convolution by channels, at stride 1 without padding, then relu, then average pooling over `pool`×`pool`
/// windows: `[B, C/k, H, W]`, `[O, C/k, KH, KW]`, `[O]` → `[B, O, H', W']`, the same on every rank.
///
/// As with rows of a dense layer, every rank adds the whole bias once, after the sum.
///
/// # Errors
///
/// When the shapes do not fit, or another rank stops or stalls.
pub fn conv2d_relu_pool_by_channel(
    x: &Tensor,
    weight: &Tensor,
    bias: &Tensor,
    pool: usize,
    group: &Group,
) -> Result<Tensor> {
    let term = conv2d(x, weight, None, 1, 0)?;
    avg_pool2d(&add_bias_relu(&reduce(&term, group)?, bias)?, pool, pool)
}
