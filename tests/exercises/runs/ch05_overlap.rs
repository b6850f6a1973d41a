//! The learner's backward pass under stage 5's training, over a slow link: hook, background thread and buckets are stage 5's.

use std::collections::HashMap;
use std::error::Error;
use std::panic::resume_unwind;
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Mutex, MutexGuard};
use std::thread;

use candle_core::{Device, Shape, Tensor, TensorId};
use concise_wrapper::ddp::bucket::buckets;
use concise_wrapper::ddp::worker::Worker;
use concise_wrapper::model::Step;
use concise_wrapper::resnet::ResNet18;
use concise_wrapper::weights::Weights;
use concise_wrapper::{Ddp, Error as ModelError, Model, allreduce_sums};
use datasets::Dataset;
use harness::lock::locked;
use harness::records::{BatchSums, TrainOptions};
use harness::report::paragraph;
use harness::report::trace::{COMMUNICATION, COMPUTE};
use ops::backward::backward_with_hook;
use ops::{cross_entropy, loss_and_correct};
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::{Error as CommError, SharedCommunicator};
use split_batch::loader::{LocalBatch, Shards};
use tracing::{Span, info_span};

use super::ddp::{CAPS, LINK, REDUCTION, Recording, explained, train_on};
use crate::overlap::{Event, Pass, Work};

/// A pass and the buckets; the sums over all ranks, by parameter.
pub type Answer = fn(&Pass<'_>, &[Vec<usize>]) -> Result<Vec<Tensor>, CommError>;

const OPTIONS: TrainOptions =
    TrainOptions { epochs: 1, batch_size: 128, learning_rate: 0.1, seed: 1 };

/// The buckets that the answer started, and the sums that it waited for, before its latest pass ended.
static EARLY: Mutex<[usize; 2]> = Mutex::new([0; 2]);

/// Shows a step of each side. Fails when the answer does.
pub fn run(answer: Answer) -> Result<(), Box<dyn Error>> {
    let recording = Recording::begin("ch05_overlap")?;
    let yours = train_on(2, "yours", Some(LINK), (1280, &OPTIONS), |network, comm| {
        let buckets = buckets(&network.weights().parameter_sizes(), CAPS);
        let worker = Mutex::new(Worker::start(&comm, Algorithm::Ring)?);
        Ok(Yours { ddp: Ddp::new(network, comm, REDUCTION)?, worker, buckets, answer })
    });
    let (yours, _) = match yours {
        Err(error) => return Ok(paragraph(explained(error)?)?),
        Ok(trained) => trained,
    };
    let (ours, _) = train_on(2, "ours", Some(LINK), (1280, &OPTIONS), |network, comm| {
        Ddp::new(network, comm, REDUCTION)
    })?;
    let sizes = super::ddp::network(&Device::Cpu)?.weights().parameter_sizes();
    let (all, [starts, waits]) = (buckets(&sizes, CAPS).len(), *locked(&EARLY));
    recording.show("one step", &[&yours, &ours], (&[], &[vec![], vec![]]))?;
    let hidden = if starts == all { "as ours do" } else { "and the others hide nothing" };
    let waits = match waits {
        0 => String::new(),
        _ => format!(" It waits for {waits} sums before its end, and computes nothing meanwhile."),
    };
    Ok(paragraph(format_args!(
        "{starts} of the {all} buckets start during your backward pass, {hidden}.{waits}"
    ))?)
}

/// A model whose gradients become sums by the learner's function.
struct Yours {
    /// Compares the ranks, evaluates, and has the weights.
    ddp: Ddp<ResNet18>,
    worker: Mutex<Worker>,
    buckets: Vec<Vec<usize>>,
    answer: Answer,
}

impl Model for Yours {
    fn backward(&self, batch: &LocalBatch) -> Result<Step, ModelError> {
        let shard = &batch.shards[0];
        let logits =
            info_span!(target: COMPUTE, "forward").in_scope(|| self.ddp.forward(&shard.images))?;
        let loss = cross_entropy(&logits, &shard.labels)?;
        let [loss_sum, correct] =
            loss_and_correct(&loss, &logits, &shard.labels)?.to_vec1::<f64>()?[..]
        else {
            unreachable!("two numbers")
        };
        let own = BatchSums {
            loss: loss_sum,
            correct: correct as u64,
            samples: shard.len() as u64,
            interrupts: 0,
        };
        let gradients = self.sums(&loss)?;
        let sums = allreduce_sums(&**self.rank().expect("DDP has ranks"), own, Algorithm::OneShot)?;
        Ok(Step { sums: sums.into(), gradients })
    }

    fn hosts(&self) -> Shards {
        self.ddp.hosts()
    }

    fn weights(&self) -> &Weights {
        self.ddp.weights()
    }

    fn evaluate(&self, images: &Dataset) -> Result<BatchSums, ModelError> {
        self.ddp.evaluate(images)
    }

    fn rank(&self) -> Option<&SharedCommunicator> {
        self.ddp.rank()
    }
}

impl Yours {
    /// Runs the backward pass on this thread, and the answer on another. The hook gives each gradient to the answer, and waits
    /// until the answer takes it.
    fn sums(&self, loss: &Tensor) -> Result<Vec<Tensor>, ModelError> {
        let parameters = &self.weights().parameters;
        let numbers: HashMap<TensorId, usize> =
            parameters.iter().map(|it| it.tensor.id()).zip(0..).collect();
        let shapes: Vec<Shape> = parameters.iter().map(|it| it.tensor.shape().clone()).collect();
        let (gradients, coming) = sync_channel::<(usize, Tensor)>(0);
        let step = Span::current();
        thread::scope(|scope| {
            let answering = scope.spawn(move || {
                let worker = locked(&self.worker);
                let pass = Pass::new(shapes, Real { coming, worker, step });
                let sums = (self.answer)(&pass, &self.buckets);
                let events = pass.events();
                let early = || events.iter().take_while(|event| **event != Event::End);
                let starts = early().filter(|event| matches!(event, Event::Start(_))).count();
                let waits = early().filter(|event| **event == Event::Wait).count();
                *locked(&EARLY) = [starts, waits];
                sums
            });
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
}

/// A pass of a real network.
struct Real<'a> {
    coming: Receiver<(usize, Tensor)>,
    worker: MutexGuard<'a, Worker>,
    /// The step of this rank in the trace.
    step: Span,
}

impl Work for Real<'_> {
    fn next_gradient(&self) -> Option<(usize, Tensor)> {
        self.coming.recv().ok()
    }

    fn start(&self, bucket: usize, row: &Tensor) -> Result<(), CommError> {
        Ok(self.worker.add(bucket, row)?)
    }

    fn wait(&self) -> Result<Tensor, CommError> {
        let span = info_span!(target: COMMUNICATION, parent: &self.step, "wait for buckets");
        span.in_scope(|| self.worker.sum())
    }
}
