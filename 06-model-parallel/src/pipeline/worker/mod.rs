//! The worker: one stage of a pipeline executes its list of instructions.
//!
//! A worker knows no kinds of schedules. [`check`](super::check()) has made sure that everything that an instruction
//! needs is there, and that no stage waits for ever.
//!
//! # The sum over micro-batches
//!
//! Each schedule computes the gradients of micro-batches in another order. Sums in the order of arrival would have
//! different bits. A worker therefore adds gradients along one tree over the numbers of the micro-batches, stage 4's
//! [`TreeSum`](scratch_data_parallel::TreeSum). With the shards as micro-batches the sum has the bits of reproducible data parallelism.
//!
//! # Batch norm
//!
//! No stage has the whole batch at one time. A batch norm normalises each micro-batch by its own statistics, as in
//! GPipe (Huang et al., arXiv 1811.06965, section 2.2). The running statistics, which evaluation uses, move once a
//! step, by the mean over all micro-batches, weighted by their sizes. This is stage 5's batch norm by shard
//! ([`Norms::by_shard`](concise_wrapper::batch_norm::Norms::by_shard)).
//!
//! - The cut, the schedule and the number of replicas change no bit of the weights and of the running statistics.
//! - The number of micro-batches changes them, and not by rounding: one device that has the whole batch trains another
//!   function. Statistics of smaller micro-batches have more noise.
//! - A running variance is the mean of the micro-batches' variances, estimated by n − 1. The variance of the whole
//!   batch also contains the spread between the means of the micro-batches.

mod evaluate;
mod step;

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use candle_core::{DType, Module as _, ModuleT, Shape, Tensor};
use concise_wrapper::ddp::alike;
use concise_wrapper::evaluate::{allreduce_by_batch, part_of};
use concise_wrapper::model::Step;
use concise_wrapper::weights::{Snapshot, Weights};
use concise_wrapper::{Error, Model, Network, allreduce_sums, replicas, text};
use datasets::Dataset;
use harness::records::BatchSums;
use ops::backward::no_grad;
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::{self, SharedCommunicator};
use scratch_data_parallel::FixedTree;
use split_batch::loader::{LocalBatch, Shards};

use super::check::Checked;
use super::schedule::{Action, Instruction, Message, Place, Schedule};
use super::timeline::{Span, Timeline};
use crate::held::{Whole, gathered};
use crate::mesh::{Axis, Mesh};
use step::StepState;

/// The largest number of timelines that a worker keeps.
const MOST_STEPS: usize = 200;

/// One stage of a pipeline, on one rank of a mesh of pipelines.
///
/// A worker is a [`Model`]: stage 5's loop trains the weights of the stage. The loop's optimiser uses the gradients
/// that the instruction `Update` has added up.
pub struct Worker<'a, M> {
    checked: &'a Checked,
    stage: usize,
    chunks: Vec<Chunk<M>>,
    /// The weights of all chunks.
    weights: Weights,
    /// All ranks of the mesh.
    all: SharedCommunicator,
    /// The stages of this pipeline.
    pipeline: SharedCommunicator,
    /// The ranks that hold this stage in other pipelines.
    replicas: SharedCommunicator,
    hosts: Shards,
    /// The tree over the micro-batches of all pipelines.
    tree: FixedTree,
    /// The messages from each stage to this one, in the order of sending.
    incoming: Vec<VecDeque<Message>>,
    origin: Instant,
    measured: RefCell<Measured>,
}

/// A chunk's layers, and the shapes of one sample without the axis of the batch.
struct Chunk<M> {
    network: Network<M>,
    input: Vec<usize>,
    output: Vec<usize>,
}

/// The largest measurements of all steps so far, and their timelines.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// The spans of this stage in the first steps.
    pub steps: Vec<Timeline>,
    /// The most bytes of activations that the stage kept at one time for backward passes: the tensors of the
    /// computation graph, and gradients that wait for the second half of a backward pass.
    pub activations: usize,
    /// The most bytes of gradients at one time. Partial sums of micro-batches are as large as the parameters, each.
    pub gradients: usize,
    /// The bytes of activations and gradients that the stage sent in a step.
    pub sent: usize,
}

