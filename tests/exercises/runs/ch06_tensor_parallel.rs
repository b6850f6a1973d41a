//! The MLP of a GPT block, as a network for images: trained by the learner's parts, and by stage 6's combinators.

use std::cell::Cell;

use candle_core::{Error as TensorError, ModuleT};
use candle_nn::init::{Init, ZERO};
use concise_wrapper::weights::Weights;
use model_parallel::layers::Layers;
use model_parallel::tensor_parallel::{by_column, by_row};
use ops::backward::record_copy;
use ops::{flatten, linear};

use super::pipeline::{DEVICES, IMAGES, OPTIONS};
use super::prelude::*;
pub use crate::checks::ch06_tensor_parallel::Answer;
use crate::two_layers::gelu;

/// The tensors of the two layers, by their names.
const NAMES: [&str; 4] = ["up.weight", "up.bias", "down.weight", "down.bias"];

/// The hidden features of the MLP, which two ranks cannot share equally.
const HIDDEN: usize = 511;

/// The MLP as one layer of stage 6.
fn ours() -> Layers {
    Layers::named(format!("MLP {PIXELS}-{HIDDEN}-{CLASSES}")).then(|builder| {
        let get = |at: usize, shape: &[usize], cut| {
            let normal = Init::Randn { mean: 0.0, stdev: (1.0 / shape[0] as f64).sqrt() };
            builder.get(NAMES[at], shape, if shape.len() == 1 { ZERO } else { normal }, cut)
        };
        let a = get(0, &[PIXELS, HIDDEN], Some(1))?;
        let a_bias = get(1, &[HIDDEN], Some(0))?;
        let b = get(2, &[HIDDEN, CLASSES], Some(0))?;
        let b_bias = get(3, &[CLASSES], None)?;
        let (no_bias, group) = (b_bias.zeros_like()?, Arc::clone(builder.group));
        Ok(move |images: &Tensor| {
            let up = |x: &Tensor| gelu(&linear(x, &a, &a_bias)?);
            let hidden = by_column(&flatten(images)?, &group, up)?;
            by_row(&hidden, &group, |h| linear(h, &b, &no_bias), &b_bias)
        })
    })
}

/// All numbers in one row: an operation has three inputs at most.
fn row(tensors: [&Tensor; 4]) -> candle_core::Result<Tensor> {
    let rows = tensors.map(Tensor::flatten_all).into_iter();
    Tensor::cat(&rows.collect::<candle_core::Result<Vec<_>>>()?, 0)
}

/// One rank's part of the two layers, as a network whose two passes are the learner's.
fn network(
    answer: Answer,
    rank: &Rank,
    whole: &Weights,
) -> Result<Network<impl ModuleT + use<>>, ModelError> {
    let whole = [0, 1, 2, 3].map(|at| whole.parameters[at].tensor.detach()).into();
    let parts = (answer.part)(&whole, rank.rank(), rank.world_size())?;
    let shapes = parts.tensors().map(|part| part.shape().clone());
    let value = move |name: &str, _: &Shape, _, _| {
        let at = NAMES.iter().position(|it| *it == name).unwrap_or(0);
        parts.tensors()[at].force_contiguous()
    };
    let all: SharedCommunicator = rank.into();
    Ok(Network::with_values(value, DType::F32, rank.device(), move |vb, _| {
        let get = |at: usize| vb.get(shapes[at].clone(), NAMES[at]);
        let (part, all) = ([get(0)?, get(1)?, get(2)?, get(3)?], all.clone());
        Ok(move |images: &Tensor| {
            let (x, rank) = (flatten(images)?, Peer::new(all.clone()));
            let own = part.each_ref().map(Tensor::detach).into();
            let (z, y) = (answer.forward)(&rank, &own, &x).map_err(TensorError::wrap)?;
            record_copy("yours", &y, [&row(part.each_ref())?], move |_, dy| {
                let found = (answer.backward)(&rank, &own, &x, &z, dy);
                Ok([Some(row(found.map_err(TensorError::wrap)?.layers.tensors())?)])
            })
        })
    })?)
}

/// Trains on so many devices with a model for each rank, and joins the ranks' parts. The further cells are the bytes that each rank
/// holds, and those that it sends in a step.
fn train<M: Model>(
    name: &str,
    devices: usize,
    layers: &Layers,
    model: impl Fn(&Rank, &SharedCommunicator) -> Result<M, ModelError> + Sync,
) -> Run<Training> {
    let data = images(IMAGES);
    let mut of_ranks = run_ranks(&DevicePlan::slices(devices)?, TIMEOUT, |rank| {
        let group = rank.into();
        let sent = Cell::new(0);
        let backward = |model: &M, batch: &LocalBatch| {
            let before = rank.traffic().bytes;
            let step = model.backward(batch);
            sent.set(rank.traffic().bytes - before);
            step
        };
        let model = With { model: model(rank, &group)?, backward };
        let part = Training::of(name, &model, (&data, &OPTIONS))?;
        let [first, last] = part.weights;
        let whole = [layers.join(first, &group)?, layers.join(last, &group)?];
        let held = model.weights().parameter_bytes() as u64;
        Ok::<_, ModelError>((Training::new(name, part.records, whole)?, [held, sent.get()]))
    })?;
    let kilobytes = |bytes: u64| format!("{:.0}", bytes as f64 / 1e3);
    let bytes =
        [0, 1].map(|which| in_a_row(of_ranks.iter().map(|(_, bytes)| kilobytes(bytes[which]))));
    let (mut training, _) = of_ranks.swap_remove(0);
    training.more.extend(bytes);
    Ok(training)
}

/// Trains by the learner's parts, by stage 6's and on one device. Fails with the answer.
pub fn run(answer: Answer) -> Run {
    let layers = ours();
    let all = 0..layers.len();
    let part = |rank: &Rank, group: &SharedCommunicator| {
        layers.build_part(all.clone(), OPTIONS.seed, DType::F32, rank.device(), group)
    };
    let mut trained = [
        train("yours", DEVICES, &layers, |rank, _| {
            let device = rank.device();
            let whole = layers.build(all.clone(), OPTIONS.seed, DType::F32, device)?;
            network(answer, rank, whole.weights())
        })?,
        train("ours", DEVICES, &layers, part)?,
        train("one device", 1, &layers, part)?,
    ];
    let alone = trained[2].weights[0].clone();
    for training in &mut trained {
        training.more.push(match largest_difference(&training.weights[0], &alone) {
            Ok(0.0) => "0".to_owned(),
            Ok(error) => format!("{error:.0e}"),
            Err(_) => "–".to_owned(),
        });
    }
    paragraph(format_args!("{} on {DEVICES} devices", layers.name()))?;
    show("", &trained, &["held,\nKB", "sent in a\nstep, KB", "error of\nstep 1"])?;
    paragraph("Stage 6 sends no gradient of the images: nothing needs it.")?;
    Ok(paragraph(conclusion(&trained[0], &[("one device's", &trained[2])]))?)
}
