//! Mistakes on purpose: a GPT of the public pieces is the GPT, and with a mistake the comparison notices it.

use candle_core::{Module, Result};
use candle_nn::init::{Init, ONE, ZERO};
use model_parallel::layers::Builder;
use model_parallel::tensor_parallel::copy;
use ops::{
    add, causal_attention, embedding, embedding_of_part, gelu_tanh, layer_norm, reshape, softmax,
};

use super::{SIZES, TEXTS, Way, difference, gpt, hash};
use crate::prelude::*;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Mistake {
    None,
    /// Each rank has the whole gradient of a layer norm, and the ranks add it up again.
    NormTwice,
    /// Each rank adds the bias of a layer by rows to its term.
    BiasOnEveryRank,
    /// A rank cuts its features into as many heads as the whole model has.
    HeadsMixed,
    /// A token reads the next token.
    MaskOffByOne,
}
use Mistake::{BiasOnEveryRank, HeadsMixed, MaskOffByOne, NormTwice};

fn normal(stdev: f64) -> Init {
    Init::Randn { mean: 0.0, stdev }
}

/// The attention, with a mistake.
fn attention(
    builder: &Builder<'_>,
    block: usize,
    mistake: Mistake,
) -> Result<impl Module + Send + Sync + use<>> {
    let (width, heads) = (SIZES.width, builder.share("heads", SIZES.heads)?);
    let get = |name: &str, init, shape: &[usize], cut| {
        builder.get(&format!("block{block}.attention.{name}"), shape, init, cut)
    };
    let columns =
        |name: &str| get(&format!("{name}.weight"), normal(0.02), &[width, width], Some(1));
    let norm = [get("norm.weight", ONE, &[width], None)?, get("norm.bias", ZERO, &[width], None)?];
    let (query, of_query) = (columns("query")?, get("query.bias", ZERO, &[width], Some(0))?);
    let key = columns("key")?;
    let (value, of_value) = (columns("value")?, get("value.bias", ZERO, &[width], Some(0))?);
    let deviation = 0.02 / (2.0 * SIZES.blocks as f64).sqrt();
    let output = get("output.weight", normal(deviation), &[width, width], Some(0))?;
    let bias = get("output.bias", ZERO, &[width], None)?;
    let [none, no_bias] =
        [&of_query, &bias].map(|it| Tensor::zeros(it.shape(), DType::F64, it.device()));
    let (none, no_bias, group) = (none?, no_bias?, Arc::clone(builder.group));
    let everywhere = mistake == BiasOnEveryRank;
    Ok(move |x: &Tensor| {
        let [weight, shift] = &norm;
        let weight = if mistake == NormTwice { copy(weight, &group)? } else { weight.clone() };
        let read = by_column(&layer_norm(x, &weight, shift, 1e-5)?, &group, |x| {
            let (q, k) = (linear(x, &query, &of_query)?, linear(x, &key, &none)?);
            let v = linear(x, &value, &of_value)?;
            match mistake {
                HeadsMixed => causal_attention(&q, &k, &v, SIZES.heads),
                MaskOffByOne => one_ahead(&q, &k, &v, heads),
                _ => causal_attention(&q, &k, &v, heads),
            }
        })?;
        let term = |x: &Tensor| linear(x, &output, if everywhere { &bias } else { &no_bias });
        add(x, &by_row(&read, &group, term, if everywhere { &no_bias } else { &bias })?)
    })
}

/// Attention in which a token reads the next token, too.
fn one_ahead(q: &Tensor, k: &Tensor, v: &Tensor, heads: usize) -> Result<Tensor> {
    let (texts, tokens, features) = q.dims3()?;
    let by_head = |x: &Tensor| {
        x.reshape((texts, tokens, heads, features / heads))?.transpose(1, 2)?.contiguous()
    };
    let (q, k, v) = (by_head(q)?, by_head(k)?, by_head(v)?);
    let scores = (q.matmul(&k.t()?)? / ((features / heads) as f64).sqrt())?;
    let hidden = |at: usize| if at % tokens > at / tokens + 1 { f64::NEG_INFINITY } else { 0.0 };
    let mask: Vec<f64> = (0..tokens * tokens).map(hidden).collect();
    let mask = Tensor::from_vec(mask, (tokens, tokens), q.device())?;
    let read = softmax(&scores.broadcast_add(&mask)?)?.matmul(&v)?;
    read.transpose(1, 2)?.reshape((texts, tokens, features))
}

