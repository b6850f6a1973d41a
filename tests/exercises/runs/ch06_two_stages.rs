//! The learner's stage in a pipeline of two dense layers.

use std::error::Error as StdError;

use candle_core::{DType, Shape, Tensor};
use concise_wrapper::model::{Model as _, Step};
use concise_wrapper::{Network, allreduce_sums};
use datasets::{Batch, CLASSES, PIXELS};
use harness::records::BatchSums;
use harness::report::{Table, columns, line, paragraph};
use model_parallel::layers::{Layers, Stage};
use model_parallel::pipeline::{Kind, Worker};
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::{Communicator as _, Error};
use split_batch::loader::LocalBatch;

use super::Peer;
use super::pipeline::{DEVICES, IMAGES, Pipeline, alone, checked, conclusion, ours};
use crate::stages::Passed;

/// The two passes of a stage.
#[derive(Clone, Copy)]
pub struct Answer {
    /// A rank, its layers, the shape of the activation that arrives, and the batch.
    pub forward: fn(&Peer, &Network<Stage>, &Shape, &Batch) -> Result<Passed, Error>,
    /// A rank, its layers, and the result of its forward pass; the gradients of its parameters.
    pub backward: fn(&Peer, &Network<Stage>, &Passed) -> Result<Vec<Tensor>, Error>,
}

/// The numbers between the two layers.
const HIDDEN: usize = 64;

/// Trains with the learner's passes, with stage 6's worker and on one device. Fails when the answer does.
pub fn run(answer: Answer) -> Result<(), Box<dyn StdError>> {
    let layers = Layers::dense(&[PIXELS, HIDDEN, CLASSES])?;
    let checked = checked(Kind::Naive.schedule(DEVICES, 1)?)?;
    let pipeline = Pipeline { layers: &layers, cut: &[0..1, 1..2], checked: &checked };
    let by_answer = |worker: &Worker<'_, Stage>, share: &LocalBatch| {
        let rank = Peer(worker.rank().ok_or(Error::Other("a worker has ranks".into()))?.clone());
        let (layers, batch) = (worker.network(0), share.shards[0].to_device(rank.device())?);
        let arrives = Shape::from((batch.len(), HIDDEN));
        let passed = (answer.forward)(&rank, layers, &arrives, &batch)?;
        let gradients = (answer.backward)(&rank, layers, &passed)?;
        let mut sums = BatchSums::of_no_samples();
        if rank.rank() + 1 == DEVICES {
            sums.loss = passed.result.to_dtype(DType::F64)?.to_scalar()?;
            sums.samples = batch.len() as u64;
        }
        let sums = allreduce_sums(&rank, sums, Algorithm::OneShot)?;
        Ok(Step { sums: sums.into(), gradients })
    };
    let yours = pipeline.train(&by_answer)?;
    let (ours, alone) = (pipeline.train(&ours)?, alone(&layers, 1)?);
    let mut table = Table::new(&format!("{}, {IMAGES} images", layers.name()));
    table = table.column("s", 0).column("loss", 0).column("weights", 0).column("accuracy", 0);
    for (name, it) in [("yours", &yours), ("ours", &ours), ("one device", &alone)] {
        let accuracy = format!("{:.3}", it.record.test_accuracy);
        table.row(it.cells(name).into_iter().chain([accuracy]));
    }
    line(table.text(columns()))?;
    Ok(paragraph(conclusion(&yours, &alone))?)
}
