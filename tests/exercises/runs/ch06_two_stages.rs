//! The learner's stage in a pipeline of two dense layers.

use concise_wrapper::model::Step;
use model_parallel::execute::unit::Whole;
use model_parallel::layers::{Layers, Stage};
use model_parallel::{Executor, Kind};

use super::pipeline::{DEVICES, IMAGES, OURS, Pipeline, alone, checked};
use super::prelude::*;
pub use crate::checks::ch06_two_stages::Answer;
use crate::stages::Passed;

/// The numbers between the two layers.
const HIDDEN: usize = 64;

/// Trains with the learner's passes, with stage 6's executor and on one device. Fails with the answer.
pub fn run(answer: Answer) -> Run {
    let layers = Layers::dense(&[PIXELS, HIDDEN, CLASSES])?;
    let checked = checked(Kind::Naive.schedule(DEVICES, 1)?)?;
    let pipeline = Pipeline { layers: &layers, cut: &[0..1, 1..2], checked: &checked };
    let by_answer = |executor: &Executor<Whole<Stage>>, share: &LocalBatch| {
        let rank = Peer::new(executor.rank().expect("an executor has ranks").clone());
        let (layers, batch) = (executor.network(0), share.shards[0].to_device(rank.device())?);
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
    let yours = match pipeline.train("yours", &by_answer).map_err(|it| it.to_string()) {
        // The messages behind the passes are sums of losses, in f64.
        Err(failure) if failure.contains("F64") && failure.contains("F32") => {
            let told = match failure.contains("sent F64") {
                true => "A stage sends no gradient back, and its loss comes in place of it",
                false => "A stage receives no gradient, and it comes in place of the loss",
            };
            return Ok(paragraph(format_args!("{told}: {failure}."))?);
        }
        yours => yours?.0,
    };
    let all = [yours, pipeline.train("ours", OURS)?.0, alone(&layers, 1)?];
    show(&format!("{}, {IMAGES} images", layers.name()), &all, &[])?;
    Ok(paragraph(conclusion(&all[0], &[("one device's", &all[2])]))?)
}
