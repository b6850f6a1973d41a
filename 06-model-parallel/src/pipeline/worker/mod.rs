//! The worker: it does what its list says, from the first instruction to the last.
//!
//! It knows no kinds of schedules. What it may rely on, [`check`](crate::pipeline::check()) has made sure of:
//! what an instruction needs is there, and nobody waits for ever.
//!
//! | file | its idea |
//! | --- | --- |
//! | `meeting` | before the first step: which shapes travel |
//! | `pass` | what lies on a stage between two instructions, and what each does with it |
//! | `sum` | gradients are added by the micro-batch's number, not as they come |
//! | `bytes` | how much memory a micro-batch keeps |
//! | `error` | which stage, which micro-batch, what happened |

mod bytes;
mod error;
mod meeting;
mod pass;
mod sum;

use std::time::Instant;

use candle_core::{ModuleT, Tensor};
use concise_wrapper::Network;
use concise_wrapper::shares::Share;
use concise_wrapper::weights::Weights;
use params_and_allreduce::communicator::{Communicator as _, SharedCommunicator};
use single_gpu::train::BatchSums;

pub use error::Error;
use meeting::Shapes;
use pass::Pass;

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
    pub peak_bytes: usize,
}

impl<'a, M: ModuleT> Worker<'a, M> {
    /// The worker of the stage whose number is `line`'s rank; all stages call this together.
    ///
    /// `network` has the stage's layers. `sample` is the shape of one sample of the data, without the batch's
    /// axis, such as `[1, 28, 28]`; only the first stage's counts. Measured times are seconds since
    /// `origin`: give all stages the same. A message is sent at once, as if channels held any number: a
    /// schedule that was checked with a smaller capacity runs too, and waits less than predicted.
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
        let shapes = meeting::shapes(&line, &network, sample)
            .map_err(|error| Error::Start { stage, source: Box::new(error.into()) })?;
        Ok(Self { checked, stage, network, line, shapes, origin })
    }

    /// One step: everything on this stage's list. All stages call this together.
    ///
    /// The shards of `share` are the micro-batches, and of any sizes; every stage knows all of them, the
    /// first one uses the images and the last one the labels. An empty one is stood in for by a black image
    /// whose loss counts nothing.
    ///
    /// `update` is called once, with the weights of this stage, their gradients summed over all
    /// micro-batches, and the samples of the whole batch: what an update divides by.
    ///
    /// # Errors
    ///
    /// The instruction that failed, with its stage and micro-batch; when the batch has not as many
    /// micro-batches as the schedule, or an empty one where there are batch norms.
    pub fn step(
        &self,
        share: &Share,
        mut update: impl FnMut(&Weights, &[Tensor], usize) -> Result<(), concise_wrapper::Error>,
    ) -> Result<Done, Error> {
        self.check(share)?;
        let (stage, schedule) = (self.stage, self.checked.schedule());
        let mut pass = Pass::new(self, share);
        let mut spans = Vec::new();
        for &instruction in &schedule.instructions[stage] {
            let failed = |source: concise_wrapper::Error| Error::Failed {
                stage,
                instruction,
                source: Box::new(source),
            };
            let start = self.now();
            pass.perform(instruction.action, &mut update).map_err(failed)?;
            if instruction.action.computes() {
                // A GPU computes on after it was told what.
                self.network.device().synchronize().map_err(|error| failed(error.into()))?;
            }
            spans.push(Span { stage, instruction, start, end: self.now() });
        }
        let (sums, peak_bytes) = pass.end()?;
        let timeline = Timeline { stages: schedule.stages(), spans };
        Ok(Done { sums, timeline, peak_bytes })
    }

    /// The stage's layers.
    pub fn network(&self) -> &Network<M> {
        &self.network
    }

    /// The stage's number.
    pub fn stage(&self) -> usize {
        self.stage
    }

    fn is_last(&self) -> bool {
        self.stage + 1 == self.checked.schedule().stages()
    }

    fn now(&self) -> f64 {
        self.origin.elapsed().as_secs_f64()
    }

    fn check(&self, share: &Share) -> Result<(), Error> {
        let (found, expected) = (share.shards.len(), self.checked.schedule().micro_batches);
        if found != expected {
            return Err(Error::MicroBatches { found, expected });
        }
        if self.network.weights().buffers.is_empty() {
            return Ok(());
        }
        match share.shards.iter().position(|shard| shard.is_empty()) {
            Some(micro_batch) => Err(Error::Empty { stage: self.stage, micro_batch }),
            None => Ok(()),
        }
    }
}

/// Whether workers can execute a schedule on so many ranks.
fn executable(checked: &Checked, ranks: usize) -> Result<(), Error> {
    let schedule = checked.schedule();
    if schedule.stages() != ranks {
        return Err(Error::Ranks { stages: schedule.stages(), ranks });
    }
    if schedule.chunks > 1 {
        return Err(Error::Chunks { chunks: schedule.chunks });
    }
    for (stage, list) in schedule.instructions.iter().enumerate() {
        for &instruction in list {
            if let Action::BackwardInput(_) | Action::BackwardWeight(_) = instruction.action {
                return Err(Error::HalfBackward { stage, instruction });
            }
        }
    }
    Ok(())
}
