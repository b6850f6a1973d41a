//! A training that is short enough to be repeated with many settings.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use candle_core::{DType, Result};
use datasets::loader::{Epochs as _, Loader};
use datasets::{Batch, Dataset};
use devices::DevicePlan;
use harness::lock::locked;
use params_and_allreduce::communicator::{Communicator as _, Error};
use params_and_allreduce::thread::{Rank, RankFailure, run_ranks};

use crate::classifier::{weights_worked_with, worked};

/// How long a rank waits for another: far longer than any of these steps takes.
const WAIT: Duration = Duration::from_secs(5);

/// The settings of all runs of an experiment.
#[derive(Clone, Debug)]
pub struct Experiment {
    /// The images to train on.
    pub train: Dataset,
    /// The images to measure on.
    pub test: Batch,
    /// Samples in a batch, over all devices.
    pub global_batch: usize,
    /// Passes over the training images.
    pub epochs: usize,
    /// Decides initial weights and shuffles.
    pub seed: u64,
    /// The runs so far. Clones share the list.
    pub runs: Arc<Mutex<Vec<Run>>>,
    /// A rank that fails before it begins.
    pub fails: Option<usize>,
    /// The ranks that returned a result although another rank had failed. Clones share the list.
    pub went_on: Arc<Mutex<Vec<usize>>>,
}

/// One call of [`Experiment::on_devices`] that succeeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The number of devices.
    pub devices: usize,
    /// The number of messages between the devices.
    pub messages: u64,
    /// The number of samples of all gradients, added up over the devices.
    pub samples: usize,
    /// Whether all devices computed their gradients with the same weights, to the last bit.
    pub replicas_agree: bool,
}

impl Experiment {
    /// The batches of an epoch, shuffled, in CPU memory: the same on every rank.
    pub fn batches(&self, epoch: usize) -> Result<Vec<Batch>> {
        Loader::new(&self.train, self.global_batch, self.seed, DType::F64).epoch(epoch).collect()
    }

    /// Runs `work` on `devices` slices of the CPU, one core each, and returns the results in rank order.
    /// Returns the failure of the rank that failed first.
    pub fn on_devices<R: Send>(
        &self,
        devices: usize,
        work: impl Fn(&Rank) -> std::result::Result<R, Error> + Sync,
    ) -> std::result::Result<Vec<R>, RankFailure<Error>> {
        let plan = DevicePlan::slices(devices);
        let in_rank_0 = |error| RankFailure::new(0, Error::Tensor(candle_core::Error::wrap(error)));
        let results = run_ranks(&plan.map_err(in_rank_0)?, WAIT, |rank| {
            worked();
            weights_worked_with();
            if self.fails == Some(rank.rank()) {
                return Err(Error::Other("the device is gone".to_owned()));
            }
            let result = work(rank)?;
            if self.fails.is_some_and(|fails| fails < devices) {
                locked(&self.went_on).push(rank.rank());
            }
            let samples: usize = worked().iter().sum();
            Ok::<_, Error>((result, rank.traffic().messages, samples, weights_worked_with()))
        })?;
        let messages = results.iter().map(|(_, messages, ..)| messages).sum();
        let samples = results.iter().map(|(_, _, samples, _)| samples).sum();
        let replicas_agree = results.windows(2).all(|pair| pair[0].3 == pair[1].3);
        locked(&self.runs).push(Run { devices, messages, samples, replicas_agree });
        Ok(results.into_iter().map(|(result, ..)| result).collect())
    }
}

/// One run: its settings, and its measurements on the test images.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Row {
    /// The learning rate.
    pub learning_rate: f64,
    /// The number of devices.
    pub devices: usize,
    /// The mean loss of a test image.
    pub loss: f64,
    /// The share of test images that were classified correctly, 0 to 1.
    pub accuracy: f64,
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { learning_rate, devices, loss, accuracy } = self;
        let on = if *devices == 1 { "device" } else { "devices" };
        write!(f, "rate {learning_rate} on {devices} {on}: loss {loss:.6}, accuracy {accuracy:.3}")
    }
}

#[cfg(test)]
mod tests {
    use datasets::PIXELS;
    use ops::parameters::overwrite;
    use params_and_allreduce::Algorithm;
    use single_gpu::train::Step;

    use super::*;
    use crate::classifier::Classifier;

