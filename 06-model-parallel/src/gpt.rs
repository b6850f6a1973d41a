//! A GPT: for each token of a text, it predicts the next one (GPT-2: Radford et al., "Language Models are Unsupervised
//! Multitask Learners", 2019). B texts of T tokens pass through the layers as `[B, T, C]`: C features of each token.
//!
//! ```text
//! embedding    tokens [B, T] → a row of a table for each token + a row for each position
//! attention    x + output(attention(query, key, value of norm(x)))      a token reads the tokens up to itself
//! MLP          x + down(gelu(up(norm(x))))                              each token by itself
//! head         norm(x) → logits [B · T, vocabulary]
//! ```
//!
//! In a group, each rank has some of the heads, of the MLP's hidden features and of the tokens of the vocabulary. Each f is
//! an all-reduce backward, and each g is one forward:
//!
//! ```text
//! tokens → rows of own tokens, zeros for other tokens → g → + positions
//!     x → norm → f → query, key, value by columns → own heads → output by rows → g → + bias → + x
//!     x → norm → f → up by columns → gelu → down by rows → g → + bias → + x
//! x → norm → f → head by columns → logits of own tokens
//! ```
//!
//! Norms, positions and the biases after g are whole on every rank. Their gradients are equal on all ranks, and complete,
//! because f adds the terms of the ranks up.

use std::sync::Arc;

use candle_core::{Module, Result, Tensor, bail};
use candle_nn::init::{Init, ONE, ZERO};
use ops::{
    add, causal_attention, cross_entropy_of_part, embedding, embedding_of_part, gelu_tanh,
    layer_norm, linear, loss_and_correct_of_parts, reshape, row_statistics,
};
use params_and_allreduce::communicator::SharedCommunicator;
use split_batch::shard_range;

use crate::layers::{Builder, Layers};
use crate::tensor_parallel::{by_column, by_row, join};

// ANCHOR: gpt
/// The sizes of a GPT: tokens of the vocabulary, the most tokens of a text, features of a token, heads, and blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the line above explains the fields")]
pub struct Gpt {
    pub vocabulary: usize,
    pub context: usize,
    pub width: usize,
    pub heads: usize,
    pub blocks: usize,
}

impl Default for Gpt {
    /// Reads bytes.
    fn default() -> Self {
        Self { vocabulary: 256, context: 64, width: 128, heads: 4, blocks: 4 }
    }
}

impl Layers {
    /// A GPT: tokens `[B, T]` (u32) → logits `[B · T, vocabulary]`, or this rank's part of the vocabulary. Its layers are the
    /// embedding, an attention and an MLP for each block, and the head.
    ///
    /// Fails when a size is 0 or the heads do not divide the width.
    pub fn gpt(gpt: &Gpt) -> Result<Self> {
        let gpt @ Gpt { vocabulary, context, width, heads, blocks } = *gpt;
        if [vocabulary, context, width, heads, blocks].contains(&0) || !width.is_multiple_of(heads)
        {
            bail!("a GPT has sizes from 1, and its heads divide its width; got {gpt:?}");
        }
        let name = format!("GPT of {blocks} blocks, width {width}, {heads} heads");
        let first = Self::named(name).of_tokens().then(move |builder| gpt.embedding(builder));
        let blocks = (0..blocks).fold(first, |layers, block| {
            let attention = layers.then(move |builder| gpt.attention(builder, block));
            attention.then(move |builder| gpt.mlp(builder, block))
        });
        Ok(blocks.then(move |builder| gpt.head(builder)))
    }
}
// ANCHOR_END: gpt

// ANCHOR: layers
impl Gpt {
    fn embedding(self, builder: &Builder<'_>) -> Result<impl Module + Send + Sync + use<>> {
        let Self { vocabulary, context, width, .. } = self;
        let own = shard_range(vocabulary, builder.group.world_size(), builder.group.rank());
        let table = builder.get("embedding.weight", &[vocabulary, width], NORMAL, Some(0))?;
        let positions = builder.get("positions.weight", &[context, width], OF_POSITIONS, None)?;
        let group = Arc::clone(builder.group);
        Ok(move |tokens: &Tensor| {
            let (_, length) = tokens.dims2()?;
            if length > context {
                bail!("a text of {length} tokens is longer than the context, {context} tokens");
            }
            let places = Tensor::arange(0, length as u32, tokens.device())?;
            let rows = |tokens: &_| embedding_of_part(tokens, &table, own.clone(), vocabulary);
            by_row(tokens, &group, rows, &embedding(&places, &positions)?)
        })
    }

    /// The key has no bias: it would add the same number to all scores of a query, which softmax ignores. So the true gradient
    /// of this bias is 0, and Adam would make steps of full length from the rounding errors.
    fn attention(
        self,
        builder: &Builder<'_>,
        block: usize,
    ) -> Result<impl Module + Send + Sync + use<>> {
        let (square, heads) = ([self.width; 2], builder.share("heads", self.heads)?);
        let name = |part: &str| format!("block{block}.attention.{part}");
        let norm = norm(builder, &name("norm"), self.width)?;
        let query = columns(builder, &name("query"), square, true)?;
        let key = columns(builder, &name("key"), square, false)?;
        let value = columns(builder, &name("value"), square, true)?;
        let output = rows(builder, &name("output"), square, self.of_residual())?;
        let group = Arc::clone(builder.group);
        Ok(move |x: &Tensor| {
            let read = by_column(&norm(x)?, &group, |x| {
                causal_attention(&query(x)?, &key(x)?, &value(x)?, heads)
            })?;
            add(x, &output(&read)?)
        })
    }

