//! LeNet's layers with the learner's functions of chapter 1.

use std::sync::OnceLock;

use candle_core::Result;
use single_gpu::layers::{self, record_layer};
use single_gpu::lenet::LayerFunctions;
use single_gpu::train::train;

use super::prelude::*;
use super::{ch01_cross_entropy, ch01_pool_gradient};

// The layers are functions without state, so the answers of this program are here.
static POOL_GRADIENT: OnceLock<ch01_pool_gradient::Answer> = OnceLock::new();
static CROSS_ENTROPY: OnceLock<ch01_cross_entropy::Answer> = OnceLock::new();

/// Convolution and relu of the engine, before a pooling in plain loops.
pub(super) fn conv2d_relu(x: &Tensor, weight: &Tensor, bias: &Tensor) -> Result<Tensor> {
    ops::relu(&ops::conv2d(x, weight, Some(bias), 1, 0)?)
}

/// Layers whose pooling has the learner's backward pass.
pub(super) fn with_pool_gradient(
    layers: LayerFunctions,
    answer: ch01_pool_gradient::Answer,
) -> LayerFunctions {
    POOL_GRADIENT.get_or_init(|| answer);
    LayerFunctions {
        conv2d_relu_pool: |x, weight, bias| pool(&conv2d_relu(x, weight, bias)?),
        ..layers
    }
}

/// Layers whose loss is the learner's.
pub(super) fn with_cross_entropy(
    layers: LayerFunctions,
    answer: ch01_cross_entropy::Answer,
) -> LayerFunctions {
    CROSS_ENTROPY.get_or_init(|| answer);
    LayerFunctions { cross_entropy: loss, ..layers }
}

/// Stage 1's average pooling with the backward pass of the answer, plane by plane.
pub(super) fn pool(x: &Tensor) -> Result<Tensor> {
    let Some(answer) = POOL_GRADIENT.get() else { return layers::avg_pool2d(x) };
    let (_, _, height, width) = x.dims4()?;
    let y = layers::avg_pool2d(&x.detach())?;
    record_layer("avg_pool2d", &y, [x], move |dy| {
        let planes = dy.chunks((height / 2) * (width / 2));
        [planes.flat_map(|plane| answer(plane, height, width)).collect()]
    })
}

/// The loss and the gradient of the answer.
fn loss(logits: &Tensor, labels: &Tensor) -> Result<Tensor> {
    let Some(answer) = CROSS_ENTROPY.get() else { return layers::cross_entropy(logits, labels) };
    let (_, classes) = logits.dims2()?;
    let numbers = logits.to_dtype(DType::F64)?.flatten_all()?.to_vec1::<f64>()?;
    let labels: Vec<usize> = labels.to_vec1::<u32>()?.into_iter().map(|it| it as usize).collect();
    let (loss, gradient) = answer(&numbers, &labels, classes);
    let loss = Tensor::new(loss, &Device::Cpu)?.to_dtype(logits.dtype())?;
    record_layer("cross_entropy", &loss, [logits], move |dloss| {
        [gradient.iter().map(|slope| slope * dloss[0]).collect()]
    })
}

/// Layers, and the findings of their check: the largest relative error of the gradient, and a number that shows a mistake.
pub(super) type Checked<'a> = (&'a str, LayerFunctions, [f64; 2]);

/// An error of a gradient that is right, in f64.
const RIGHT: f64 = 1e-7;

const IMAGES: usize = 3000;
const OPTIONS: TrainOptions = options(3, 16, 0.2);

/// Prints the findings, and trains LeNet on one device with each of the layers: the learner's, ours, and others, with a sentence
/// about the others. The headings are of the table of findings, and of its second number.
pub(super) fn compare(headings: [&str; 2], checked: &[Checked<'_>], others: &str) -> Run {
    let [title, number] = headings;
    table(
        title,
        &["error of the gradient", number],
        checked.iter().map(|(name, _, [error, number])| {
            vec![(*name).to_owned(), format!("{error:.0e}"), format!("{number:.2}")]
        }),
    )?;
    let (data, report) = (images(IMAGES), &mut Report::silent());
    let device = DevicePlan::slices(1)?.slots()[0].open_in_this_thread()?;
    let mut trained = Vec::new();
    for (name, layers, _) in checked {
        match train(&data, &OPTIONS, *layers, DType::F32, &device, report) {
            Ok(it) => {
                trained.push(Training::new(name, it.records, [Snapshot::new(), it.weights])?);
            }
            Err(failure @ trainer::Error::NotFinite { .. }) => {
                paragraph(format_args!("{name}: {failure}"))?;
            }
            Err(failure) => return Err(failure.into()),
        }
    }
    line("")?;
    show(&format!("LeNet on 1 device, {}", counted(IMAGES, "image")), &trained, &[])?;
    let yours = match checked[0].2[0] {
        ..=RIGHT if trained.len() > 1 && trained[0].hash == trained[1].hash => {
            "Your weights are ours, to the last bit.".to_owned()
        }
        ..=RIGHT => {
            "Your gradient fits your forward pass, and the weights are not ours.".to_owned()
        }
        error => format!(
            "Your gradient is {error:.1} away from finite differences, relative to the largest. No error ends the training."
        ),
    };
    Ok(paragraph(format_args!("\n{yours} {others}"))?)
}
