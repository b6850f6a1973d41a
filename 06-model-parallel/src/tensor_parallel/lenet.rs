//! LeNet on k ranks, in two ways.
//!
//! The first convolution is by filters: a rank makes some of the 20 channels. The second needs all of them, or
//! a sum over them. For k ranks and B images:
//!
//! ```text
//!               Channels::Gathered                        Channels::Summed
//! images        [B, 1, 28, 28]                            [B, 1, 28, 28]
//! W1 b1         by filters   [B, 20/k, 13, 13]            by filters   [B, 20/k, 13, 13]
//!               gather       [B, 20, 13, 13]
//! W2 b2         by filters   [B, 50/k, 4, 4]              by channels  [B, 50, 9, 9] sum → [B, 50, 4, 4]
//! flatten       [B, 800/k]                                [B, 800]
//! W3 b3         by rows      [B, 128] sum                 by columns   [B, 128/k]
//! W4 b4         by columns   [B, 10/k]                    by rows      [B, 10] sum
//!               gather       [B, 10]
//! ```
//!
//! Both are the one-device LeNet. On the left all weights are cut but b3; the rows of W3 go with the channels
//! that they belong to, 16 to a channel. On the right all are cut but b2 and b4.

use candle_core::{Module, Result, Tensor};
use concise_wrapper::lenet::init;
use datasets::CLASSES;
use ops::flatten;
use single_gpu::lenet::SHAPES;

use super::conjugate::gather;
use super::conv2d::{conv2d_relu_pool_by_channel, conv2d_relu_pool_by_filter};
use super::cut::Cut;
use super::exchange::Exchange;
use super::group::Group;
use super::linear::{linear_by_column, linear_by_row, linear_relu_by_column, linear_relu_by_row};
use super::parts::Parts;

/// Channels of the first convolution, and pixels of each after pooling.
const FIRST: (usize, usize) = (20, 13 * 13);
/// Channels of the second convolution, its pixels before pooling, and after.
const SECOND: (usize, usize, usize) = (50, 9 * 9, 4 * 4);
/// Outputs of the first dense layer.
const HIDDEN: usize = 128;

/// How the second convolution gets at channels that other ranks have made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channels {
    /// All ranks get all channels, and each makes some of the next ones: at most 10 ranks.
    Gathered,
    /// Each rank makes a term of all next channels, and the terms are summed: at most 20 ranks.
    Summed,
}

/// LeNet: `[B, 1, 28, 28]` → `[B, 10]`, the same on every rank; names, whole shapes, initial weights and
/// results of stage 1's.
pub struct LeNet {
    values: [Tensor; SHAPES.len()],
    channels: Channels,
    group: Group,
}

/// The axis along which each tensor is cut, in their order; `None` for one that all ranks hold.
fn cuts(channels: Channels) -> [Option<Cut>; SHAPES.len()] {
    let at = |axis, features| Some(Cut::new(axis, features));
    let (first, second) = (FIRST.0, SECOND.0);
    let of_flattened = Some(Cut::in_blocks(0, second, SECOND.2));
    let (w1, b1) = (at(0, first), at(0, first));
    match channels {
        Channels::Gathered => {
            let (w2, b2) = (at(0, second), at(0, second));
            [w1, b1, w2, b2, of_flattened, None, at(1, CLASSES), at(0, CLASSES)]
        }
        Channels::Summed => {
            let (w3, b3) = (at(1, HIDDEN), at(0, HIDDEN));
            [w1, b1, at(1, first), None, w3, b3, at(0, HIDDEN), None]
        }
    }
}

impl LeNet {
    /// This rank's part of the network.
    ///
    /// # Errors
    ///
    /// When there are more ranks than can have a part of every layer.
    pub fn new(channels: Channels, parts: &Parts<'_>) -> Result<Self> {
        let cuts = cuts(channels);
        let value = |position: usize| {
            let (name, shape) = SHAPES[position];
            match cuts[position] {
                Some(cut) => parts.cut(shape, name, init(name), cut),
                None => parts.whole(shape, name, init(name)),
            }
        };
        let values = [
            value(0)?,
            value(1)?,
            value(2)?,
            value(3)?,
            value(4)?,
            value(5)?,
            value(6)?,
            value(7)?,
        ];
        Ok(Self { values, channels, group: parts.group().clone() })
    }

    /// What a training step on a batch exchanges, forward and backward.
    pub fn exchanges(channels: Channels, batch: usize) -> Vec<Exchange> {
        let all_reduce = |features| Exchange::AllReduce { elements: batch * features };
        match channels {
            Channels::Gathered => vec![
                Exchange::AllGather { rows: batch * FIRST.1, cut: Cut::new(1, FIRST.0) },
                all_reduce(HIDDEN),
                Exchange::AllGather { rows: batch, cut: Cut::new(1, CLASSES) },
                // Backward: what goes into W4, and into W2.
                all_reduce(HIDDEN),
                all_reduce(FIRST.0 * FIRST.1),
            ],
            Channels::Summed => vec![
                all_reduce(SECOND.0 * SECOND.1),
                all_reduce(CLASSES),
                // Backward: what goes into W3.
                all_reduce(SECOND.0 * SECOND.2),
            ],
        }
    }
}

impl Module for LeNet {
    fn forward(&self, images: &Tensor) -> Result<Tensor> {
        let ([w1, b1, w2, b2, w3, b3, w4, b4], group) = (&self.values, &self.group);
        let x = conv2d_relu_pool_by_filter(images, w1, b1, 2, group)?;
        match self.channels {
            Channels::Gathered => {
                let x = gather(&x, Cut::new(1, FIRST.0), group)?;
                let x = conv2d_relu_pool_by_filter(&x, w2, b2, 2, group)?;
                let x = linear_relu_by_row(&flatten(&x)?, w3, b3, group)?;
                gather(&linear_by_column(&x, w4, b4, group)?, Cut::new(1, CLASSES), group)
            }
            Channels::Summed => {
                let x = conv2d_relu_pool_by_channel(&x, w2, b2, 2, group)?;
                let x = linear_relu_by_column(&flatten(&x)?, w3, b3, group)?;
                linear_by_row(&x, w4, b4, group)
            }
        }
    }
}