impl<'a, M: ModuleT> Worker<'a, M> {
    /// The worker of a stage on one rank of `mesh`. All ranks call this together.
    ///
    /// `networks` are the chunks of the stage: parts [`Schedule::parts`] of the model. From now on their batch norms
    /// normalise by micro-batch. `sample` is the shape of one sample of the data, such as `[1, 28, 28]`; only the first
    /// part uses it. Each batch is cut into as many shards as there are pipelines times micro-batches. Measured times
    /// are seconds since `origin`, the same moment for all stages. A worker sends at once, as if channels had no limit.
    ///
    /// # Errors
    ///
    /// When the mesh has another number of ranks or of stages, or cuts layers into parts; when a stage has another
    /// number of networks than chunks; when pipelines have networks of different structure, or two parts a tensor of
    /// one name; when layers do not fit together; or when another rank stops or stalls.
    pub fn new(
        checked: &'a Checked,
        networks: Vec<Network<M>>,
        all: SharedCommunicator,
        mesh: Mesh,
        sample: &[usize],
        origin: Instant,
    ) -> Result<Self, Error> {
        let schedule = checked.schedule();
        let (stages, each) = (schedule.stages(), schedule.micro_batches);
        let refuse = |text: String| Err(candle_core::Error::Msg(text).into());
        if mesh.tensor > 1 {
            return refuse(format!("mesh {mesh}: the layers of a pipeline are not cut into parts"));
        }
        if mesh.pipeline != stages {
            let ranks = mesh.pipeline;
            return refuse(format!(
                "a schedule of {stages} stages needs {stages} ranks, one for each, and there are {ranks}"
            ));
        }
        if networks.len() != schedule.chunks {
            let (chunks, found) = (schedule.chunks, networks.len());
            return refuse(format!("a schedule of {chunks} chunks on a stage that has {found}"));
        }
        let pipeline = mesh.along(&all, Axis::Pipeline)?;
        let replicas = mesh.along(&all, Axis::Data)?;
        let stage = pipeline.rank();
        let precision = networks[0].precision();
        let mut weights = Weights { precision, parameters: Vec::new(), buffers: Vec::new() };
        for network in &networks {
            network.norms().by_shard();
            weights.parameters.extend(network.weights().parameters.iter().cloned());
            weights.buffers.extend(network.weights().buffers.iter().cloned());
            alike::structure(&replicas, network.weights())?;
        }
        each_in_one_part(&pipeline, &weights)?;
        let tree = FixedTree::new(each * mesh.data, mesh.data)?;
        let hosts = Shards { held: tree.held_by(replicas.rank()), of: each * mesh.data };
        let to_here = |message: &Message| message.sends && message.channel.to == stage;
        let from = |(from, list): (usize, &Vec<Instruction>)| {
            let messages = list.iter().filter_map(|&it| schedule.message(from, it));
            messages.filter(to_here).collect()
        };
        let incoming = schedule.instructions.iter().enumerate().map(from).collect();
        let chunks = meet(schedule, networks, &pipeline, sample)
            .map_err(failed(stage, || ", before the first step".to_owned()))?;
        let measured = RefCell::default();
        Ok(Self {
            checked,
            stage,
            chunks,
            weights,
            all,
            pipeline,
            replicas,
            hosts,
            tree,
            incoming,
            origin,
            measured,
        })
    }

    /// The timelines of the first steps, all stages of a pipeline together, on its first stage. Other stages get no
    /// timelines. All ranks call this together.
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

    /// The largest measurements of all steps so far.
    pub fn measured(&self) -> Measured {
        self.measured.borrow().clone()
    }
}

impl Measured {
    /// Adds a step.
    fn add(&mut self, step: Self, spans: Vec<Span>, stages: usize) {
        self.activations = self.activations.max(step.activations);
        self.gradients = self.gradients.max(step.gradients);
        self.sent = self.sent.max(step.sent);
        if self.steps.len() < MOST_STEPS {
            self.steps.push(Timeline { stages, spans });
        }
    }
}

impl<M: ModuleT> Model for Worker<'_, M> {
    fn hosts(&self) -> Shards {
        self.hosts.clone()
    }

    /// Executes one step: every instruction of this stage's list. All stages call this together.
    ///
    /// The shards of `share` are the micro-batches, of any sizes. Every stage gets all of them; the first part uses
    /// the images and the last part the labels. A black image stands in for an empty micro-batch, and its loss and
    /// statistics count nothing.
    fn backward(&self, share: &LocalBatch) -> Result<Step, Error> {
        let (stage, schedule) = (self.stage, self.checked.schedule());
        let (found, expected) = (share.shards.len(), schedule.micro_batches);
        if found != expected {
            let text = format!("a batch of {found} micro-batches for a schedule of {expected}");
            return Err(candle_core::Error::Msg(text).into());
        }
        let mut state = StepState::new(self, share);
        let mut spans = Vec::new();
        // ANCHOR: step
        for &instruction in &schedule.instructions[stage] {
            if instruction.action == Action::Update {
                // The update waits for the other pipelines. Waiting is no work.
                state.add_up().map_err(failed(stage, || doing(instruction)))?;
            }
            let start = self.origin.elapsed().as_secs_f64();
            state.execute(instruction).map_err(failed(stage, || doing(instruction)))?;
            let end = self.origin.elapsed().as_secs_f64();
            spans.push(Span { stage, instruction, start, end });
        }
        // ANCHOR_END: step
        self.measured.borrow_mut().add(state.measured, spans, schedule.stages());
        let mut sums = BatchSums::of_no_samples();
        if stage + 1 == schedule.stages() {
            sums = BatchSums::default();
            for deferred in state.sums_of_micro_batches.values() {
                sums += deferred.read()?;
            }
        }
        let sums = allreduce_sums(&*self.all, sums, Algorithm::OneShot)?;
        Ok(Step { sums: sums.into(), gradients: state.gradients })
    }

    fn weights(&self) -> &Weights {
        &self.weights
    }

    fn rank(&self) -> Option<&SharedCommunicator> {
        Some(&self.all)
    }

    /// Compares the replicas, which then share the data set. The first rank returns the result.
    fn evaluate(&self, images: &Dataset) -> Result<Option<BatchSums>, Error> {
        replicas::compare::<Error>(&*self.replicas, || self.weights.snapshot())?;
        let of_pipeline = self.evaluate_part(images, part_of(&*self.replicas))?;
        let of_all = allreduce_by_batch(&*self.all, of_pipeline)?;
        Ok((self.all.rank() == 0).then(|| of_all.total()))
    }
}

