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
mod evaluate;
mod step;
pub mod unit;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::time::{Instant, SystemTime};

use candle_core::{Device, ModuleT, Result as TensorResult, Shape, Tensor};
use concise_wrapper::ddp::alike;
use concise_wrapper::evaluate::{allreduce_by_batch, part_of};
use concise_wrapper::model::Step;
use concise_wrapper::optimizer::Optimizer;
use concise_wrapper::weights::{Named, Snapshot, Weights};
use concise_wrapper::{Error, Model, Network, allreduce_sums, replicas, text};
use datasets::Dataset;
use harness::records::BatchSums;
use ops::{cross_entropy, loss_and_correct};
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::{self, SharedCommunicator};
use scratch_data_parallel::FixedTree;
use scratch_data_parallel::reproducible::tree_sums;
use serde::{Deserialize, Serialize};
use split_batch::loader::{LocalBatch, Shards};

use crate::bytes::Bytes;
use crate::check::{Checked, in_one_order};
use crate::gpt::loss_of_parts;
use crate::instructions::{Instruction, Schedule};
use crate::layers::Layers;
use crate::mesh::{Axis, Mesh};
use crate::simulate::{Span, Timeline, peaks};
use begin::{behind_nothing_to_train, each_in_one_stage, not_recomputed, with_shapes};
use step::StepState;
use unit::{Replicas, Unit, Whole, joined, refuse};

/// The largest number of timelines that an executor keeps.
const MOST_STEPS: usize = 200;

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

    /// Of tokens and the next tokens: the same, and ranks may share the vocabulary.
    pub const TOKENS: Self = Self {
        loss: |logits, labels, parts| match parts.world_size() {
            1 => (Self::IMAGES.loss)(logits, labels, parts),
            _ => loss_of_parts(logits, labels, parts),
        },
        takes_tokens: true,
        ..Self::IMAGES
    };

    /// The settings of a model, with running sums.
    pub fn of(layers: &Layers) -> Self {
        if layers.takes_tokens() { Self::TOKENS } else { Self::IMAGES }
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self::IMAGES
    }
}

// ANCHOR: executor
/// One stage of a pipeline, on one rank of a mesh.
///
/// An executor is a [`Model`]: stage 5's loop trains the weights of the stage.
pub struct Executor<U> {
    checked: Checked,
    stage: usize,
    /// In the order of the model.
    units: Vec<Placed<U>>,
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

/// A unit that this stage holds, and the shapes of one sample without the axis of the batch.
struct Placed<U> {
    number: usize,
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

/// The bytes that a device holds in training, and those that it sends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// The most bytes of each kind at one time. Activations are the tensors that the computation graph holds;
    /// operations may keep more.
    #[serde(flatten)]
    pub peak: Bytes,
    /// The most bytes of all kinds together at one time.
    pub total: usize,
    /// The bytes of activations and gradients that the device sends in a step.
    pub sent: usize,
}

impl<M: ModuleT> Executor<Whole<M>> {
    /// The executor of a stage on one rank of `mesh`. All ranks call this together.
    ///
    /// `networks` are the units of the stage: [`Schedule::units_of`]. From now on their batch norms normalise by
    /// micro-batch. `sample` is the shape of one sample of the data, such as `[1, 28, 28]`, or `[64]` for 64 tokens. The
    /// settings are the default. Fails when mesh, schedule and networks do not fit together, when two stages have a
    /// tensor of one name, or when another rank stops or stalls.
    pub fn new(
        checked: &Checked,
        networks: Vec<Network<M>>,
        all: SharedCommunicator,
        mesh: Mesh,
        sample: &[usize],
    ) -> Result<Self, Error> {
        Self::with(checked, networks, all, mesh, sample, Settings::default())
    }