    fn experiment() -> Experiment {
        let train = Dataset::new(vec![[0; PIXELS]; 10], (0..10).collect()).unwrap();
        let test = train.batch(&[0], DType::F64).unwrap();
        let (runs, went_on) = Default::default();
        Experiment { train, test, global_batch: 4, epochs: 2, seed: 1, runs, fails: None, went_on }
    }

    #[test]
    fn every_epoch_has_all_images_in_batches_and_an_order_of_its_own() {
        let experiment = experiment();
        let labels = |epoch| {
            let batches = experiment.batches(epoch).unwrap();
            assert_eq!(batches.iter().map(Batch::len).collect::<Vec<_>>(), [4, 4, 2]);
            let labels = batches.iter().map(|batch| batch.labels.to_vec1::<u32>().unwrap());
            labels.collect::<Vec<_>>().concat()
        };
        let mut sorted = labels(0);
        sorted.sort_unstable();
        assert_eq!(sorted, (0..10).collect::<Vec<_>>());
        assert_eq!(labels(1), labels(1));
        assert_ne!(labels(0), labels(1));
    }

    #[test]
    fn devices_answer_in_rank_order_and_their_messages_and_samples_are_counted() {
        let experiment = experiment();
        let ranks = experiment.on_devices(3, |rank| Ok((rank.rank(), rank.world_size())));
        assert_eq!(ranks.unwrap(), [(0, 3), (1, 3), (2, 3)]);
        let sum =
            |rank: &Rank| rank.all_reduce(&experiment.test.images, Algorithm::OneShot).map(|_| ());
        experiment.on_devices(2, sum).unwrap();
        let gradients = |rank: &Rank| {
            Ok(Classifier::new(1, rank.device())?
                .gradients(&experiment.batches(0)?[rank.rank()])?)
        };
        experiment.on_devices(3, gradients).unwrap();
        let runs = experiment.runs.lock().unwrap().clone();
        let run =
            |devices, messages, samples| Run { devices, messages, samples, replicas_agree: true };
        assert_eq!(runs, [run(3, 0, 0), run(2, 2, 0), run(3, 0, 4 + 4 + 2)]);
    }

    #[test]
    fn replicas_that_part_are_told() {
        let experiment = experiment();
        let gradients = |rank: &Rank| {
            let model = Classifier::new(rank.rank() as u64, rank.device())?;
            Ok(model.gradients(&experiment.test)?)
        };
        experiment.on_devices(2, gradients).unwrap();
        assert!(!experiment.runs.lock().unwrap()[0].replicas_agree);
    }

    /// With shards of a fixed size, for example, the last rank may have no sample of the last batch.
    #[test]
    fn a_replica_without_samples_agrees() {
        let experiment = experiment();
        let gradients = |rank: &Rank| {
            let model = Classifier::new(1, rank.device())?;
            for step in 0..2 {
                let samples: &[u32] = if (rank.rank(), step) == (1, 1) { &[] } else { &[0] };
                let Step { gradients, .. } =
                    model.gradients(&experiment.train.batch(samples, DType::F64)?)?;
                let everywhere = gradients[1].ones_like()?;
                overwrite(model.parameters()[1].value.as_tensor(), &everywhere)?;
            }
            Ok(())
        };
        experiment.on_devices(2, gradients).unwrap();
        assert!(experiment.runs.lock().unwrap()[0].replicas_agree);
    }

    #[test]
    fn a_failure_names_its_rank_and_is_no_run() {
        let experiment = experiment();
        let failure = experiment.on_devices(2, |rank| match rank.rank() {
            0 => Ok(()),
            _ => Err(Error::Tensor(candle_core::Error::Msg("on purpose".to_owned()))),
        });
        assert_eq!(failure.unwrap_err().rank, 1);
        assert_eq!(experiment.on_devices(0, |_| Ok(())).unwrap_err().rank, 0);
        assert!(experiment.runs.lock().unwrap().is_empty());
    }

    #[test]
    fn whoever_goes_on_without_a_rank_is_known() {
        let experiment = Experiment { fails: Some(1), ..experiment() };
        let sum = |rank: &Rank| rank.all_reduce(&experiment.test.images, Algorithm::OneShot);
        let failure = experiment.on_devices(2, |rank| sum(rank).map(|_| ())).unwrap_err();
        assert_eq!(failure.rank, 1);
        assert!(experiment.went_on.lock().unwrap().is_empty());
        experiment.on_devices(2, |rank| Ok(sum(rank).is_ok())).unwrap_err();
        assert_eq!(*experiment.went_on.lock().unwrap(), [0]);
    }
}
