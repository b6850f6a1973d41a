//! The worker: one stage of a pipeline executes its list of instructions.
//!
//! A worker knows no kinds of schedules. [`check`](super::check()) has made sure that everything that an instruction
//! needs is there, and that no stage waits for ever. The cut, the schedule and the number of replicas change no bit of the
//! result: gradients are added along one tree over the numbers of the micro-batches, and a batch norm normalises each
//! micro-batch by its own statistics.
//!
//! A stage may hold parts of its layers. Then each rank of its tensor-parallel group has a worker, which exchanges
//! activations with the worker of the same part in the neighbouring stage ([`mesh`](crate::mesh)).

mod evaluate;
mod step;

use std::cell::RefCell;
use std::collections::HashMap;
use std::time::Instant;

use candle_core::{DType, Device, Module as _, ModuleT, Shape, Tensor};
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
use super::schedule::{Action, Instruction, Schedule};
use super::timeline::{Span, Timeline};
use crate::mesh::{Axis, Mesh};
use step::StepState;

/// The largest number of timelines that a worker keeps.
const MOST_STEPS: usize = 200;

// ANCHOR: worker
/// One stage of a pipeline, on one rank of a mesh.
///
/// A worker is a [`Model`]: stage 5's loop trains the weights of the stage. The loop's optimizer uses the gradients
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
    /// The parts of this stage.
    parts: SharedCommunicator,
    /// The ranks that hold the same weights in other pipelines.
    replicas: SharedCommunicator,
    hosts: Shards,
    /// The tree over the micro-batches of all pipelines.
    tree: FixedTree,
    origin: Instant,
    measured: RefCell<Measured>,
}

/// A chunk's layers, and the shapes of one sample without the axis of the batch.
struct Chunk<M> {
    network: Network<M>,
    input: Vec<usize>,
    output: Vec<usize>,
}

impl<'a, M: ModuleT> Worker<'a, M> {
    /// The worker of a stage on one rank of `mesh`. All ranks call this together.
    ///
    /// `networks` are the chunks of the stage: parts [`Schedule::parts`] of the model. From now on their batch norms
    /// normalise by micro-batch. `sample` is the shape of one sample of the data, such as `[1, 28, 28]`. Measured times are
    /// seconds since `origin`, the same moment for all stages. Fails when mesh, schedule and networks do not fit together,
    /// when two stages have a tensor of one name, or when another rank stops or stalls.
    pub fn new(
        checked: &'a Checked,
        networks: Vec<Network<M>>,
        all: SharedCommunicator,
        mesh: Mesh,
        sample: &[usize],
        origin: Instant,
    ) -> Result<Self, Error> {
        let schedule = checked.schedule();
        let (stages, chunks, ranks) = (schedule.stages(), schedule.chunks, mesh.pipeline);
        if ranks != stages {
            return refuse(format!(
                "a schedule of {stages} stages needs {stages} ranks, one for each, and there are {ranks}"
            ));
        }
        if networks.len() != chunks {
            let found = networks.len();
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
        each_in_one_stage(&pipeline, &weights)?;
        let tree = FixedTree::new(schedule.micro_batches * mesh.data, mesh.data)?;
        let chunks = with_shapes(schedule, networks, &pipeline, sample)
            .map_err(|error| failed(stage, ", before the first step", error))?;
        Ok(Self {
            checked,
            stage,
            chunks,
            weights,
            hosts: Shards::new(tree.held_by(replicas.rank()), tree.leaves()),
            parts: mesh.along(&all, Axis::Tensor)?,
            all,
            pipeline,
            replicas,
            tree,
            origin,
            measured: RefCell::default(),
        })
    }

    /// The layers of a chunk of this stage. Panics when there is no such chunk.
    pub fn network(&self, chunk: usize) -> &Network<M> {
        &self.chunks[chunk].network
    }

    /// The timelines of the first steps, all stages of a pipeline together, on its first stage. Other stages get no
    /// timelines. All ranks call this together. Fails when another rank stops or stalls.
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

    /// Joins the tensors of all stages, in stage order, on the first rank of each replica; all other ranks get `None`.
    /// `mine` are this stage's, with the parts of each tensor [joined](crate::layers::Layers::join). All ranks call this
    /// together. Fails when another rank stops or stalls.
    pub fn whole(&self, mut mine: Snapshot) -> Result<Option<Snapshot>, Error> {
        if self.parts.rank() > 0 {
            return Ok(None);
        }
        let (stages, dtype) = (&self.pipeline, self.weights.precision.weights());
        // Name and shape of each tensor, before the tensors themselves.
        let announced = mine.iter().map(|(name, tensor)| (name.clone(), tensor.dims().to_vec()));
        let all = text::values_gathered(&**stages, &announced.collect::<Vec<_>>())?;
        if self.stage > 0 {
            for (_, tensor) in &mine {
                stages.send(0, &tensor.to_device(stages.device())?)?;
            }
            return Ok(None);
        }
        for (stage, of_stage) in all.into_iter().enumerate().skip(1) {
            for (name, dims) in of_stage {
                let tensor = stages.recv(stage, &Shape::from(dims), dtype)?;
                mine.push((name, tensor.to_device(&Device::Cpu)?));
            }
        }
        Ok(Some(mine))
    }

    /// Whether the loss of this rank counts.
    fn has_loss(&self) -> bool {
        self.parts.rank() == 0 && self.stage + 1 == self.pipeline.world_size()
    }
}
// ANCHOR_END: worker

// ANCHOR: model
impl<M: ModuleT> Model for Worker<'_, M> {
    fn hosts(&self) -> Shards {
        self.hosts.clone()
    }