    /// [`new`](Self::new), with other settings.
    pub fn with(
        checked: &Checked,
        networks: Vec<Network<M>>,
        all: SharedCommunicator,
        mesh: Mesh,
        sample: &[usize],
        settings: Settings,
    ) -> Result<Self, Error> {
        let (wanted, found) = (
            checked.schedule().units_of(mesh.coordinate(all.rank(), Axis::Pipeline)).count(),
            networks.len(),
        );
        if wanted != found {
            return refuse(format!("a schedule with {wanted} units on a stage that has {found}"));
        }
        let mut networks = networks.into_iter();
        Self::of_units(checked, all, mesh, sample, settings, |number, replicas| {
            let network = networks.next().expect("a network for each unit");
            Ok(Whole::new(number, network, Rc::clone(replicas)))
        })
    }
}

impl<U: Unit> Executor<U> {
    /// The executor of a stage on one rank of `mesh`. All ranks call this together.
    ///
    /// `unit` makes the units of the stage in the order of the model, from their numbers and the connection of the
    /// replicas. A unit is whole when it is made. If the schedule is sharded, the unit is freed before the next one is
    /// made. Fails as [`new`](Executor::new) does, and when a unit with batch norms is recomputed, or replicas start
    /// their collectives in different orders.
    pub fn of_units(
        checked: &Checked,
        all: SharedCommunicator,
        mesh: Mesh,
        sample: &[usize],
        settings: Settings,
        mut unit: impl FnMut(usize, &Rc<Replicas>) -> Result<U, Error>,
    ) -> Result<Self, Error> {
        let schedule = checked.schedule();
        let wanted = [
            ("stages", schedule.stages(), mesh.pipeline),
            ("replicas", schedule.replicas, mesh.data),
        ];
        for (what, of_schedule, of_mesh) in wanted {
            if of_schedule != of_mesh {
                return refuse(format!(
                    "a schedule of {of_schedule} {what} needs as many ranks, and the mesh has {of_mesh}"
                ));
            }
        }
        let pipeline = mesh.along(&all, Axis::Pipeline)?;
        let of_data = mesh.along(&all, Axis::Data)?;
        let stage = pipeline.rank();
        let collectives = text::values(&*of_data, &schedule.lists[stage])?;
        in_one_order(&collectives).map_err(|error| Error::Model(Box::new(error)))?;
        let tree = FixedTree::new(schedule.micro_batches * mesh.data, mesh.data)?;
        let parts = mesh.along(&all, Axis::Tensor)?;
        let replicas = Rc::new(Replicas::new(of_data, tree, settings)?);
        let make = |number| {
            let unit = unit(number, &replicas)?;
            let network = unit.network();
            not_recomputed(schedule, number, network.weights())?;
            network.norms().by_shard();
            alike::structure(&replicas.comm, network.weights())?;
            Ok((number, unit))
        };
        let mut units = schedule.units_of(stage).map(make);
        let units: Box<dyn Iterator<Item = _>> = if schedule.sharded {
            Box::new(units)
        } else {
            let made = units.by_ref().collect::<Result<Vec<_>, Error>>()?;
            each_in_one_stage(&pipeline, made.iter().map(|(_, unit)| unit.network().weights()))?;
            Box::new(made.into_iter().map(Ok))
        };
        let units = with_shapes(schedule, units, &pipeline, (sample, settings))
            .map_err(|error| failed(stage, ", before the first step", error))?;
        let checked = behind_nothing_to_train(checked, &units, &pipeline)?;
        // All clocks count from one moment. No rank leaves a barrier at exactly the moment of another.
        let start = text::value_of_rank_0(&*all, &SystemTime::now())?;
        let origin = Instant::now().checked_sub(start.elapsed().unwrap_or_default());
        let weights = joined(units.iter().map(|it| it.unit.owned()));
        Ok(Self {
            checked,
            stage,
            units,
            weights,
            settings,
            all,
            pipeline,
            parts,
            replicas,
            origin: origin.unwrap_or_else(Instant::now),
            measured: RefCell::default(),
        })
    }
    // ANCHOR_END: executor

    /// The layers of this stage's first unit, its second unit, and so on. Panics when there is no such unit.
    pub fn network(&self, nth: usize) -> &Network<U::Module> {
        self.units[nth].unit.network()
    }

    /// The units of this stage, in the order of the model.
    pub fn units(&self) -> impl Iterator<Item = &U> {
        self.units.iter().map(|it| &it.unit)
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
        let (Replicas { comm, tree, by_tree, .. }, mut mine) =
            (&*self.replicas, BatchSums::of_no_samples());
        if *by_tree {
            // Every replica has this sum, and one of them counts. The last stage alone has sums that are not 0.
            let sum = tree_sums(&**comm, sums, tree)?;
            mine = if comm.rank() == 0 { sum } else { mine };
        } else {
            sums.iter().for_each(|sums| mine += *sums);
        }
        Ok(allreduce_sums(&*self.all, mine, Algorithm::OneShot)?)
    }

    /// Whether the loss of this rank counts.
    fn has_loss(&self) -> bool {
        self.parts.rank() == 0 && self.units.iter().any(|it| self.schedule().is_last(it.number))
    }

    fn placed(&self, number: usize) -> &Placed<U> {
        let found = self.units.iter().find(|it| it.number == number);
        found.expect("a checked list names the units of its own stage")
    }

