//! LeNet's layers with the learner's functions of chapter 1.

use std::error::Error;
use std::sync::OnceLock;

use candle_core::{DType, Device, Result, Tensor};
use datasets::source::LoadedData;
use devices::DevicePlan;
use harness::records::TrainOptions;
use harness::report::{Report, Table, columns, counted, line, paragraph};
use model_state::weights_hash::WeightsHash;
use single_gpu::layers::{self, record_layer};
use single_gpu::lenet::LayerFunctions;
use single_gpu::train::train;

use super::comparison::{self, Row};
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
        conv2d_relu_pool: |x, weight, bias| {
            let y = conv2d_relu(x, weight, bias)?;
            POOL_GRADIENT.get().map_or_else(|| layers::avg_pool2d(&y), |answer| pool(&y, *answer))
        },
        ..layers
    }
}

/// Layers whose loss is the learner's.
pub(super) fn with_cross_entropy(
    layers: LayerFunctions,
    answer: ch01_cross_entropy::Answer,
) -> LayerFunctions {
    CROSS_ENTROPY.get_or_init(|| answer);
    LayerFunctions {
        cross_entropy: |logits, labels| {
            let ours = || layers::cross_entropy(logits, labels);
            CROSS_ENTROPY.get().map_or_else(ours, |answer| loss(logits, labels, *answer))
        },
        ..layers
    }
}

/// Stage 1's average pooling with the backward pass of an answer, plane by plane.
pub(super) fn pool(x: &Tensor, answer: ch01_pool_gradient::Answer) -> Result<Tensor> {
    let (_, _, height, width) = x.dims4()?;
    let y = layers::avg_pool2d(&x.detach())?;
    record_layer("avg_pool2d", &y, [x], move |dy| {
        let planes = dy.chunks((height / 2) * (width / 2));
        [planes.flat_map(|plane| answer(plane, height, width)).collect()]
    })
}

/// The loss and the gradient of an answer.
pub(super) fn loss(
    logits: &Tensor,
    labels: &Tensor,
    answer: ch01_cross_entropy::Answer,
) -> Result<Tensor> {
    let (_, classes) = logits.dims2()?;
    let numbers = logits.to_dtype(DType::F64)?.flatten_all()?.to_vec1::<f64>()?;
    let labels: Vec<usize> = labels.to_vec1::<u32>()?.into_iter().map(|it| it as usize).collect();
    let (loss, gradient) = answer(&numbers, &labels, classes);
    let loss = Tensor::new(loss, &Device::Cpu)?.to_dtype(logits.dtype())?;
    record_layer("cross_entropy", &loss, [logits], move |dloss| {
        [gradient.iter().map(|slope| slope * dloss[0]).collect()]
    })
}

/// What the checks of a layer find.
pub(super) struct Checked {
    /// The largest relative error of the gradient.
    pub(super) error: f64,
    /// A number that shows a mistake of the layer.
    pub(super) other: f64,
}

/// An error of a gradient that is right, in f64.
const RIGHT: f64 = 1e-7;

const IMAGES: (usize, usize) = (3000, 500);
const OPTIONS: TrainOptions =
    TrainOptions { epochs: 3, batch_size: 16, learning_rate: 0.2, seed: 1 };

/// Prints what the checks find, a line for each layer.
pub(super) fn show_checks(
    title: &str,
    other: &str,
    checked: &[(&str, Checked)],
) -> std::result::Result<(), Box<dyn Error>> {
    let mut table = Table::new(title).column("error of the gradient", 0).column(other, 0);
    for (name, Checked { error, other }) in checked {
        table.row([(*name).to_owned(), format!("{error:.0e}"), format!("{other:.2}")]);
    }
    Ok(line(table.text(columns()))?)
}

/// Trains LeNet on one device with each of the layers, and prints the difference. The first two are the learner's and
/// ours. `third` is a sentence about the third.
pub(super) fn show_training(
    runs: &[(&str, LayerFunctions)],
    error: f64,
    third: &str,
) -> std::result::Result<(), Box<dyn Error>> {
    let (images, test_images) = IMAGES;
    let data = LoadedData::draw((Some(images), Some(test_images)));
    let device = DevicePlan::slices(1)?.slots()[0].open_in_this_thread()?;
    let mut trained = Vec::new();
    for (name, layers) in runs {
        let report = &mut Report::silent();
        match train(&data, &OPTIONS, *layers, DType::F32, &device, report) {
            Ok(run) => trained.push((*name, WeightsHash::new(&run.weights)?, run.records)),
            Err(failure @ trainer::Error::NotFinite { .. }) => {
                paragraph(format_args!("{name}: {failure}"))?;
            }
            Err(failure) => return Err(failure.into()),
        }
    }
    let rows: Vec<Row<'_>> =
        trained.iter().map(|(name, hash, records)| Row::new(name, records, hash)).collect();
    line("")?;
    comparison::show(&format!("LeNet on 1 device, {}", counted(images, "image")), &rows)?;
    let same = trained.len() > 1 && trained[0].1 == trained[1].1;
    let yours = match error {
        ..=RIGHT if same => "Your weights are ours, to the last bit.".to_owned(),
        ..=RIGHT => {
            "Your gradient fits your forward pass, and the weights are not ours.".to_owned()
        }
        _ => format!(
            "Your gradient is {error:.1} away from finite differences, relative to the largest. No error ends the training."
        ),
    };
    Ok(paragraph(format_args!("\n{yours} {third}"))?)
}
