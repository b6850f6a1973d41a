//! A model whose weights after the first step are remembered: there no rounding has been amplified yet.

use std::cell::{Cell, RefCell};

use candle_core::Tensor;
use concise_wrapper::weights::{Snapshot, Weights};
use concise_wrapper::{Error, Model, Precision};
use datasets::Dataset;
use harness::records::BatchSums;
use params_and_allreduce::communicator::SharedCommunicator;
use single_gpu::train::Step;
use split_batch::loader::{LocalBatch, Shards};
use trainer::StepSums;

/// A model, and its weights after the first step.
pub(crate) struct Watched<'a, M> {
    model: &'a M,
    steps: Cell<usize>,
    after_first: RefCell<Option<Snapshot>>,
}

impl<'a, M: Model> Watched<'a, M> {
    pub(crate) fn new(model: &'a M) -> Self {
        Self { model, steps: Cell::new(0), after_first: RefCell::new(None) }
    }

    /// Before a step: the second one finds what the first has left.
    fn look(&self) -> candle_core::Result<()> {
        if self.steps.get() == 1 {
            self.after_first.replace(Some(self.model.weights().snapshot()?));
        }
        self.steps.set(self.steps.get() + 1);
        Ok(())
    }

    /// This rank's weights after the first step.
    pub(crate) fn after_first_step(&self) -> candle_core::Result<Snapshot> {
        match self.after_first.take() {
            Some(weights) => Ok(weights),
            // There was no second one.
            None => self.model.weights().snapshot(),
        }
    }
}

impl<M: Model> Model for Watched<'_, M> {
    fn hosts(&self) -> Shards {
        self.model.hosts()
    }

    fn backward(&self, share: &LocalBatch) -> Result<Step, Error> {
        self.look()?;
        self.model.backward(share)
    }

    fn backward_deferred(&self, share: &LocalBatch) -> Result<(StepSums, Vec<Tensor>), Error> {
        self.look()?;
        self.model.backward_deferred(share)
    }

    fn begins_after(&self, steps: usize) {
        self.model.begins_after(steps);
    }

    fn ends(&self) -> Result<(), Error> {
        self.model.ends()
    }

    fn precision(&self) -> Precision {
        self.model.precision()
    }

    fn weights(&self) -> &Weights {
        self.model.weights()
    }

    fn rank(&self) -> Option<&SharedCommunicator> {
        self.model.rank()
    }

    fn is_whole(&self) -> bool {
        self.model.is_whole()
    }

    fn evaluate(&self, images: &Dataset) -> Result<Option<BatchSums>, Error> {
        self.model.evaluate(images)
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};
    use concise_wrapper::optimizer::{Momentum, Sgd};
    use datasets::loader::Epochs as _;
    use datasets::{CLASSES, PIXELS};
    use model_parallel::layers::Layers;
    use ops::weights_hash::WeightsHash;
    use split_batch::loader::ShardLoader;

    use super::*;

    #[test]
    fn the_weights_after_the_first_step_are_watched() {
        let data = Dataset::new(vec![[100; PIXELS]; 6], vec![3; 6]).unwrap();
        let layers = Layers::dense(&[PIXELS, CLASSES]).unwrap();
        for steps in 1..=3 {
            let network = layers.build(0..1, 1, DType::F64, &Device::Cpu).unwrap();
            let watched = Watched::new(&network);
            let shares = ShardLoader::new(&data, 2, 1, DType::F64, watched.hosts());
            let mut sgd = Sgd::new(Momentum::default());
            let mut hashes = Vec::new();
            for share in shares.epoch(1).take(steps) {
                let share = share.unwrap();
                // As the loop does.
                let (_, gradients) = watched.backward_deferred(&share).unwrap();
                sgd.step(watched.weights(), &gradients, 0.1, share.samples).unwrap();
                hashes.push(WeightsHash::new(&watched.weights().snapshot().unwrap()).unwrap());
            }
            let after_first = WeightsHash::new(&watched.after_first_step().unwrap()).unwrap();
            assert_eq!(after_first, hashes[0], "{steps} steps");
            assert!(hashes.windows(2).all(|pair| pair[0] != pair[1]), "every step changes them");
        }
    }
}
