//! One stage of a pipeline as a model that stage 5's loop trains.

use std::cell::RefCell;
use std::collections::HashMap;
use std::time::Instant;

use candle_core::ModuleT;
use concise_wrapper::ddp::alike;
use concise_wrapper::evaluate::{allreduce_by_batch, part_of};
use concise_wrapper::model::Step;
use concise_wrapper::optimizer::Momentum;
use concise_wrapper::weights::{Snapshot, Weights};
use concise_wrapper::{Error, Model, Network, allreduce_sums, replicas, text};
use datasets::Dataset;
use harness::records::BatchSums;
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::{self, SharedCommunicator};
use split_batch::loader::{LocalBatch, Shards};

use super::check::Checked;
use super::timeline::Timeline;
use super::worker::{Done, Worker};
use crate::held::Held;
use crate::mesh::{Axis, Mesh};
use crate::whole::{Whole, gathered};

/// The most steps of which a timeline is kept.
const MOST_STEPS: usize = 200;

/// One rank of a mesh of pipelines.
///
/// It is a [`Model`]: stage 5's loop trains it, every rank the layers of its stage. The schedule's `Update` hands
/// the gradients over, and the loop's optimiser uses them.
pub struct PipelineParallel<'a, M> {
    worker: Worker<'a, M>,
    /// All ranks of the mesh.
    all: SharedCommunicator,
    /// Those of this rank's pipeline.
    pipeline: SharedCommunicator,
    /// Those that hold this stage in all replicas.
    replicas: SharedCommunicator,
    hosts: Shards,
    measured: RefCell<Measured>,
}

/// What the steps so far have shown of one stage.
#[derive(Default)]
struct Measured {
    steps: Vec<Timeline>,
    gradients: usize,
    activations: usize,
}

impl<'a, M: ModuleT> PipelineParallel<'a, M> {
    /// One stage on one rank of `mesh`; all its ranks call this together.
    ///
    /// `network` has the layers of this rank's stage, and `sample` is the shape of one sample of the data. Every
    /// batch is cut into as many shards as there are replicas times micro-batches: a replica's shards are the
    /// micro-batches of its pipeline.
    ///
    /// # Errors
    ///
    /// When the mesh has another number of devices than there are ranks, or cuts layers into parts; those of
    /// [`Worker::new`]; when replicas have networks of different structure; and when two stages have a tensor of one name.
    pub fn new(
        checked: &'a Checked,
        network: Network<M>,
        all: SharedCommunicator,
        mesh: Mesh,
        sample: &[usize],
    ) -> Result<Self, Error> {
        if mesh.tensor > 1 {
            let text = format!("mesh {mesh}: the layers of a pipeline are not cut into parts");
            return Err(candle_core::Error::Msg(text).into());
        }
        let pipeline = mesh.along(&all, Axis::Pipeline)?;
        let replicas = mesh.along(&all, Axis::Data)?;
        alike::structure(&replicas, network.weights())?;
        each_in_one_stage(&pipeline, network.weights())?;
        let replica = replicas.rank();
        let each = checked.schedule().micro_batches;
        let hosts = Shards { held: replica * each..(replica + 1) * each, of: mesh.data * each };
        // From here on all clocks count from the same moment.
        all.barrier()?;
        let origin = Instant::now();
        let worker = Worker::new(checked, network, pipeline.clone(), sample, origin)?;
        let worker = worker.replicated(replicas.clone())?;
        Ok(Self { worker, all, pipeline, replicas, hosts, measured: RefCell::default() })
    }

    /// The timelines of the first steps, all stages of a pipeline together, on its first stage; nothing on the
    /// others. All ranks call this together.
    ///
    /// # Errors
    ///
    /// When another rank stops or stalls.
    pub fn timelines(&self) -> Result<Vec<Timeline>, communicator::Error> {
        let of_stages = text::values_gathered(&*self.pipeline, &self.measured.borrow().steps)?;
        let steps = of_stages.iter().map(Vec::len).min().unwrap_or(0);
        let joined =
            |step: usize| Timeline::joined(of_stages.iter().map(|steps| steps[step].clone()));
        Ok((0..steps).map(joined).collect())
    }

    /// What this device has held so far.
    pub fn held(&self, constants: Momentum) -> Held {
        let Measured { gradients, activations, .. } = *self.measured.borrow();
        Held { gradients, ..Held::new(self.weights(), constants, activations) }
    }

    /// Loss and correct answers of all micro-batches of all replicas, and whether anybody asks for an end; the
    /// same on all ranks.
    fn sums_of_all(&self, mine: Option<BatchSums>) -> Result<BatchSums, communicator::Error> {
        let mine = mine.unwrap_or_else(BatchSums::of_no_samples);
        allreduce_sums(&*self.all, mine, Algorithm::OneShot)
    }
}

/// Makes sure that no tensor is in two stages, which would train it as two. All ranks of a pipeline call this together; its
/// first finds out, and the others hear of it.
fn each_in_one_stage(pipeline: &SharedCommunicator, weights: &Weights) -> Result<(), Error> {
    let mine: Vec<String> = weights.iter().map(|named| named.name.clone()).collect();
    let mut seen = HashMap::new();
    for (stage, names) in text::values_gathered(&**pipeline, &mine)?.into_iter().enumerate() {
        for name in names {
            if let Some(first) = seen.insert(name.clone(), stage) {
                let told =
                    format!("{name} is in stages {first} and {stage}: each would train its own");
                return Err(candle_core::Error::Msg(told).into());
            }
        }
    }
    Ok(())
}

impl<M: ModuleT> Model for PipelineParallel<'_, M> {
    fn hosts(&self) -> Shards {
        self.hosts.clone()
    }

    fn backward(&self, share: &LocalBatch) -> Result<Step, Error> {
        let mut of_stage = Vec::new();
        let done = self.worker.step(share, |_, gradients, _| {
            of_stage = gradients.to_vec();
            Ok(())
        });
        let Done { sums, timeline, activation_bytes, gradient_bytes } = done?;
        let measured = &mut *self.measured.borrow_mut();
        measured.activations = measured.activations.max(activation_bytes);
        measured.gradients = measured.gradients.max(gradient_bytes);
        if measured.steps.len() < MOST_STEPS {
            measured.steps.push(timeline);
        }
        Ok(Step { sums: self.sums_of_all(sums)?.into(), gradients: of_stage })
    }

    fn weights(&self) -> &Weights {
        self.worker.network().weights()
    }

    fn rank(&self) -> Option<&SharedCommunicator> {
        Some(&self.all)
    }

    /// All replicas share it, after they were found to be equal; the first rank gets the result.
    fn evaluate(&self, images: &Dataset) -> Result<Option<BatchSums>, Error> {
        replicas::compare::<Error>(&*self.replicas, || self.weights().snapshot())?;
        let of_pipeline = self.worker.evaluate(images, part_of(&*self.replicas))?;
        let of_all = allreduce_by_batch(&*self.all, of_pipeline)?;
        Ok((self.all.rank() == 0).then(|| of_all.total()))
    }
}

impl<M: ModuleT> Whole for PipelineParallel<'_, M> {
    /// On the first stage of every replica.
    fn whole(&self, mine: Snapshot) -> Result<Option<Snapshot>, Error> {
        Ok(gathered(&*self.pipeline, mine)?)
    }
}
