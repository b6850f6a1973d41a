//! Stage 6's training of two dense layers, by the learner's parts.

use std::error::Error as StdError;

use candle_core::{DType, Error as TensorError, ModuleT, Shape, Tensor};
use concise_wrapper::model::{Model, Progress};
use concise_wrapper::optimizer::Extras;
use concise_wrapper::weights::{Snapshot, Weights};
use concise_wrapper::{Error as TrainError, Network, train};
use datasets::{CLASSES, PIXELS};
use devices::DevicePlan;
use harness::records::EpochRecord;
use harness::report::{Report, Table, columns, line, paragraph};
use model_parallel::layers::Layers;
use model_parallel::tensor_parallel::Group;
use ops::backward::record_copy;
use ops::difference::largest_difference;
use ops::flatten;
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::{Communicator as _, Error, SharedCommunicator};
use params_and_allreduce::thread::{Rank, run_ranks};

use super::Peer;
use super::pipeline::{DEVICES, OPTIONS, TIMEOUT, cells, data, difference};
use crate::two_layers::{Gradients, Layer, TwoLayers};

/// The functions `part`, `forward` and `backward`.
#[derive(Clone, Copy)]
#[expect(missing_docs, reason = "the exercise documents its functions")]
pub struct Answer {
    pub part: fn(&TwoLayers, usize, usize) -> Result<TwoLayers, Error>,
    pub forward: fn(&Peer, &TwoLayers, &Tensor) -> Result<(Tensor, Tensor), Error>,
    pub backward: fn(&Peer, &TwoLayers, &Tensor, &Tensor, &Tensor) -> Result<Gradients, Error>,
}

/// The tensors of two layers, by their names in stage 6.
const NAMES: [&str; 4] = ["dense0.weight", "dense0.bias", "dense1.weight", "dense1.bias"];

fn two_layers([a, a_bias, b, b_bias]: [&Tensor; 4]) -> TwoLayers {
    let layer =
        |weight: &Tensor, bias: &Tensor| Layer { weight: weight.detach(), bias: bias.detach() };
    TwoLayers { first: layer(a, a_bias), second: layer(b, b_bias) }
}

fn tensors(TwoLayers { first, second }: TwoLayers) -> [Tensor; 4] {
    [first.weight, first.bias, second.weight, second.bias]
}

/// All numbers in one row: an operation has three inputs at most.
fn row(tensors: &[Tensor; 4]) -> candle_core::Result<Tensor> {
    let rows = tensors.each_ref().map(Tensor::flatten_all).into_iter();
    Tensor::cat(&rows.collect::<candle_core::Result<Vec<_>>>()?, 0)
}

/// One rank's part of the two layers, as a network whose two passes are the learner's.
fn network(
    answer: Answer,
    rank: &Rank,
    whole: &Weights,
) -> Result<Network<impl ModuleT + use<>>, TrainError> {
    let whole = two_layers([0, 1, 2, 3].map(|at| &whole.parameters[at].tensor));
    let parts = tensors((answer.part)(&whole, rank.rank(), rank.world_size())?);
    let shapes = parts.each_ref().map(|part| part.shape().clone());
    let value = move |name: &str, _: &Shape, _, _| {
        let at = NAMES.iter().position(|it| *it == name).unwrap_or(0);
        parts[at].force_contiguous()
    };
    let all: SharedCommunicator = rank.into();
    Ok(Network::with_values(value, DType::F32, rank.device(), move |vb, _| {
        let get = |at: usize| vb.get(shapes[at].clone(), NAMES[at]);
        let (part, all) = ([get(0)?, get(1)?, get(2)?, get(3)?], all.clone());
        Ok(move |images: &Tensor| {
            let (x, rank) = (flatten(images)?, Peer(all.clone()));
            let own = two_layers(part.each_ref());
            let (hidden, y) = (answer.forward)(&rank, &own, &x).map_err(TensorError::wrap)?;
            record_copy("yours", &y, [&row(&part)?], move |_, dy| {
                let found = (answer.backward)(&rank, &own, &x, &hidden, dy);
                Ok([Some(row(&tensors(found.map_err(TensorError::wrap)?.layers))?)])
            })
        })
    })?)
}

