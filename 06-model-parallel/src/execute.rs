//! The executor: one stage of a pipeline does what its list says.
//!
//! An executor knows no kinds of schedules. [`check`](crate::check()) has made sure that everything that an
//! instruction needs is there, and that no stage waits for ever. The cut and the schedule change no bit of the result:
//! gradients are summed over the micro-batches in ascending order, as one device sums them, and a batch norm
//! normalises each micro-batch by its own statistics. With [`by_shards`](Settings::by_shards) the number of replicas
//! changes no bit, either.
//!
//! A stage may hold parts of its layers. Then each rank of its tensor-parallel group has an executor, which exchanges
//! activations with the executor of the same part in the neighbouring stage ([`mesh`](crate::mesh)).

mod begin;
mod step;
pub mod unit;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::time::Instant;

use candle_core::{Device, Result as TensorResult, Shape, Tensor};
use concise_wrapper::evaluate::{allreduce_by_batch, part_of};
use concise_wrapper::model::Step;
use concise_wrapper::optimizer::Optimizer;
use concise_wrapper::weights::{Named, Snapshot, Weights};
use concise_wrapper::{Error, Model, Network, allreduce_sums, replicas, text};
use datasets::{Batch, Dataset};
use harness::interrupt;
use harness::records::BatchSums;
use harness::report::trace::COMPUTE;
use itertools::Itertools as _;
use ops::{cross_entropy, loss_and_correct, size_in_bytes};
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::{self, SharedCommunicator};
use scratch_data_parallel::reproducible::tree_sums;
use single_gpu::evaluate::{BATCH, Part, SumsByBatch};
use split_batch::loader::{LocalBatch, Shards};
use tracing::info_span;

use crate::check::Checked;
use crate::gpt::loss_of_parts;
use crate::instructions::Schedule;
use crate::layers::Layers;
use crate::simulate::{Held, Span, Timeline};
use step::{StepState, Update};
use unit::{Replicas, Unit, refuse};

/// The largest number of timelines that an executor keeps.
const MOST_STEPS: usize = 200;

/// The number of batches of a list, for each stage. A list holds up the slowest stage only, and all stages begin the
/// next list together: so no stage runs ahead by more than a list.
const AT_ONCE: usize = 4;

/// The choices of a training.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Computes the loss of a micro-batch, summed over its labels, and the sums of loss and correct answers (`[2]`,
    /// f64), from the logits of this rank, the labels, and the ranks that share the layers.
    pub loss: fn(&Tensor, &Tensor, &SharedCommunicator) -> TensorResult<(Tensor, Tensor)>,
    /// Whether the model reads tokens (u32), and not images.
    pub takes_tokens: bool,
    /// Whether gradients and losses are added along the tree of chapter 4: the bits of any number of replicas.
    pub by_shards: bool,
    /// The all-reduce of whole gradients that are not added along the tree.
    pub algorithm: Algorithm,
}

impl Settings {
    /// Of images and their classes: the cross-entropy, and running sums.
    pub const IMAGES: Self = Self {
        loss: |logits, labels, _| {
            let loss = cross_entropy(logits, labels)?;
            let sums = loss_and_correct(&loss, logits, labels)?;
            Ok((loss, sums))
        },
        takes_tokens: false,
        by_shards: false,
        algorithm: Algorithm::OneShot,
    };

    /// The settings of a model, with running sums. If the model reads tokens, ranks may share the vocabulary.
    pub fn of(layers: &Layers) -> Self {
        if !layers.takes_tokens() {
            return Self::IMAGES;
        }
        let loss = |logits: &_, labels: &_, parts: &SharedCommunicator| match parts.world_size() {
            1 => (Self::IMAGES.loss)(logits, labels, parts),
            _ => loss_of_parts(logits, labels, parts),
        };
        Self { loss, takes_tokens: true, ..Self::IMAGES }
    }
}

// ANCHOR: executor
/// One stage of a pipeline, on one rank of a mesh.
///
/// An executor is a [`Model`]: stage 5's loop trains the weights of the stage.
pub struct Executor<U> {
    checked: Checked,
    stage: usize,
    units: Units<U>,
    /// The weights of all units.
    weights: Weights,
    settings: Settings,
    /// All ranks of the mesh.
    all: SharedCommunicator,
    /// The stages of this pipeline.
    pipeline: SharedCommunicator,
    /// The parts of this stage.
    parts: SharedCommunicator,
    replicas: Rc<Replicas>,
    origin: Instant,
    measured: RefCell<Measured>,
}

