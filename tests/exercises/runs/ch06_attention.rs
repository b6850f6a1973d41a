//! Stage 6's training of a GPT, whose attention is the learner's.

use candle_nn::init::{Init, ONE, ZERO};
use datasets::text::TextArguments;
use model_parallel::execute::Settings;
use model_parallel::layers::{Builder, Layers};
use model_parallel::mesh::Mesh;
use model_parallel::{Executor, Gpt, Kind, UNBOUNDED, check};
use ops::{add, layer_norm};

use super::pipeline::DEVICES;
use super::prelude::*;
use crate::attention::Attention;
pub use crate::checks::ch06_attention::Answer;
use crate::two_layers::Layer;

/// Small enough for some seconds.
const GPT: Gpt = Gpt { vocabulary: 256, context: 32, width: 64, heads: 4, blocks: 2 };
const WINDOWS: usize = 1024;
const OPTIONS: TrainOptions = options(2, 16, 0.5);

/// The layer of stage 6's GPT with this rank's heads, computed by the learner's function. It asks for the tensors of the GPT, by
/// their names and with their initial values.
fn attention(
    answer: Answer,
    builder: &Builder<'_>,
    block: usize,
) -> candle_core::Result<impl Fn(&Tensor) -> candle_core::Result<Tensor> + Send + Sync + use<>> {
    let name = |part: &str| format!("block{block}.attention.{part}");
    let bias = |part: &str, cut| builder.get(&name(part), &[GPT.width], ZERO, cut);
    let weight = |part: &str, stdev: f64, axis| {
        let normal = Init::Randn { mean: 0.0, stdev };
        builder.get(&name(part), &[GPT.width; 2], normal, Some(axis))
    };
    let (one, other) = ([GPT.width], name("norm.bias"));
    let norm = [
        builder.get(&name("norm.weight"), &one, ONE, None)?,
        builder.get(&other, &one, ZERO, None)?,
    ];
    let columns = |part: &str| {
        let weight = weight(&format!("{part}.weight"), 0.02, 1)?;
        Ok::<_, candle_core::Error>(Layer { weight, bias: bias(&format!("{part}.bias"), Some(0))? })
    };
    let of_residual = 0.02 / (2.0 * GPT.blocks as f64).sqrt();
    let part = Attention {
        query: columns("query")?,
        key: weight("key.weight", 0.02, 1)?,
        value: columns("value")?,
        out: Layer {
            weight: weight("output.weight", of_residual, 0)?,
            bias: bias("output.bias", None)?,
        },
    };
    let (group, heads) = (Arc::clone(builder.group), builder.share("heads", GPT.heads)?);
    Ok(move |x: &Tensor| {
        let read = layer_norm(x, &norm[0], &norm[1], 1e-5)?;
        add(x, &(answer.forward)(&group, &part, heads, &read)?)
    })
}

/// Trains on so many devices, each with some of the heads.
fn train(name: &str, layers: &Layers, devices: usize) -> Run<Training> {
    let data =
        TextArguments::default().load(GPT.context, (Some(WINDOWS), Some(128)), |_| Ok(()))?;
    let checked = check(Kind::Naive.schedule(1, 1)?, UNBOUNDED)?;
    let of_ranks = run_ranks(&DevicePlan::slices(devices)?, TIMEOUT, |rank| {
        let (all, mesh) = (SharedCommunicator::from(rank), Mesh::tensor(devices));
        let every = 0..layers.len();
        let part = layers.build_part(every, OPTIONS.seed, DType::F32, rank.device(), &all)?;
        let (sample, settings) = ([GPT.context], Settings::of(layers));
        let model = Executor::new(&checked, vec![part], all.clone(), mesh, &sample, settings)?;
        let part = Training::of(name, &model, (&data, &OPTIONS))?;
        let [first, last] = part.weights;
        let whole = [layers.join(first, &all)?, layers.join(last, &all)?];
        Ok::<_, ModelError>(Training::new(name, part.records, whole)?)
    })?;
    Ok(of_ranks.into_iter().next().ok_or("there is a rank")?)
}

/// Trains a GPT with the learner's attention and with ours, and ours on one device.
pub fn run(answer: Answer) -> Run {
    let ours = Layers::gpt(&GPT)?;
    // The embedding is layer 0. A block is an attention and an MLP.
    let yours = (0..GPT.blocks).fold(ours.clone(), |layers, block| {
        layers.replace(1 + 2 * block, move |builder| attention(answer, builder, block))
    });
    let trained = [
        train("yours", &yours, DEVICES)?,
        train("ours", &ours, DEVICES)?,
        train("ours, one device", &ours, 1)?,
    ];
    let heads = format_args!("{} of {} heads on each", GPT.heads / DEVICES, GPT.heads);
    paragraph(format_args!("{} on {DEVICES} devices, {heads}; the course's pages", ours.name()))?;
    show("", &trained, &[])?;
    let [yours, ours, alone] = &trained;
    Ok(paragraph(conclusion(yours, &[("ours", ours), ("one device's", alone)]))?)
}
