//! Stage 6's training of two dense layers, by the learner's parts.

use std::error::Error as StdError;

use candle_core::{DType, Module, Tensor, Var};
use concise_wrapper::model::{Model, Progress, Step};
use concise_wrapper::optimizer::Extras;
use concise_wrapper::weights::{Named, Snapshot, Weights};
use concise_wrapper::{Error as TrainError, train};
use datasets::{CLASSES, Dataset, PIXELS};
use devices::DevicePlan;
use harness::records::{BatchSums, EpochRecord};
use harness::report::{Report, Table, columns, line, paragraph};
use model_parallel::layers::Layers;
use model_parallel::tensor_parallel::Group;
use ops::backward::backward;
use ops::difference::largest_difference;
use ops::{cross_entropy, flatten};
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::{Communicator as _, Error};
use params_and_allreduce::thread::{Rank, run_ranks};
use single_gpu::evaluate::evaluate;
use split_batch::loader::LocalBatch;
use trainer::StepSums;

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

/// One rank's part of the two layers, which trains by the learner's functions.
struct Part {
    answer: Answer,
    rank: Peer,
    weights: Weights,
}

impl Part {
    fn new(answer: Answer, rank: &Rank, whole: &Weights) -> Result<Self, Error> {
        let part = (answer.part)(&two_layers(whole), rank.rank(), rank.world_size())?;
        let TwoLayers { first, second } = part;
        let parts = [first.weight, first.bias, second.weight, second.bias];
        let named = |(part, whole): (Tensor, &Named)| {
            let tensor = Var::from_tensor(&part.force_contiguous()?)?.into_inner();
            Ok::<_, Error>(Named { name: whole.name.clone(), tensor })
        };
        let parameters = parts.into_iter().zip(&whole.parameters).map(named);
        let parameters = parameters.collect::<Result<_, _>>()?;
        Ok(Self {
            answer,
            rank: Peer(rank.into()),
            weights: Weights { parameters, ..whole.clone() },
        })
    }
}

/// The four tensors as constants.
fn two_layers(Weights { parameters, .. }: &Weights) -> TwoLayers {
    let layer = |at: usize| Layer {
        weight: parameters[at].tensor.detach(),
        bias: parameters[at + 1].tensor.detach(),
    };
    TwoLayers { first: layer(0), second: layer(2) }
}

impl Module for Part {
    fn forward(&self, images: &Tensor) -> candle_core::Result<Tensor> {
        let (x, part) = (flatten(images)?, two_layers(&self.weights));
        let found = (self.answer.forward)(&self.rank, &part, &x);
        found.map(|(_, y)| y).map_err(candle_core::Error::wrap)
    }
}

impl Model for Part {
    fn backward(&self, batch: &LocalBatch) -> Result<Step, TrainError> {
        let shard = batch.shards[0].to_device(self.rank.device())?;
        let (x, part) = (flatten(&shard.images)?, two_layers(&self.weights));
        let (hidden, y) = (self.answer.forward)(&self.rank, &part, &x)?;
        let y = Var::from_tensor(&y.detach())?;
        let loss = cross_entropy(&y, &shard.labels)?;
        let dy = backward(&loss)?.remove(&y).ok_or(Error::Other("the loss needs Y".into()))?;
        let found = (self.answer.backward)(&self.rank, &part, &x, &hidden, &dy)?;
        let TwoLayers { first, second } = found.layers;
        let gradients = vec![first.weight, first.bias, second.weight, second.bias];
        Ok(Step { sums: StepSums::new(&loss, &y, &shard)?, gradients })
    }

    fn weights(&self) -> &Weights {
        &self.weights
    }

    fn evaluate(&self, images: &Dataset) -> Result<BatchSums, TrainError> {
        Ok(evaluate(self, images, DType::F32, self.rank.device())?)
    }
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
    let yours = train_parts(DEVICES, |rank| Ok(Part::new(answer, rank, whole(rank)?.weights())?))?;
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
        let (seconds, loss) = cells(&it.record);
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