/// The results of a training: the whole weights after the first step, and the bytes that each rank holds and sends in a step.
struct Trained {
    record: EpochRecord,
    first: Snapshot,
    held: Vec<u64>,
    sent: Vec<u64>,
}

/// Trains on so many devices with a model for each rank, and joins the ranks' parts.
fn train_parts<M: Model>(
    devices: usize,
    model: impl Fn(&Rank) -> Result<M, TrainError> + Sync,
) -> Result<Trained, Box<dyn StdError>> {
    let data = data();
    let of_ranks = run_ranks(&DevicePlan::slices(devices)?, TIMEOUT, |rank| {
        let (model, mut report) = (model(rank)?, Report::silent());
        let (mut first, mut sent) = (Snapshot::new(), rank.traffic().bytes);
        let observe = |progress: Progress<'_>| {
            match progress.steps {
                0 => sent = rank.traffic().bytes,
                1 => (first, sent) = (model.weights().snapshot()?, rank.traffic().bytes - sent),
                _ => {}
            }
            Ok(())
        };
        let mut trained =
            train(&model, &data, &OPTIONS, &Extras::default(), None, &mut report, observe)?;
        let held = model.weights().parameter_bytes() as u64;
        Ok::<_, TrainError>((trained.records.swap_remove(0), first, held, sent))
    })?;
    let record = of_ranks[0].0;
    let held = of_ranks.iter().map(|it| it.2).collect();
    let sent = of_ranks.iter().map(|it| it.3).collect();
    // Columns of the first layer, and rows of the second. All ranks have the last bias.
    let join = |(at, axis): (usize, usize)| {
        let of_each: Vec<&Tensor> = of_ranks.iter().map(|it| &it.1[at].1).collect();
        Ok((of_ranks[0].1[at].0.clone(), Tensor::cat(&of_each, axis)?))
    };
    let joined = [(0, 1), (1, 0), (2, 0)].into_iter().map(join);
    let mut first = joined.collect::<candle_core::Result<Snapshot>>()?;
    first.push(of_ranks[0].1[3].clone());
    Ok(Trained { record, first, held, sent })
}

/// Trains by the learner's parts, by stage 6's and on one device. Fails when the answer does.
pub fn run(answer: Answer) -> Result<(), Box<dyn StdError>> {
    let layers = Layers::dense(&[PIXELS, 511, CLASSES])?;
    let all = 0..layers.len();
    let whole = |rank: &Rank| layers.build(all.clone(), OPTIONS.seed, DType::F32, rank.device());
    let yours = train_parts(DEVICES, |rank| network(answer, rank, whole(rank)?.weights()))?;
    let ours = train_parts(DEVICES, |rank| {
        let group = Group::new(rank.into(), Algorithm::OneShot);
        layers.build_part(all.clone(), OPTIONS.seed, DType::F32, rank.device(), &group)
    })?;
    let alone = train_parts(1, |rank| Ok(whole(rank)?))?;
    let mut table = Table::new("").column("s", 0).column("loss", 0);
    table = table
        .column("held, KB,\nby each device", 0)
        .column("sent in a step, KB,\nby each device", 0);
    table = table.column("first step,\nerror", 0);
    for (name, it) in [("yours", &yours), ("ours", &ours), ("one device", &alone)] {
        let [seconds, loss] = cells(&it.record);
        let kilobytes = |bytes: &[u64]| {
            let each: Vec<_> = bytes.iter().map(|&it| format!("{:.0}", it as f64 / 1e3)).collect();
            each.join(" ")
        };
        let error = match largest_difference(&it.first, &alone.first) {
            Ok(0.0) => "0".to_owned(),
            Ok(error) => format!("{error:.0e}"),
            Err(_) => "–".to_owned(),
        };
        table.row([
            name.to_owned(),
            seconds,
            loss,
            kilobytes(&it.held),
            kilobytes(&it.sent),
            error,
        ]);
    }
    paragraph(format_args!("{} on {DEVICES} devices", layers.name()))?;
    line(table.text(columns()))?;
    paragraph("Stage 6 sends no gradient of the images: nothing needs it.")?;
    Ok(paragraph(difference(&yours.first, &alone.first))?)
}