fn mlp(builder: &Builder<'_>, block: usize) -> Result<impl Module + Send + Sync + use<>> {
    let (width, hidden) = (SIZES.width, 4 * SIZES.width);
    let get = |name: &str, init, shape: &[usize], cut| {
        builder.get(&format!("block{block}.mlp.{name}"), shape, init, cut)
    };
    let norm = [get("norm.weight", ONE, &[width], None)?, get("norm.bias", ZERO, &[width], None)?];
    let up = get("up.weight", normal(0.02), &[width, hidden], Some(1))?;
    let of_up = get("up.bias", ZERO, &[hidden], Some(0))?;
    let deviation = 0.02 / (2.0 * SIZES.blocks as f64).sqrt();
    let down = get("down.weight", normal(deviation), &[hidden, width], Some(0))?;
    let bias = get("down.bias", ZERO, &[width], None)?;
    let no_bias = Tensor::zeros(bias.shape(), DType::F64, bias.device())?;
    let group = Arc::clone(builder.group);
    Ok(move |x: &Tensor| {
        let part = |x: &_| gelu_tanh(&linear(x, &up, &of_up)?);
        let hidden = by_column(&layer_norm(x, &norm[0], &norm[1], 1e-5)?, &group, part)?;
        let term = |x: &Tensor| linear(x, &down, &no_bias);
        add(x, &by_row(&hidden, &group, term, &bias)?)
    })
}

fn first(builder: &Builder<'_>) -> Result<impl Module + Send + Sync + use<>> {
    let (vocabulary, context, width) = (SIZES.vocabulary, SIZES.context, SIZES.width);
    let table = builder.get("embedding.weight", &[vocabulary, width], normal(0.02), Some(0))?;
    let positions = builder.get("positions.weight", &[context, width], normal(0.01), None)?;
    let (own, group) = (table.dim(0)?, Arc::clone(builder.group));
    let own = own * group.rank()..own * (group.rank() + 1);
    Ok(move |tokens: &Tensor| {
        let places = Tensor::arange(0, context as u32, tokens.device())?;
        let rows = |tokens: &_| embedding_of_part(tokens, &table, own.clone(), vocabulary);
        by_row(tokens, &group, rows, &embedding(&places, &positions)?)
    })
}

fn head(builder: &Builder<'_>) -> Result<impl Module + Send + Sync + use<>> {
    let (width, vocabulary) = (SIZES.width, SIZES.vocabulary);
    let weight = builder.get("norm.weight", &[width], ONE, None)?;
    let bias = builder.get("norm.bias", &[width], ZERO, None)?;
    let head = builder.get("head.weight", &[width, vocabulary], normal(0.02), Some(1))?;
    let none = Tensor::zeros(head.dim(1)?, DType::F64, head.device())?;
    let group = Arc::clone(builder.group);
    Ok(move |x: &Tensor| {
        let x = layer_norm(x, &weight, &bias, 1e-5)?;
        let x = reshape(&x, (x.elem_count() / width, width))?;
        by_column(&x, &group, |x| linear(x, &head, &none))
    })
}

/// The GPT, with a mistake in the attention of its second block.
fn with(mistake: Mistake) -> Layers {
    let layers =
        (0..SIZES.blocks).fold(Layers::named("GPT").of_tokens().then(first), |it, block| {
            let mistake = if block == 1 { mistake } else { Mistake::None };
            it.then(move |builder| attention(builder, block, mistake))
                .then(move |builder| mlp(builder, block))
        });
    layers.then(head)
}

#[test]
fn every_mistake_is_noticed() {
    let right = gpt();
    let expected = Way::one_device(&right).train();
    let pieces = with(Mistake::None);
    let [found, again] = [&pieces, &right].map(|layers| Way::parts(layers, 2).train());
    assert_eq!(hash(&found.values), hash(&again.values), "the pieces are the GPT");
    assert!(difference(&found, &expected) < 1e-10);
    for mistake in [NormTwice, BiasOnEveryRank, HeadsMixed, MaskOffByOne] {
        let layers = with(mistake);
        let difference = difference(&Way::parts(&layers, 2).train(), &expected);
        println!("{mistake:?}: {difference:.1e}");
        assert!(difference > 1e-3, "{mistake:?} is not noticed: {difference:.1e}");
    }
    // A factor of all gradients hardly changes AdamW's steps, but the moments.
    let way = Way { divisor: Some(TEXTS), ..Way::parts(&right, 2) };
    let difference = difference(&way.train(), &expected);
    assert!(difference > 1e-3, "a division by texts is not noticed: {difference:.1e}");
}
