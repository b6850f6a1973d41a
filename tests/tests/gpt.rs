//! A GPT against PyTorch: a forward and a backward pass, a text shorter than the context, five steps of AdamW.
//!
//! In f64 only the order of additions differs.

use candle_core::Result;
use model_parallel::Gpt;
use model_parallel::layers::{Layers, Stage};
use ops::cross_entropy;

use crate::prelude::*;

/// The sizes of the fixture's GPT, and the number of its texts.
fn sizes(fixture: &Fixture) -> Result<(Gpt, usize)> {
    let geometry = fixture.get("geometry")?.to_vec1::<i64>()?;
    let [vocabulary, context, width, heads, blocks, texts] = geometry[..] else {
        unreachable!("a geometry of six numbers")
    };
    let size = |number: i64| number as usize;
    let [vocabulary, context, width] = [vocabulary, context, width].map(size);
    Ok((Gpt { vocabulary, context, width, heads: size(heads), blocks: size(blocks) }, size(texts)))
}

fn network(gpt: &Gpt) -> Result<Network<Stage>> {
    let layers = Layers::gpt(gpt)?;
    let network = layers.build(0..layers.len(), 1, DType::F64, &Device::Cpu)?;
    let value = |(position, Named { name, tensor }): (u64, &Named)| {
        let values = noise(tensor.shape(), 400 + position)?;
        let values = if tensor.rank() > 1 {
            (values / (tensor.dim(0)? as f64).sqrt())?
        } else if name.ends_with("norm.weight") {
            ((values * 0.25)? + 1.0)?
        } else {
            (values * 0.25)?
        };
        Ok((name.clone(), values))
    };
    let values = (0..).zip(&network.weights().parameters).map(value).collect::<Result<Vec<_>>>()?;
    network.weights().set(&values)?;
    Ok(network)
}

/// The tokens of a step, and the next tokens.
fn texts(step: usize, gpt: &Gpt, texts: usize) -> Result<[Tensor; 2]> {
    let length = gpt.context + 1;
    let token = |t: usize| ((t * t * 7 + t * 3 + 1 + step) % gpt.vocabulary) as u32;
    let tokens: Vec<u32> = (0..texts * length).map(token).collect();
    let tokens = Tensor::from_vec(tokens, (texts, length), &Device::Cpu)?;
    Ok([tokens.narrow(1, 0, gpt.context)?, tokens.narrow(1, 1, gpt.context)?.flatten_all()?])
}

fn compare(fixture: &Fixture, name: &str, value: &Tensor, bound: f64) -> Result<()> {
    let error = relative_difference(value, fixture.get(name)?)?;
    assert!(error <= bound, "{name}: {error:.1e}, and {bound:.1e} is allowed");
    Ok(())
}

#[test]
fn logits_loss_and_every_gradient_are_pytorchs() -> Result<()> {
    let fixture = Fixture::gpt()?;
    let (gpt, count) = sizes(&fixture)?;
    let (network, [tokens, labels]) = (network(&gpt)?, texts(0, &gpt, count)?);
    let logits = network.forward_training(&tokens)?;
    compare(&fixture, "logits", &logits, 1e-12)?;
    let loss = cross_entropy(&logits, &labels)?;
    compare(&fixture, "loss", &loss.reshape(1)?, 1e-12)?;
    let gradients = network.gradients(&loss)?;
    assert_eq!(gradients.len(), 2 + 15 * gpt.blocks + 3);
    for (Named { name, .. }, gradient) in network.weights().parameters.iter().zip(&gradients) {
        compare(&fixture, &format!("grad/{name}"), gradient, 1e-11)?;
    }
    let short = tokens.narrow(1, 0, 3)?.contiguous()?;
    compare(&fixture, "short/logits", &network.forward_training(&short)?, 1e-12)
}

#[test]
fn five_steps_of_adamw_are_pytorchs() -> Result<()> {
    let fixture = Fixture::gpt()?;
    let (gpt, count) = sizes(&fixture)?;
    let (network, mut adamw) = (network(&gpt)?, AdamW::default());
    for step in 0..5 {
        let [tokens, labels] = texts(step, &gpt, count)?;
        let loss = cross_entropy(&network.forward_training(&tokens)?, &labels)?;
        adamw.step(network.weights(), &network.gradients(&loss)?, 0.01, labels.elem_count())?;
    }
    for Named { name, tensor } in &network.weights().parameters {
        compare(&fixture, &format!("steps/parameter/{name}"), tensor, 1e-9)?;
    }
    for (name, moment) in adamw.state(network.weights())? {
        if !name.starts_with("steps/") {
            compare(&fixture, &format!("steps/{name}"), &moment, 1e-9)?;
        }
    }
    Ok(())
}
