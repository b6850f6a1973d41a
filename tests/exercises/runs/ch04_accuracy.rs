//! The learner's accuracy on the test images, after chapter 4's training.

use ops::backward::no_grad;
use scratch_data_parallel::evaluate::{evaluate_together, part_of};
use single_gpu::evaluate::{BATCH, evaluate_part};

use super::data_parallel::{our_step, setting};
use super::prelude::*;
pub use crate::checks::ch04_accuracy::Answer;

/// Trains on two devices, and measures the accuracy on one and on two, with our function and with the learner's. Fails when the
/// answer does.
pub fn run(accuracy: Answer) -> Run {
    let (data, options) = setting();
    let step = our_step(Algorithm::default());
    let trained = Training::of_lenet("", 2, (&data, &options), Shards::of_rank, &step)?;
    let (weights, test) = (&trained.weights[1], synthetic::dataset(Split::Test, 10_000));
    let ours = |rank: &Rank, model: &Lenet| {
        let sums: Result<BatchSums, CommError> = evaluate_together(rank, |part| {
            Ok(evaluate_part(model, &test, part, DType::F32, rank.device())?)
        });
        Ok(sums?.accuracy())
    };
    let found = [
        ("one device", measure(1, weights, ours)?),
        ("ours, 2 devices", measure(2, weights, ours)?),
        ("yours, 2 devices", measure(2, weights, of_answer(accuracy, &test))?),
    ];
    let rows = found.map(|(name, (accuracy, seconds, bytes))| {
        let ms = format!("{:.0}", 1e3 * seconds);
        vec![name.to_owned(), format!("{accuracy:.4}"), ms, bytes.to_string()]
    });
    let title = format!("{} test images", test.len());
    table(&title, &["accuracy", "ms", "bytes sent"], rows)?;
    super::note_if_busy()?;
    let apart = found[2].1.0 - found[1].1.0;
    Ok(paragraph(match apart == 0.0 {
        true => "Your accuracy is ours. We send more bytes, because we also add up the loss of each batch.".to_owned(),
        false => format!("Your accuracy is {apart:+.4} away from ours. {SILENT}"),
    })?)
}

/// Evaluates LeNet on so many devices: the accuracy, the seconds of the slowest device, and the bytes of all messages.
pub(super) fn measure(
    devices: usize,
    weights: &Snapshot,
    work: impl Fn(&Rank, &Lenet) -> Result<f64, CommError> + Sync,
) -> Run<(f64, f64, u64)> {
    let found = run_ranks(&DevicePlan::slices(devices)?, TIMEOUT, |rank| {
        let model = Lenet::new(1, DType::F32, rank.device())?;
        for (parameter, (_, value)) in model.parameters().iter().zip(weights) {
            parameter.value.set(value)?;
        }
        let (before, begin) = (rank.traffic().bytes, Instant::now());
        let accuracy = work(rank, &model)?;
        Ok::<_, CommError>((accuracy, begin.elapsed(), rank.traffic().bytes - before))
    })?;
    let slowest = found.iter().map(|it| it.1.as_secs_f64()).fold(0.0, f64::max);
    Ok((found[0].0, slowest, found.iter().map(|it| it.2).sum()))
}

/// The answer's accuracy on a rank's part of the test images.
pub(super) fn of_answer(
    accuracy: Answer,
    test: &Dataset,
) -> impl Fn(&Rank, &Lenet) -> Result<f64, CommError> {
    move |rank, model| {
        let (mut logits, mut labels) = (Vec::new(), Vec::new());
        part_of(rank).evaluate(test.len(), BATCH, |samples| {
            let batch = test.batch(samples, DType::F32)?.to_device(rank.device())?;
            logits.push(no_grad(|| model.forward(&batch.images))?.to_dtype(DType::F64)?);
            labels.push(batch.labels);
            Ok::<_, candle_core::Error>(BatchSums::default())
        })?;
        accuracy(&Peer::new(rank), &Tensor::cat(&logits, 0)?, &Tensor::cat(&labels, 0)?)
    }
}