    /// Executes every instruction of this stage's list. All ranks call this together.
    ///
    /// The shards of `share` are the micro-batches, of any sizes. The first part uses the images and the last part the
    /// labels. A black image stands in for an empty micro-batch, and its loss and statistics count nothing.
    fn backward(&self, share: &LocalBatch) -> Result<Step, Error> {
        let (stage, schedule) = (self.stage, self.checked.schedule());
        let (found, expected) = (share.shards.len(), schedule.micro_batches);
        if found != expected {
            let text = format!("a batch of {found} micro-batches for a schedule of {expected}");
            return refuse(text);
        }
        let mut state = StepState::new(self, share);
        let mut spans = Vec::new();
        for &instruction in &schedule.instructions[stage] {
            let named = |error| failed(stage, doing(instruction), error);
            if instruction.action == Action::Update {
                // The update waits for the other pipelines. Waiting is no work.
                state.add_up().map_err(named)?;
            }
            let start = self.origin.elapsed().as_secs_f64();
            state.execute(instruction).map_err(named)?;
            let end = self.origin.elapsed().as_secs_f64();
            spans.push(Span { stage, instruction, start, end });
        }
        self.measured.borrow_mut().add(&state.measured, spans);
        let mut sums = BatchSums::of_no_samples();
        if self.has_loss() {
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

    /// Compares the replicas, which then share the data set.
    fn evaluate(&self, images: &Dataset) -> Result<BatchSums, Error> {
        replicas::compare::<Error>(&*self.replicas, || self.weights.snapshot())?;
        let of_pipeline = self.evaluate_part(images, part_of(&*self.replicas))?;
        Ok(allreduce_by_batch(&*self.all, of_pipeline)?.total())
    }
}
// ANCHOR_END: model

// ANCHOR: parts
/// The largest measurements of all steps so far, and the spans of the first steps.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// The spans of this stage in the first steps, at most `MOST_STEPS`.
    pub steps: Vec<Vec<Span>>,
    /// The most bytes of activations that the stage kept at one time for backward passes: the tensors of the
    /// computation graph, and gradients that wait for the second half of a backward pass.
    pub activations: usize,
    /// The most bytes of gradients at one time. Partial sums of micro-batches are as large as the parameters, each.
    pub gradients: usize,
    /// The bytes of activations and gradients that the stage sent in a step.
    pub sent: usize,
}

impl Measured {
    /// Adds a step.
    fn add(&mut self, step: &Self, spans: Vec<Span>) {
        self.activations = self.activations.max(step.activations);
        self.gradients = self.gradients.max(step.gradients);
        self.sent = self.sent.max(step.sent);
        if self.steps.len() < MOST_STEPS {
            self.steps.push(spans);
        }
    }
}

/// Checks that no tensor is in two stages, which would train two copies. All stages of a pipeline call this together,
/// and the first one finds the tensor.
fn each_in_one_stage(pipeline: &SharedCommunicator, weights: &Weights) -> Result<(), Error> {
    let mine: Vec<String> = weights.iter().map(|named| named.name.clone()).collect();
    let mut seen = HashMap::new();
    for (stage, names) in text::values_gathered(&**pipeline, &mine)?.into_iter().enumerate() {
        for name in names {
            if let Some(first) = seen.insert(name.clone(), stage) {
                return refuse(format!(
                    "{name} is in stages {first} and {stage}: each would train its own"
                ));
            }
        }
    }
    Ok(())
}

/// Finds the shapes that each chunk receives and sends. All stages of a pipeline call this together.
///
/// A receiver must know the shape of a message. Only the first part knows its input, a sample of the data. Each part
/// therefore passes a sample of zeros through its layers, and sends the shape of the result to the next part.
fn with_shapes<M: ModuleT>(
    schedule: &Schedule,
    networks: Vec<Network<M>>,
    pipeline: &SharedCommunicator,
    sample: &[usize],
) -> Result<Vec<Chunk<M>>, Error> {
    /// The largest number of axes, without the axis of the batch. Shapes with fewer axes end in zeros.
    const AXES: usize = 7;
    let (stage, stages) = (pipeline.rank(), pipeline.world_size());
    let mut chunks: Vec<Chunk<M>> = Vec::new();
    for (part, network) in schedule.parts(stage).zip(networks) {
        let input = match (part, chunks.last()) {
            (0, _) => sample.to_vec(),
            (_, Some(before)) if stages == 1 => before.output.clone(),
            _ => {
                let dims = pipeline.recv((part - 1) % stages, &Shape::from(AXES), DType::U32)?;
                let dims = dims.to_vec1::<u32>()?.into_iter().map(|dim| dim as usize);
                dims.take_while(|&dim| dim > 0).collect()
            }
        };
        let zeros = Tensor::zeros(batch_of(1, &input), network.dtype(), network.device())?;
        // In evaluation the statistics of batch norms stay as they are.
        let output = match no_grad(|| network.forward(&zeros))?.dims() {
            [1, output @ ..] if output.len() <= AXES => output.to_vec(),
            other => {
                return refuse(format!(
                    "one sample of {input:?} becomes {other:?}: the first axis is the batch's"
                ));
            }
        };
        if stages > 1 && !schedule.is_last(part) {
            let mut dims: Vec<u32> = output.iter().map(|&dim| dim as u32).collect();
            dims.resize(AXES, 0);
            pipeline.send((part + 1) % stages, &Tensor::new(dims, pipeline.device())?)?;
        }
        chunks.push(Chunk { network, input, output });
    }
    Ok(chunks)
}

/// The shape of a batch of so many samples.
fn batch_of(rows: usize, sample: &[usize]) -> Shape {
    [&[rows], sample].concat().into()
}

fn refuse<T>(text: String) -> Result<T, Error> {
    Err(candle_core::Error::Msg(text).into())
}

/// Adds to an error the stage and its instruction or phase.
fn failed(stage: usize, doing: impl Into<String>, error: impl Into<Error>) -> Error {
    Error::Model(format!("stage {stage}{}: {}", doing.into(), error.into()).into())
}

/// `, micro-batch 3: Forward(3) failed`
fn doing(instruction: Instruction) -> String {
    let micro_batch = instruction.action.micro_batch();
    let micro_batch = micro_batch.map(|i| format!(", micro-batch {i}")).unwrap_or_default();
    format!("{micro_batch}: {instruction} failed")
}
// ANCHOR_END: parts
