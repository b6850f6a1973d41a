//! The worker: it does what its list says, from the first instruction to the last.
//!
//! It knows no kinds of schedules. What it may rely on, [`check`](crate::pipeline::check()) has made sure of:
//! what an instruction needs is there, and nobody waits for ever.
//!
//! | file | its idea |
//! | --- | --- |
//! | `executable` | which schedules a worker executes |
//! | `meeting` | before the first step: which shapes travel |
//! | `pass` | what lies on a stage between two instructions, and what each does with it |
//! | `evaluate` | a data set through the pipeline, forward only |
//! | `traced` | what a trace calls an instruction |
//! | `error` | which stage, which micro-batch, what happened |
//!
//! # The sum over micro-batches
//!
//! GPipe goes backward from the last micro-batch to the first, 1F1B from the first to the last. Added up as they come,
//! the same gradients would have sums of different bits. So they are added along one tree over the micro-batches'
//! numbers, stage 2's [`TreeSum`](scratch_data_parallel::TreeSum): the schedule has no say in it, and with the
//! shards as micro-batches, the sum has the bits of reproducible data parallelism.
//!
//! # Batch norm
//!
//! No stage has the whole batch at one time, so whose mean is a batch norm to subtract? That of the
//! micro-batch: each is normalised by its own statistics, as in GPipe (Huang et al., arXiv 1811.06965,
//! section 2.2). The running statistics, which evaluation uses, move once a step: by the mean of what all
//! micro-batches had, weighted by their sizes. That is stage 5's batch norm by shard
//! ([`Norms::by_shard`](concise_wrapper::batch_norm::Norms::by_shard)), and the shards are the micro-batches.
//!
//! - Cut, schedule and number of replicas do not change a bit of the weights, or of the running statistics.
//! - The number of micro-batches does, and not by rounding: one device that has the whole batch trains
//!   another function. The smaller micro-batches are, the noisier their statistics.
//! - A running variance is the mean of the micro-batches' own variances, as far as they tell that of all images (by n − 1).
//!   That of the whole batch, which GPipe keeps, has the spread between their means on top.

mod error;
mod evaluate;
mod executable;
mod meeting;
mod pass;
mod traced;

use std::sync::Arc;
use std::time::Instant;

use candle_core::{ModuleT, Tensor};
use concise_wrapper::Network;
use concise_wrapper::weights::Weights;
use harness::records::BatchSums;
use params_and_allreduce::communicator::{Group, SharedCommunicator};
use scratch_data_parallel::FixedTree;
use split_batch::loader::LocalBatch;

pub use error::Error;
use executable::executable;
use meeting::Shapes;
use pass::{Ended, Pass};
use traced::span;

use super::check::Checked;
use super::schedule::Action;
use super::timeline::{Span, Timeline};

/// One stage of a pipeline, in the thread that drives its device.
pub struct Worker<'a, M> {
    checked: &'a Checked,
    stage: usize,
    network: Network<M>,
    line: SharedCommunicator,
    shapes: Shapes,
    origin: Instant,
    /// The ranks that hold the same stage in other replicas of the model; alone where there is one.
    replicas: SharedCommunicator,
    /// Over the micro-batches of all replicas.
    tree: FixedTree,
    /// The place there of this replica's first micro-batch.
    first_leaf: usize,
}

/// What one step of one stage came to.
#[derive(Clone, Debug)]
pub struct Done {
    /// Loss and correct answers of all micro-batches, before the update; on the last stage.
    pub sums: Option<BatchSums>,
    /// When this stage did what. It has no spans of other stages: [`Timeline::joined`] puts them together.
    pub timeline: Timeline,
    /// The most bytes of activations that were kept at one time for the backward pass: tensors that the
    /// computation graph holds, without what operations keep to themselves.
    pub activation_bytes: usize,
    /// The most bytes of gradients that there were at one time: sums of some micro-batches that wait for others
    /// are as large as the parameters, each.
    pub gradient_bytes: usize,
}

