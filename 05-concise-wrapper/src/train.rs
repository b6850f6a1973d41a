//! The training loop, written once for a model on one device and for a model on many.

use datasets::loader::Epochs as _;
use datasets::source::LoadedData;
use harness::records::{TrainOptions, TrainerState};
use harness::report::Report;
pub use single_gpu::train::Trained;
use split_batch::loader::ShardLoader;
use trainer::TrainingRun;

use crate::model::{Model, Progress};
use crate::optimizer::{Optimizer, Schedule};
use crate::{Error, Store, resume};

// ANCHOR: train
/// Trains a model, plain or wrapped. With a [`Ddp`](crate::Ddp) model all ranks call this together.
///
/// With `checkpoints` the run may resume an earlier run. Its result then has the records of both. `observe` is called before
/// the first step, after each update, and at the end: `|_| Ok(())` observes nothing.
///
/// Returns the first failure of a step, an evaluation, a checkpoint, a report or `observe`. Fails when the loss is not finite,
/// the state of a checkpoint is not, or ranks were not started alike.
pub fn train(
    model: &impl Model,
    data: &LoadedData,
    options: &TrainOptions,
    (optimizer, warm_up): (&mut dyn Optimizer, usize),
    checkpoints: Option<&dyn Store>,
    report: &mut Report<'_>,
    mut observe: impl FnMut(Progress<'_>) -> Result<(), Error>,
) -> Result<Trained, Error> {
    let weights = model.weights();
    let (folder, start) =
        resume::begin(model, (optimizer, warm_up), data, options, checkpoints, report)?;
    let TrainOptions { batch_size, seed, learning_rate: rate, .. } = *options;
    let (schedule, dtype) = (Schedule { rate, warm_up }, weights.precision.weights());
    let batches = ShardLoader::new(&data.train, batch_size, seed, dtype, model.hosts());
    let mut steps = start.steps(batches.batches_per_epoch());
    let length = (batches.batches_per_epoch(), options.epochs);
    let keep = |state: Option<&TrainerState>, optimizer: &dyn Optimizer| {
        let (Some(store), Some(state)) = (checkpoints, state) else { return Ok(()) };
        let Some(file) = store.flags().due(state, length) else { return Ok(()) };
        resume::write(store, folder.as_ref(), (&file, state), model, optimizer)
    };
    observe(Progress { steps, last: None })?;

    let mut run = TrainingRun::resume(options, &batches, report, start);
    while run.next_epoch()? {
        while let Some(batch) = run.next_batch()? {
            let step = model.step(&batch, optimizer, schedule.rate(steps))?;
            steps += 1;
            observe(Progress { steps, last: Some((&batch, &step)) })?;
            // A checkpoint has the sums of all steps before it.
            let sums = if checkpoints.is_some() { step.sums.read()?.into() } else { step.sums };
            keep(run.step_done(sums)?, optimizer)?;
        }
        let interrupted = run.epoch_done(model.evaluate(&data.test)?)?;
        keep(interrupted.as_ref(), optimizer)?;
    }
    observe(Progress { steps, last: None })?;
    Ok(Trained { records: run.into_records(), weights: weights.snapshot()? })
}
// ANCHOR_END: train

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};
    use datasets::{CLASSES, Dataset, PIXELS};
    use devices::DevicePlan;
    use model_state::weights_hash::WeightsHash;
    use ops::difference::largest_difference;
    use params_and_allreduce::communicator::Communicator as _;
    use params_and_allreduce::thread::{DEFAULT_TIMEOUT, run_ranks};

    use super::*;
    use crate::ddp::Reduction;
    use crate::optimizer::{Momentum, Sgd};
    use crate::{Ddp, Network};

    /// The observer sees every step, and the weights after its update.
    #[test]
    fn each_step_is_observed_after_its_update() {
        let images = Dataset::new(vec![[100; PIXELS]; 6], vec![3; 6]).unwrap();
        let data = LoadedData { name: String::new(), train: images.clone(), test: images.clone() };
        let network = || {
            let build = |vb: &candle_nn::VarBuilder<'_>, _: &_| {
                let layer = candle_nn::linear(PIXELS, CLASSES, vb.clone())?;
                Ok(candle_nn::seq().add_fn(|x| x.flatten_from(1)).add(layer))
            };
            Network::new(1, DType::F64, &Device::Cpu, build).unwrap()
        };
        let hash = |weights: &crate::weights::Weights| {
            WeightsHash::new(&weights.snapshot().unwrap()).unwrap()
        };
        let model = network();
        let mut expected = vec![(0, false, hash(model.weights()))];
        let mut sgd = Sgd::new(Momentum::default());
        for batch in ShardLoader::new(&images, 2, 1, DType::F64, model.hosts()).epoch(1) {
            let batch = batch.unwrap();
            let step = model.backward(&batch).unwrap();
            sgd.step(model.weights(), &step.gradients, 0.1, batch.samples).unwrap();
            expected.push((expected.len(), true, hash(model.weights())));
        }
        assert!(expected.windows(2).all(|pair| pair[0].2 != pair[1].2), "every step changes them");
        expected.push((3, false, expected[3].2));

        let model = network();
        let options = TrainOptions { epochs: 1, batch_size: 2, learning_rate: 0.1, seed: 1 };
        let (sgd, mut seen) = (&mut Sgd::new(Momentum::default()), Vec::new());
        let observe = |Progress { steps, last }: Progress<'_>| {
            seen.push((steps, last.is_some(), hash(model.weights())));
            Ok(())
        };
        train(&model, &data, &options, (sgd, 0), None, &mut Report::silent(), observe).unwrap();
        assert_eq!(seen, expected);
    }

    /// Three windows of four tokens in batches of two: the last batch leaves a rank without a window.
    #[test]
    fn a_text_trains_alike_on_one_rank_and_on_two_and_tokens_are_the_divisor() {
        let text = |bytes: std::ops::Range<u8>| Dataset::text(bytes.collect(), 4).unwrap();
        let data = LoadedData { name: String::new(), train: text(0..16), test: text(3..20) };
        let options = TrainOptions { epochs: 2, batch_size: 2, learning_rate: 0.5, seed: 1 };
        let network = || {
            let build = |vb: &candle_nn::VarBuilder<'_>, _: &_| {
                let table = vb.get((256, 256), "table")?;
                Ok(candle_nn::func(move |tokens| ops::embedding(tokens, &table)?.flatten(0, 1)))
            };
            Network::new(1, DType::F64, &Device::Cpu, build).unwrap()
        };
        let (sgd, mut divisors) = (&mut Sgd::new(Momentum::default()), Vec::new());
        let observe = |now: Progress<'_>| {
            divisors.extend(now.last.map(|(batch, _)| batch.samples));
            Ok(())
        };
        let silent = &mut Report::silent();
        let one = train(&network(), &data, &options, (sgd, 0), None, silent, observe).unwrap();
        assert_eq!(divisors, [8, 4, 8, 4]);
        assert!(one.records.iter().all(|it| it.part == 1.0 && it.test_loss.is_finite()));
        let (plan, whole) = (DevicePlan::slices(2).unwrap(), network());
        let both = run_ranks(&plan, DEFAULT_TIMEOUT, |rank| {
            let model = Ddp::new(whole.replica(rank.device())?, rank, Reduction::default())?;
            let (sgd, silent) = (&mut Sgd::new(Momentum::default()), &mut Report::silent());
            train(&model, &data, &options, (sgd, 0), None, silent, |_| Ok(()))
        });
        for two in both.unwrap() {
            assert!(largest_difference(&two.weights, &one.weights).unwrap() < 1e-12);
            for (two, one) in two.records.iter().zip(&one.records) {
                assert!((two.train_loss - one.train_loss).abs() < 1e-12);
                assert_eq!((two.test_accuracy, two.part), (one.test_accuracy, one.part));
            }
        }
    }
}