    fn unit(&self, number: usize) -> &U {
        &self.placed(number).unit
    }
}

// ANCHOR: model
impl<U: Unit> Model for Executor<U> {
    fn hosts(&self) -> Shards {
        let Replicas { comm, tree, .. } = &*self.replicas;
        Shards::new(tree.held_by(comm.rank()), tree.leaves())
    }

    /// [`step`](Self::step), without the updates.
    fn backward(&self, share: &LocalBatch) -> Result<Step, Error> {
        let mut collected = Collected::default();
        let step = self.step(share, &mut collected, 0.0)?;
        let gradient = |it: &Named| collected.0.remove(&it.name).expect("a gradient for each");
        Ok(Step { gradients: self.weights.parameters.iter().map(gradient).collect(), ..step })
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
            let whole = joined(self.units.iter().map(|it| it.unit.network().weights()));
            replicas::compare::<Error>(replicas, || whole.snapshot())?;
        }
        let of_pipeline = self.evaluate_part(images, part_of(replicas))?;
        Ok(allreduce_by_batch(&*self.all, of_pipeline)?.total())
    }
    // ANCHOR_END: model

    // ANCHOR: loop
    /// Executes every instruction of this stage's list. All ranks call this together.
    ///
    /// The shards of `share` are the micro-batches, of any sizes. Unit 0 uses the images and the last unit the labels.
    /// A black image or a text of tokens 0 stands in for an empty micro-batch, and its loss and statistics count nothing.
    fn step(
        &self,
        share: &LocalBatch,
        optimizer: &mut dyn Optimizer,
        rate: f64,
    ) -> Result<Step, Error> {
        let (stage, schedule) = (self.stage, self.checked.schedule());
        let (found, expected) = (share.shards.len(), schedule.micro_batches);
        if found != expected {
            let text = format!("a batch of {found} micro-batches for a schedule of {expected}");
            return refuse(text);
        }
        let updates = Some((optimizer, rate, share.samples));
        let mut state = StepState::new(self, schedule, &share.shards, updates);
        let mut spans = Vec::new();
        for &instruction in &schedule.lists[stage] {
            let named = |error| failed(stage, doing(instruction), error);
            state.prepare(instruction).map_err(named)?;
            let start = self.origin.elapsed().as_secs_f64();
            let held = state.execute(instruction).map_err(named)?;
            let end = self.origin.elapsed().as_secs_f64();
            spans.push(Span { stage, instruction, start, end, held });
        }
        // The second thread has measured the collectives.
        let collectives = spans.iter_mut().filter(|it| it.instruction.action.is_collective());
        for (span, times) in collectives.zip(self.replicas.times()) {
            [span.start, span.end] = times.map(|it| (it - self.origin).as_secs_f64());
        }
        for Placed { unit, .. } in &self.units {
            unit.network().norms().fold(&*self.replicas.comm, &self.replicas.tree)?;
        }
        self.measured.borrow_mut().add(spans, state.sent);
        let sums = self.total(&state.sums()?)?.into();
        Ok(Step { sums, gradients: Vec::new() })
    }
    // ANCHOR_END: loop
}

// ANCHOR: parts
/// In place of an optimizer: keeps the gradients by name, and updates nothing.
#[derive(Default)]
struct Collected(HashMap<String, Tensor>);

impl Optimizer for Collected {
    fn step(&mut self, of: &Weights, sums: &[Tensor], _: f64, _: usize) -> TensorResult<()> {
        let names = of.parameters.iter().map(|it| it.name.clone());
        self.0.extend(names.zip(sums.iter().cloned()));
        Ok(())
    }

    fn state(&self, _: &Weights) -> TensorResult<Vec<(String, Tensor)>> {
        Ok(Vec::new())
    }

    fn keep(&mut self, _: Vec<(String, Tensor)>) {}

    fn settings(&self) -> Vec<(&'static str, f64)> {
        Vec::new()
    }
}

impl Measured {
    /// Adds a step.
    fn add(&mut self, spans: Vec<Span>, sent: usize) {
        let (held, (peak, total)) = (&mut self.held, peaks(&spans));
        held.peak = held.peak.with(peak, usize::max);
        held.total = held.total.max(total);
        held.sent = held.sent.max(sent);
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
fn failed(stage: usize, doing: impl Into<String>, error: impl Into<Error>) -> Error {
    Error::Model(format!("stage {stage}{}: {}", doing.into(), error.into()).into())
}

/// `, micro-batch 3: Forward(3) of unit 1 failed`
fn doing(instruction: Instruction) -> String {
    let micro_batch = instruction.action.micro_batch();
    let micro_batch = micro_batch.map(|i| format!(", micro-batch {i}")).unwrap_or_default();
    format!("{micro_batch}: {instruction} failed")
}
// ANCHOR_END: parts
