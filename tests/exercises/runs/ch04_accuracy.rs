//! The learner's accuracy on the test images, after chapter 4's training.

use std::error::Error;
use std::time::Instant;

use candle_core::{DType, Device, Tensor};
use datasets::source::LoadedData;
use devices::DevicePlan;
use harness::records::BatchSums;
use harness::report::{Report, Table, columns, line, paragraph};
use ops::backward::no_grad;
use params_and_allreduce::communicator::{self, Communicator as _};
use params_and_allreduce::thread::{Rank, run_ranks};
use params_and_allreduce::{Algorithm, get_params};
use scratch_data_parallel::Method;
use scratch_data_parallel::evaluate::{evaluate_together, part_of};
use single_gpu::evaluate::{BATCH, Part, evaluate_part};
use single_gpu::lenet::Lenet;

use super::Peer;
use super::data_parallel::{OPTIONS, TIMEOUT, images};

/// A rank, logits and labels of its shard; the accuracy of all shards.
pub type Answer = fn(&Peer, &Tensor, &Tensor) -> Result<f64, communicator::Error>;

/// Trains on two devices, and measures the accuracy on one and on two, with our function and with the learner's. Fails when the
/// answer does.
pub fn run(accuracy: Answer) -> Result<(), Box<dyn Error>> {
    let data = LoadedData { test: LoadedData::draw((Some(1), None)).test, ..images() };
    let [one, two] = [DevicePlan::slices(1)?, DevicePlan::slices(2)?];
    let method = Method::AllReduce(Algorithm::default());
    let trained = method.train(&data, &OPTIONS, DType::F32, &two, &mut Report::silent())?;
    let trained_model = Lenet::new(OPTIONS.seed, DType::F32, &Device::Cpu)?;
    for (parameter, (_, value)) in trained_model.parameters().iter().zip(&trained.weights) {
        parameter.value.set(value)?;
    }
    // The accuracy of the first rank, the seconds of the slowest, and the bytes of all messages.
    let measure = |plan: &DevicePlan, work: Work<'_>| {
        let found = run_ranks(plan, TIMEOUT, |rank| {
            let model =
                Lenet::with_parameters(get_params(trained_model.parameters(), rank.device())?)?;
            let (before, begin) = (rank.traffic().bytes, Instant::now());
            let found = work(rank, &model)?;
            Ok::<_, communicator::Error>((found, begin.elapsed(), rank.traffic().bytes - before))
        });
        found.map(|ranks| {
            let slowest = ranks.iter().map(|&(_, time, _)| time).max().unwrap_or_default();
            (ranks[0].0, slowest, ranks.iter().map(|&(.., bytes)| bytes).sum::<u64>())
        })
    };
    let ours: Work<'_> = &|rank, model| {
        let sums: Result<BatchSums, communicator::Error> = evaluate_together(rank, |part| {
            Ok(evaluate_part(model, &data.test, part, DType::F32, rank.device())?)
        });
        Ok(sums?.accuracy())
    };
    let yours: Work<'_> = &|rank, model| {
        let (logits, labels) = outputs(model, &data, part_of(rank), rank.device())?;
        accuracy(&Peer(rank.into()), &logits, &labels)
    };
    let mut table = Table::new(&format!("{} test images", data.test.len()));
    table = table.column("accuracy", 0).column("ms", 0).column("bytes sent", 0);
    let mut found = Vec::new();
    for (name, plan, work) in [
        ("one device", &one, ours),
        ("ours, 2 devices", &two, ours),
        ("yours, 2 devices", &two, yours),
    ] {
        let (accuracy, time, bytes) = measure(plan, work)?;
        found.push(accuracy);
        let ms = format!("{:.0}", time.as_secs_f64() * 1e3);
        table.row([name.to_owned(), format!("{accuracy:.4}"), ms, bytes.to_string()]);
    }
    line(table.text(columns()))?;
    let apart = found[2] - found[1];
    Ok(paragraph(match apart == 0.0 {
        true => "Your accuracy is ours. We send more bytes, because we also add up the loss of each batch.".to_owned(),
        false => format!(
            "Your accuracy is {apart:+.4} away from ours. The run ends without an error all the same."
        ),
    })?)
}

/// Evaluates on a rank, with its replica.
type Work<'a> = &'a (dyn Fn(&Rank, &Lenet) -> Result<f64, communicator::Error> + Sync);

/// The logits (f64) and the labels of a part of the test images.
fn outputs(
    model: &Lenet,
    data: &LoadedData,
    part: Part,
    device: &Device,
) -> candle_core::Result<(Tensor, Tensor)> {
    let (mut logits, mut labels) = (Vec::new(), Vec::new());
    part.evaluate(data.test.len(), BATCH, |samples| {
        let batch = data.test.batch(samples, DType::F32)?.to_device(device)?;
        logits.push(no_grad(|| model.forward(&batch.images))?.to_dtype(DType::F64)?);
        labels.push(batch.labels);
        Ok::<_, candle_core::Error>(BatchSums::default())
    })?;
    Ok((Tensor::cat(&logits, 0)?, Tensor::cat(&labels, 0)?))
}