/// The units of a stage, by their numbers in the model.
type Units<U> = BTreeMap<usize, Placed<U>>;

/// A unit that this stage holds, and the shapes of one sample without the axis of the batch.
struct Placed<U> {
    unit: U,
    /// The bytes of the optimizer's state, from the first update on.
    state: Cell<usize>,
    input: Vec<usize>,
    output: Vec<usize>,
}

/// The measurements of an executor.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// The spans of this stage in the first steps, at most `MOST_STEPS`.
    pub steps: Vec<Vec<Span>>,
    /// The bytes of all steps.
    pub held: Held,
}
// ANCHOR_END: executor

impl<U: Unit> Executor<U> {
    /// The layers of this stage's first unit, its second unit, and so on. Panics when there is no such unit.
    pub fn network(&self, nth: usize) -> &Network<U::Module> {
        self.units().nth(nth).expect("such a unit").network()
    }

    /// The units of this stage, in the order of the model.
    pub fn units(&self) -> impl Iterator<Item = &U> {
        self.units.values().map(|it| &it.unit)
    }

    /// The number of ranks that share each layer.
    pub fn parts(&self) -> usize {
        self.parts.world_size()
    }

    /// The schedule that is executed: without the gradients that nobody needs.
    pub fn schedule(&self) -> &Schedule {
        self.checked.schedule()
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

    /// Adds the sums of all micro-batches, on all ranks: with shards along the tree over the replicas, then over all
    /// ranks.
    fn total(&self, sums: &[BatchSums]) -> Result<BatchSums, Error> {
        let (Replicas { comm, tree, .. }, mut mine) = (&*self.replicas, BatchSums::of_no_samples());
        if self.settings.by_shards {
            // Every replica has this sum, and one of them counts. The last stage alone has sums that are not 0.
            let sum = tree_sums(&**comm, sums, tree)?;
            mine = if comm.rank() == 0 { sum } else { mine };
        } else {
            sums.iter().for_each(|sums| mine += *sums);
        }
        Ok(allreduce_sums(&*self.all, mine, Algorithm::OneShot)?)
    }

    /// Seconds on the clock of all ranks.
    fn now(&self) -> f64 {
        self.origin.elapsed().as_secs_f64()
    }
}

// ANCHOR: model
impl<U: Unit> Model for Executor<U> {
    fn hosts(&self) -> Shards {
        let Replicas { comm, tree, .. } = &*self.replicas;
        Shards::new(tree.held_by(comm.rank()), tree.leaves())
    }

    /// [`step`](Self::step), with the gradients in place of the updates.
    fn backward(&self, share: &LocalBatch) -> Result<Step, Error> {
        let mut found = HashMap::new();
        let step = self.execute_step(share, &mut |weights, gradients| {
            let names = weights.parameters.iter().map(|it| it.name.clone());
            found.extend(names.zip(gradients.iter().cloned()));
            Ok(0)
        })?;
        let gradient = |it: &Named| found.remove(&it.name).expect("a gradient for each");
        Ok(Step { gradients: self.weights.parameters.iter().map(gradient).collect(), ..step })
    }

    fn step(
        &self,
        share: &LocalBatch,
        optimizer: &mut dyn Optimizer,
        rate: f64,
    ) -> Result<Step, Error> {
        self.execute_step(share, &mut |weights, gradients| {
            optimizer.step(weights, gradients, rate, share.samples)?;
            Ok(optimizer.state(weights)?.iter().map(|(_, tensor)| size_in_bytes(tensor)).sum())
        })
    }

    fn weights(&self) -> &Weights {
        &self.weights
    }

    fn rank(&self) -> Option<&SharedCommunicator> {
        Some(&self.all)
    }

    /// Compares the replicas, which then share the data set.
    fn evaluate(&self, images: &Dataset) -> Result<BatchSums, Error> {
        let replicas = &*self.replicas.comm;
        if !self.schedule().sharded {
            replicas::compare::<Error>(replicas, || {
                self.units().map(|it| it.network().weights().snapshot()).flatten_ok().collect()
            })?;
        }
        let of_pipeline = self.evaluate_part(images, part_of(replicas))?;
        Ok(allreduce_by_batch(&*self.all, of_pipeline)?.total())
    }
}
// ANCHOR_END: model

// ANCHOR: loop
impl<U: Unit> Executor<U> {
    /// Executes every instruction of this stage's list. All ranks call this together.
    ///
    /// The shards of `share` are the micro-batches, of any sizes. Unit 0 uses the images and the last unit the labels.
    /// A black image or a text of tokens 0 stands in for an empty micro-batch, and its loss and statistics count nothing.
    fn execute_step(&self, share: &LocalBatch, update: &mut Update<'_>) -> Result<Step, Error> {
        let (found, expected) = (share.shards.len(), self.schedule().micro_batches);
        if found != expected {
            let text = format!("a batch of {found} micro-batches for a schedule of {expected}");
            return refuse(text);
        }
        let mut state = StepState::new(self, self.schedule(), &share.shards, Some(update));
        let spans = self.execute(&mut state, "")?;
        for unit in self.units() {
            unit.network().norms().fold(&*self.replicas.comm, &self.replicas.tree)?;
        }
        self.measured.borrow_mut().add(spans, state.sent);
        let sums = self.total(&state.sums()?)?.into();
        Ok(Step { sums, gradients: Vec::new() })
    }

