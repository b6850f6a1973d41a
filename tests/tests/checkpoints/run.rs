//! The run that is cut, and how two of them are compared.

use std::path::Path;

use checkpoints::{Checkpoints, Configuration, Resume};
use concise_wrapper::train::Trained;
use concise_wrapper::{Error, Store};
use harness::records::EpochRecord;
use tempfile::TempDir;

use super::watched::{Event, Watched};
use crate::prelude::{self, *};

pub(crate) const STEPS: usize = 6;

pub(crate) fn lenet() -> Network<LeNet> {
    prelude::lenet(DType::F32)
}

pub(crate) fn resnet18() -> Network<ResNet18> {
    prelude::resnet18(DType::F32)
}

/// What makes a run; a test changes a copy.
#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) data: LoadedData,
    pub(crate) options: TrainOptions,
    pub(crate) extras: Extras,
    pub(crate) optimizer: fn(Momentum) -> Box<dyn Optimizer>,
    pub(crate) checkpoints: Option<Checkpoints>,
}

impl Settings {
    pub(crate) fn new() -> Self {
        Self {
            data: LoadedData {
                name: "noise".to_owned(),
                train: noisy_images(400..416),
                test: noisy_images(500..505),
            },
            options: TrainOptions { epochs: 2, batch_size: 7, learning_rate: 0.05, seed: 5 },
            extras: Extras {
                constants: Momentum { momentum: 0.9, weight_decay: 1e-3 },
                warm_up: 5,
            },
            optimizer: |constants| Box::new(Sgd::new(constants)),
            checkpoints: None,
        }
    }

    /// With AdamW, of the same weight decay.
    pub(crate) fn adamw(mut self) -> Self {
        self.optimizer =
            |Momentum { weight_decay, .. }| Box::new(AdamW { weight_decay, ..AdamW::default() });
        self
    }

    /// With checkpoints in a folder: at the end only, unless the run is interrupted.
    pub(crate) fn keeping(folder: &TempDir) -> Self {
        Self::keeping_in(folder.path())
    }

    pub(crate) fn keeping_in(folder: &Path) -> Self {
        let checkpoints = Checkpoints {
            folder: folder.join("made"),
            every: 1000,
            keep: 3,
            resume: None,
            scale: 1,
            configuration: Configuration(vec![("model".to_owned(), "a network".to_owned())]),
        };
        Self { checkpoints: Some(checkpoints), ..Self::new() }
    }

    pub(crate) fn every(mut self, every: usize) -> Self {
        self.checkpoints.as_mut().unwrap().every = every;
        self
    }

    pub(crate) fn resume(&self, resume: Resume) -> Self {
        let mut settings = self.clone();
        settings.checkpoints.as_mut().unwrap().resume = Some(resume);
        settings
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.checkpoints.as_ref().unwrap().folder
    }

    pub(crate) fn train(&self, model: &impl Model) -> Result<Trained, Error> {
        let Self { data, options, extras: Extras { constants, warm_up }, .. } = self;
        let checkpoints = self.checkpoints.as_ref().map(|it| it as &dyn Store);
        let mut optimizer = (self.optimizer)(*constants);
        let (optimizer, report) = (&mut *optimizer, &mut Report::silent());
        train(model, data, options, (optimizer, *warm_up), checkpoints, report, |_| Ok(()))
    }

    pub(crate) fn ddp<M: ModuleT + Send + Sync + 'static>(
        &self,
        network: &Network<M>,
        ranks: usize,
        reduction: Reduction,
        event: Cut,
    ) -> Result<Trained, String> {
        let plan = DevicePlan::slices(ranks).unwrap();
        let outcomes = run_ranks(&plan, WAIT, |rank| {
            let model = Ddp::new(network.replica(rank.device())?, rank, reduction)?;
            self.train(&cut(model, event))
        });
        let mut outcomes = outcomes.map_err(|failure| failure.to_string())?;
        let first = hash(&outcomes[0]);
        assert!(outcomes.iter().all(|outcome| hash(outcome) == first), "all replicas are equal");
        Ok(outcomes.swap_remove(0))
    }
}

pub(crate) fn hash(trained: &Trained) -> WeightsHash {
    WeightsHash::new(&trained.weights).unwrap()
}

pub(crate) fn measured(trained: &Trained) -> Vec<EpochRecord> {
    let timeless =
        |record: &EpochRecord| EpochRecord { seconds: 0.0, images_per_second: 0.0, ..*record };
    trained.records.iter().map(timeless).collect()
}

#[track_caller]
pub(crate) fn assert_same(found: &Trained, expected: &Trained, told: &str) {
    assert_eq!(hash(found), hash(expected), "weights, {told}");
    assert_eq!(measured(found), measured(expected), "records, {told}");
    assert_eq!(found.records.len(), 2, "{told}");
}

pub(crate) fn file(step: usize) -> String {
    format!("step-{step:08}.safetensors")
}

/// An event in one step, counted from 1.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cut(pub(crate) usize, pub(crate) Event);

impl Cut {
    pub(crate) const NEVER: Self = Self(0, Event::Nothing);

    pub(crate) fn at(self, step: usize) -> Event {
        if step == self.0 { self.1 } else { Event::Nothing }
    }
}

pub(crate) fn cut<M: Model>(model: M, cut: Cut) -> Watched<Box<M>, impl Fn(usize) -> Event> {
    Watched::new(Box::new(model), move |step| cut.at(step))
}

/// The steps that a model has made.
pub(crate) fn steps<M, F>(model: &Watched<M, F>) -> usize {
    model.losses.borrow().len()
}