impl<M: ModuleT> Whole for Worker<'_, M> {
    /// Returns the whole model on the first stage of every pipeline.
    fn whole(&self, mine: Snapshot) -> Result<Option<Snapshot>, Error> {
        Ok(gathered(&*self.pipeline, mine)?)
    }
}

/// Checks that no tensor is in two parts of the model, which would train two copies. All stages of a pipeline call
/// this together, and the first one finds the tensor.
fn each_in_one_part(pipeline: &SharedCommunicator, weights: &Weights) -> Result<(), Error> {
    let mine: Vec<String> = weights.iter().map(|named| named.name.clone()).collect();
    let mut seen = HashMap::new();
    for (stage, names) in text::values_gathered(&**pipeline, &mine)?.into_iter().enumerate() {
        for name in names {
            if let Some(first) = seen.insert(name.clone(), stage) {
                let text =
                    format!("{name} is in stages {first} and {stage}: each would train its own");
                return Err(candle_core::Error::Msg(text).into());
            }
        }
    }
    Ok(())
}

/// Finds the shapes that each chunk receives and sends. All stages of a pipeline call this together.
///
/// A receiver must know the shape of a message. Only the first part knows its input, a sample of the data. Each part
/// therefore passes a sample of zeros through its layers, and sends the shape of the result to the next part.
fn meet<M: ModuleT>(
    schedule: &Schedule,
    networks: Vec<Network<M>>,
    line: &SharedCommunicator,
    sample: &[usize],
) -> Result<Vec<Chunk<M>>, Error> {
    /// The largest number of axes, without the axis of the batch.
    const AXES: usize = 7;
    let (stage, device) = (line.rank(), line.device());
    let mut chunks: Vec<Chunk<M>> = Vec::new();
    for (chunk, network) in networks.into_iter().enumerate() {
        let here = Place { stage, chunk };
        let input = match (schedule.before(here), chunks.last()) {
            (None, _) => sample.to_vec(),
            (Some(before), Some(last)) if before.stage == stage => last.output.clone(),
            (Some(before), _) => {
                let dims = line.recv(before.stage, &Shape::from(AXES + 1), DType::U32)?;
                let dims = dims.to_vec1::<u32>()?.into_iter().map(|dim| dim as usize);
                let dims: Vec<usize> = dims.collect();
                dims[1..=dims[0].min(AXES)].to_vec()
            }
        };
        let zeros = Tensor::zeros(batch_of(1, &input), network.dtype(), network.device())?;
        // In evaluation the statistics of batch norms stay as they are.
        let output = match no_grad(|| network.forward(&zeros))?.dims() {
            [1, output @ ..] if output.len() <= AXES => output.to_vec(),
            other => {
                let text = format!(
                    "one sample of {input:?} becomes {other:?}: the first axis is the batch's"
                );
                return Err(candle_core::Error::Msg(text).into());
            }
        };
        if let Some(after) = schedule.after(here).filter(|after| after.stage != stage) {
            let mut dims = [0; AXES + 1];
            dims[0] = output.len() as u32;
            for (dim, &size) in dims[1..].iter_mut().zip(&output) {
                *dim = size as u32;
            }
            line.send(after.stage, &Tensor::new(&dims, device)?)?;
        }
        chunks.push(Chunk { network, input, output });
    }
    Ok(chunks)
}

/// The shape of a batch of so many samples.
fn batch_of(rows: usize, sample: &[usize]) -> Shape {
    [&[rows], sample].concat().into()
}

/// The failure of a stage.
#[derive(Debug, thiserror::Error)]
#[error("stage {stage}{doing}: {source}")]
struct Failure {
    stage: usize,
    /// The instruction or the phase of the stage.
    doing: String,
    source: Box<Error>,
}

/// Adds to an error the stage and its instruction or phase.
fn failed<E: Into<Error>>(stage: usize, doing: impl FnOnce() -> String) -> impl FnOnce(E) -> Error {
    move |source| {
        let (doing, source) = (doing(), Box::new(source.into()));
        Error::Model(Box::new(Failure { stage, doing, source }))
    }
}

/// `, micro-batch 3: Forward(3) failed`
fn doing(instruction: Instruction) -> String {
    let micro_batch = instruction.action.micro_batch();
    let micro_batch = micro_batch.map(|i| format!(", micro-batch {i}")).unwrap_or_default();
    format!("{micro_batch}: {instruction} failed")
}