    /// Executes one instruction after the other. An error names the phase of the training.
    fn execute(&self, state: &mut StepState<'_, U>, phase: &str) -> Result<Vec<Span>, Error> {
        let mut spans = Vec::new();
        for &it in &state.schedule.lists[self.stage] {
            // `, micro-batch 3: Forward(3) of unit 1 failed`
            let i = it.action.micro_batch().map(|i| format!(", micro-batch {i}"));
            let doing = || format!("{phase}{}: {it} failed", i.unwrap_or_default());
            spans.push(state.execute(it).map_err(|error| failed(self.stage, &doing(), error))?);
        }
        // The second thread has measured the collectives.
        let collectives = spans.iter_mut().filter(|it| it.instruction.action.is_collective());
        for (span, times) in collectives.zip(self.replicas.times.take()) {
            [span.start, span.end] = times.map(|it| (it - self.origin).as_secs_f64());
        }
        Ok(spans)
    }
    // ANCHOR_END: loop

    // ANCHOR: evaluate
    /// The sums of loss and correct answers over each batch of a part of a data set, by the running statistics of
    /// batch norms. The rank with the loss returns the sums, and all other ranks return zeros. Every rank counts a
    /// signal that has reached its process. All ranks call this together, those of a pipeline with the same part.
    ///
    /// Fails when the images do not fit the model, or another stage stops or stalls: the message names the stage.
    /// After a signal on any rank no list begins, and the sums are not used.
    pub fn evaluate_part(&self, images: &Dataset, part: Part) -> Result<SumsByBatch, Error> {
        let _span = info_span!(target: COMPUTE, "evaluate").entered();
        let (none, mut batches) = (BatchSums::of_no_samples(), Vec::new());
        part.evaluate(images.len(), images.at_once(BATCH), |samples| {
            batches.push(samples.to_vec());
            Ok::<_, Error>(none)
        })?;
        let mut lists: Vec<_> = batches.chunks(AT_ONCE * self.schedule().stages()).collect();
        // All replicas gather together, also a replica with fewer images.
        let most = text::values(&*self.all, &lists.len())?.into_iter().max();
        lists.resize(most.unwrap_or(0), &[]);
        let mut sums = Vec::new();
        for batches in lists {
            if text::values(&*self.all, &interrupt::is_new())?.contains(&true) {
                break;
            }
            let dtype = self.weights.precision.weights();
            let load = |samples: &Vec<u32>| images.batch(samples, dtype);
            let batches = batches.iter().map(load).collect::<Result<Vec<Batch>, _>>()?;
            let list = self.schedule().forward_only(batches.len());
            let mut state = StepState::new(self, &list, &batches, None);
            self.execute(&mut state, ", evaluating")?;
            sums.extend(state.sums()?);
        }
        let mut sums = sums.into_iter();
        part.evaluate(images.len(), images.at_once(BATCH), |_| Ok(sums.next().unwrap_or(none)))
    }
    // ANCHOR_END: evaluate
}

// ANCHOR: parts
impl Measured {
    /// Adds a step.
    fn add(&mut self, spans: Vec<Span>, sent: usize) {
        self.held = self.held.max(Held { sent, ..Held::of(&spans) });
        if self.steps.len() < MOST_STEPS {
            self.steps.push(spans);
        }
    }
}

/// The shape of a batch of so many samples.
fn batch_of(rows: usize, sample: &[usize]) -> Shape {
    [&[rows], sample].concat().into()
}

/// Adds to an error the stage and its instruction or phase.
fn failed(stage: usize, doing: &str, error: Error) -> Error {
    Error::Model(format!("stage {stage}{doing}: {error}").into())
}
// ANCHOR_END: parts