    fn mlp(self, builder: &Builder<'_>, block: usize) -> Result<impl Module + Send + Sync + use<>> {
        let (width, hidden) = (self.width, 4 * self.width);
        let name = |part: &str| format!("block{block}.mlp.{part}");
        let norm = norm(builder, &name("norm"), width)?;
        let up = columns(builder, &name("up"), [width, hidden], true)?;
        let down = rows(builder, &name("down"), [hidden, width], self.of_residual())?;
        let group = Arc::clone(builder.group);
        Ok(move |x: &Tensor| {
            let hidden = by_column(&norm(x)?, &group, |x| gelu_tanh(&up(x)?))?;
            add(x, &down(&hidden)?)
        })
    }

    fn head(self, builder: &Builder<'_>) -> Result<impl Module + Send + Sync + use<>> {
        builder.share("tokens of the vocabulary", self.vocabulary)?;
        let norm = norm(builder, "norm", self.width)?;
        let head = columns(builder, "head", [self.width, self.vocabulary], false)?;
        let group = Arc::clone(builder.group);
        Ok(move |x: &Tensor| {
            let rows = reshape(&norm(x)?, (x.elem_count() / self.width, self.width))?;
            by_column(&rows, &group, &head)
        })
    }

    /// Of the weights whose output is added to x, twice in a block: the variance of the sum does not grow with the blocks.
    fn of_residual(self) -> Init {
        Init::Randn { mean: 0.0, stdev: 0.02 / (2.0 * self.blocks as f64).sqrt() }
    }
}
// ANCHOR_END: layers

// ANCHOR: loss
/// The cross-entropy, summed over the tokens, and the sums of loss and correct answers, from each rank's part of the logits,
/// `[N, vocabulary / ranks]`, and N labels. No rank holds all logits: four numbers of each row travel.
pub fn loss_of_parts(
    logits: &Tensor,
    labels: &Tensor,
    group: &SharedCommunicator,
) -> Result<(Tensor, Tensor)> {
    let first = group.rank() * logits.dim(1)?;
    let mine = row_statistics(&logits.detach(), labels, first)?.unsqueeze(0)?;
    let all = join(&mine, 0, group.world_size(), group)?;
    let loss = cross_entropy_of_part(logits, labels, first, &all)?;
    Ok((loss.clone(), loss_and_correct_of_parts(&loss, &all, labels)?))
}
// ANCHOR_END: loss

// ANCHOR: parts
/// GPT-2's initial weights, and its positions.
const NORMAL: Init = Init::Randn { mean: 0.0, stdev: 0.02 };
const OF_POSITIONS: Init = Init::Randn { mean: 0.0, stdev: 0.01 };

/// A layer norm, whole on every rank.
fn norm(
    builder: &Builder<'_>,
    name: &str,
    width: usize,
) -> Result<impl Fn(&Tensor) -> Result<Tensor> + Send + Sync + use<>> {
    let weight = builder.get(&format!("{name}.weight"), &[width], ONE, None)?;
    let bias = builder.get(&format!("{name}.bias"), &[width], ZERO, None)?;
    Ok(move |x: &Tensor| layer_norm(x, &weight, &bias, 1e-5))
}

/// This rank's columns of a product, for the part of a layer [by columns](by_column), with a bias or without one.
fn columns(
    builder: &Builder<'_>,
    name: &str,
    shape: [usize; 2],
    with_bias: bool,
) -> Result<impl Fn(&Tensor) -> Result<Tensor> + Send + Sync + use<>> {
    let weight = builder.get(&format!("{name}.weight"), &shape, NORMAL, Some(1))?;
    let bias = match with_bias {
        true => builder.get(&format!("{name}.bias"), &shape[1..], ZERO, Some(0))?,
        false => Tensor::zeros(weight.dim(1)?, weight.dtype(), weight.device())?,
    };
    Ok(move |x: &Tensor| linear(x, &weight, &bias))
}

/// A layer [by rows](by_row).
fn rows(
    builder: &Builder<'_>,
    name: &str,
    shape: [usize; 2],
    init: Init,
) -> Result<impl Fn(&Tensor) -> Result<Tensor> + Send + Sync + use<>> {
    let weight = builder.get(&format!("{name}.weight"), &shape, init, Some(0))?;
    let bias = builder.get(&format!("{name}.bias"), &shape[1..], ZERO, None)?;
    let no_bias = Tensor::zeros(bias.shape(), bias.dtype(), bias.device())?;
    let group = Arc::clone(builder.group);
    Ok(move |x: &Tensor| match group.world_size() {
        // Product and bias in one pass over memory.
        1 => linear(x, &weight, &bias),
        _ => by_row(x, &group, |x| linear(x, &weight, &no_bias), &bias),
    })
}
// ANCHOR_END: parts