impl<'a, M: ModuleT> Worker<'a, M> {
    /// The worker of the stage whose number is `line`'s rank; all stages call this together.
    ///
    /// `network` has the stage's layers; from now on its batch norms normalise by micro-batch. `sample` is the
    /// shape of one sample of the data, without the batch's axis, such as `[1, 28, 28]`; only the first
    /// stage's counts. Measured times are seconds since `origin`: give all stages the same. A message is sent
    /// at once, as if channels held any number: a schedule that was checked with a smaller capacity runs too,
    /// and waits less than predicted.
    ///
    /// # Errors
    ///
    /// When there are not as many ranks as stages, when the schedule has several chunks on a stage or its
    /// backward pass in halves, when layers do not fit together, or when another stage stops or stalls.
    pub fn new(
        checked: &'a Checked,
        network: Network<M>,
        line: SharedCommunicator,
        sample: &[usize],
        origin: Instant,
    ) -> Result<Self, Error> {
        let (stage, ranks) = (line.rank(), line.world_size());
        executable(checked, ranks)?;
        network.norms().by_shard();
        let shapes = meeting::shapes(&*line, &network, sample)
            .map_err(|error| Error::Start { stage, source: Box::new(error.into()) })?;
        let alone = Group::new(Arc::clone(&line), vec![stage])
            .map_err(|error| Error::Start { stage, source: Box::new(error.into()) })?;
        let replicas = Arc::new(alone);
        let tree = FixedTree::new(checked.schedule().micro_batches, 1)?;
        Ok(Self { checked, stage, network, line, shapes, origin, replicas, tree, first_leaf: 0 })
    }

    /// From now on gradients, and the statistics of batch norms, are added up over several pipelines too, each
    /// of which works through its own micro-batches of every batch: data parallelism.
    ///
    /// `replicas` connects the k ranks that hold this stage. Replica d has the m micro-batches from d·m on, of all
    /// k·m, and the sum is made along one tree over all of them: it has the bits of one pipeline that works
    /// through all.
    ///
    /// # Errors
    ///
    /// Those of [`FixedTree::new`].
    pub fn replicated(self, replicas: SharedCommunicator) -> Result<Self, Error> {
        let micro_batches = self.checked.schedule().micro_batches;
        let tree = FixedTree::new(micro_batches * replicas.world_size(), replicas.world_size())?;
        let first_leaf = tree.held_by(replicas.rank()).start;
        Ok(Self { replicas, tree, first_leaf, ..self })
    }

    /// One step: everything on this stage's list. All stages call this together.
    ///
    /// The shards of `share` are the micro-batches, and of any sizes; every stage knows all of them, the
    /// first one uses the images and the last one the labels. An empty one is stood in for by a black image
    /// whose loss and statistics count nothing.
    ///
    /// `update` is called once, with the weights of this stage, their gradients summed over all
    /// micro-batches, and the samples of the whole batch: what an update divides by.
    ///
    /// # Errors
    ///
    /// The instruction that failed, with its stage and micro-batch; when the batch has not as many
    /// micro-batches as the schedule.
    pub fn step(
        &self,
        share: &LocalBatch,
        mut update: impl FnMut(&Weights, &[Tensor], usize) -> Result<(), concise_wrapper::Error>,
    ) -> Result<Done, Error> {
        self.check(share)?;
        let (stage, schedule) = (self.stage, self.checked.schedule());
        let mut pass = Pass::new(self, share);
        let mut spans = Vec::new();
        // ANCHOR: step
        for &instruction in &schedule.instructions[stage] {
            let failed = |source: concise_wrapper::Error| Error::Failed {
                stage,
                instruction,
                source: Box::new(source),
            };
            if instruction.action == Action::Update {
                // To wait for other replicas is no work.
                pass.add_up().map_err(failed)?;
            }
            let start = self.now();
            let _span = span(instruction.action).entered();
            pass.perform(instruction.action, &mut update).map_err(failed)?;
            if instruction.action.computes() {
                // A GPU computes on after it was told what.
                self.network.device().synchronize().map_err(|error| failed(error.into()))?;
            }
            spans.push(Span { stage, instruction, start, end: self.now() });
        }
        // ANCHOR_END: step
        let Ended { sums, activation_bytes, gradient_bytes } = pass.end()?;
        let timeline = Timeline { stages: schedule.stages(), spans };
        Ok(Done { sums, timeline, activation_bytes, gradient_bytes })
    }

    /// The stage's layers.
    pub fn network(&self) -> &Network<M> {
        &self.network
    }

    fn is_last(&self) -> bool {
        self.stage + 1 == self.checked.schedule().stages()
    }

    fn now(&self) -> f64 {
        self.origin.elapsed().as_secs_f64()
    }

    fn check(&self, share: &LocalBatch) -> Result<(), Error> {
        let (found, expected) = (share.shards.len(), self.checked.schedule().micro_batches);
        if found == expected { Ok(()) } else { Err(Error::MicroBatches { found, expected }) }
    }
}
