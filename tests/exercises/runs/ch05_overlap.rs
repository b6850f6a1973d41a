//! The learner's backward pass under stage 5's training, over a slow link: hook, background thread and buckets are stage 5's.

use std::collections::HashMap;
use std::panic::resume_unwind;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;

use candle_core::TensorId;
use concise_wrapper::ddp::bucket::buckets;
use concise_wrapper::ddp::worker::{Worker, sum_bucket};
use concise_wrapper::model::Step;
use harness::lock::locked;
use harness::report::trace::{COMMUNICATION, COMPUTE};
use ops::backward::backward_with_hook;
use ops::cross_entropy;
use tracing::{Span, info_span};
use trainer::StepSums;

use super::ddp::{CAPS, REDUCTION, Recording, network, train_slowly};
use super::prelude::*;
pub use crate::checks::ch05_overlap::Answer;
use crate::overlap::{Event, Pass, Work};

/// Shows a step of each side. Fails with the answer.
pub fn run(answer: Answer) -> Run {
    let recording = Recording::begin("ch05_overlap")?;
    let buckets = &buckets(&network(&Device::Cpu)?.weights().parameter_sizes(), CAPS);
    // The buckets that the answer started, and the sums that it waited for, before its latest pass ended.
    let early = &Mutex::new([0; 2]);
    let observed = move |pass: &Pass<'_>| {
        let (sums, events) = (answer(pass, buckets), pass.events());
        let before_end = || events.iter().take_while(|event| **event != Event::End);
        let starts = before_end().filter(|event| matches!(event, Event::Start(_))).count();
        *locked(early) = [starts, before_end().filter(|event| **event == Event::Wait).count()];
        sums
    };
    let yours = train_slowly("yours", |network, comm| model(network, comm, observed))?;
    let ours = train_slowly("ours", |network, comm| Ddp::new(network, comm, REDUCTION))?;
    recording.show(vec![yours, ours], &[])?;
    let (all, [starts, waits]) = (buckets.len(), *locked(early));
    let hidden = if starts == all { "as ours do" } else { "and the others hide nothing" };
    let waits = match waits {
        0 => String::new(),
        _ => format!(" It waits for {waits} sums before its end, and computes nothing meanwhile."),
    };
    Ok(paragraph(format_args!(
        "{starts} of the {all} buckets start during your backward pass, {hidden}.{waits}"
    ))?)
}

/// DDP whose backward pass ends with the sums of the answer.
pub(super) fn model(
    network: Network<ResNet18>,
    comm: SharedCommunicator,
    answer: impl Fn(&Pass<'_>) -> Result<Vec<Tensor>, CommError> + Copy + Send,
) -> Result<impl Model, ModelError> {
    let worker = Mutex::new(Worker::start(&comm)?);
    let model = Ddp::new(network, comm.clone(), REDUCTION)?;
    let backward = move |ddp: &Ddp<ResNet18>, batch: &LocalBatch| {
        let (shard, forward) = (&batch.shards[0], info_span!(target: COMPUTE, "forward"));
        let logits = forward.in_scope(|| ddp.forward(&shard.images))?;
        let loss = cross_entropy(&logits, &shard.labels)?;
        let own = StepSums::new(&loss, &logits, shard)?.read()?;
        let gradients = sums(ddp, &loss, &worker, answer)?;
        let sums = allreduce_sums(&*comm, own, Algorithm::OneShot)?;
        Ok(Step { sums: sums.into(), gradients })
    };
    Ok(With { model, backward })
}

/// Runs the backward pass on this thread, and the answer on another. The hook gives each gradient to the answer, and waits until
/// the answer takes it.
fn sums(
    ddp: &Ddp<ResNet18>,
    loss: &Tensor,
    worker: &Mutex<Worker<Tensor>>,
    answer: impl Fn(&Pass<'_>) -> Result<Vec<Tensor>, CommError> + Send,
) -> Result<Vec<Tensor>, ModelError> {
    let parameters = &ddp.weights().parameters;
    let numbers: HashMap<TensorId, usize> =
        parameters.iter().map(|it| it.tensor.id()).zip(0..).collect();
    let shapes = parameters.iter().map(|it| it.tensor.shape().clone()).collect();
    let (gradients, coming) = sync_channel::<(usize, Tensor)>(0);
    let step = Span::current();
    thread::scope(|scope| {
        let answering =
            scope.spawn(move || answer(&Pass::new(shapes, Real { coming, worker, step })));
        info_span!(target: COMPUTE, "backward").in_scope(|| {
            backward_with_hook(loss, &loss.ones_like()?, move |tensor, gradient| {
                if let Some(&number) = numbers.get(&tensor.id()) {
                    // An answer that has ended takes no gradient.
                    let _ = gradients.send((number, gradient.clone()));
                }
                Ok(())
            })
        })?;
        Ok(answering.join().unwrap_or_else(|panic| resume_unwind(panic))?)
    })
}

/// A pass of a real network.
struct Real<'a> {
    coming: Receiver<(usize, Tensor)>,
    worker: &'a Mutex<Worker<Tensor>>,
    /// The step of this rank in the trace.
    step: Span,
}

impl Work for Real<'_> {
    fn next_gradient(&self) -> Option<(usize, Tensor)> {
        self.coming.recv().ok()
    }

    fn start(&self, bucket: usize, row: &Tensor) -> Result<(), CommError> {
        locked(self.worker).add(sum_bucket(bucket, row, Algorithm::Ring)?);
        Ok(())
    }

    fn wait(&self) -> Result<Tensor, CommError> {
        let span = info_span!(target: COMMUNICATION, parent: &self.step, "wait for buckets");
        span.in_scope(|| locked(self.worker).next())
    }
}
