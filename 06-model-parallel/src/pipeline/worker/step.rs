//! One step of one stage: its state between two instructions, and the execution of each instruction.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;

use candle_core::{ModuleT, Result as TensorResult, Tensor, Var, bail};
use concise_wrapper::Error;
use concise_wrapper::model::stand_in_loss;
use datasets::Batch;
use harness::report::trace::{COMMUNICATION, COMPUTE};
use ops::backward::{Gradients, SecondHalf, backward_from, backward_in_halves};
use ops::{cross_entropy, size_in_bytes};
use scratch_data_parallel::TreeSum;
use split_batch::loader::LocalBatch;
use tracing::info_span;
use trainer::StepSums;

use super::{Chunk, Measured, Worker, batch_of, refuse};
use crate::held::activations;
use crate::pipeline::schedule::{Action, Carries, Instruction, Key, Message};

// ANCHOR: state
/// The state of a step between two instructions.
pub(super) struct StepState<'a, M> {
    worker: &'a Worker<'a, M>,
    share: &'a LocalBatch,
    /// Activations and gradients that wait for a pass of this stage, or for the instruction that sends them.
    tensors: BTreeMap<Key, Tensor>,
    /// The messages that have not arrived, from each stage, in the order of sending.
    incoming: Vec<VecDeque<Message>>,
    /// The results of forward passes, by chunk and micro-batch.
    kept: BTreeMap<(usize, usize), Kept>,
    /// Backward passes after their first half: the gradients of parameters so far, the second half, and the bytes kept.
    halves: BTreeMap<(usize, usize), (Gradients, SecondHalf, usize)>,
    sums: Vec<TreeSum>,
    pub(super) gradients: Vec<Tensor>,
    pub(super) sums_of_micro_batches: BTreeMap<usize, StepSums>,
    /// The bytes of activations that are kept now.
    bytes: usize,
    pub(super) measured: Measured,
}

/// The result of a forward pass, for the backward pass.
struct Kept {
    /// The activation that arrived, as a variable: the stage before waits for its gradient.
    input: Option<Var>,
    /// The loss, or the activation that was sent.
    result: Tensor,
    bytes: usize,
}

impl<'a, M: ModuleT> StepState<'a, M> {
    pub(super) fn new(worker: &'a Worker<'a, M>, share: &'a LocalBatch) -> Self {
        let (schedule, stage) = (worker.checked.schedule(), worker.stage);
        let incoming = |from| schedule.messages(from, stage).collect();
        Self {
            worker,
            share,
            tensors: BTreeMap::new(),
            incoming: (0..schedule.stages()).map(incoming).collect(),
            kept: BTreeMap::new(),
            halves: BTreeMap::new(),
            sums: worker.chunks.iter().map(|_| TreeSum::new(worker.tree)).collect(),
            gradients: Vec::new(),
            sums_of_micro_batches: BTreeMap::new(),
            bytes: 0,
            measured: Measured::default(),
        }
    }
    // ANCHOR_END: state

    // ANCHOR: execute
    /// Executes one instruction, and waits for the device.
    pub(super) fn execute(&mut self, instruction: Instruction) -> Result<(), Error> {
        let Instruction { chunk, action } = instruction;
        let _span = span(action).entered();
        match (action, self.worker.checked.schedule().message(self.worker.stage, instruction)) {
            (Action::Forward(i), _) => self.forward(chunk, i)?,
            (Action::Backward(i), _) => self.backward(chunk, i, false)?,
            (Action::BackwardInput(i), _) => self.backward(chunk, i, true)?,
            (Action::BackwardWeight(i), _) => self.backward_weight(chunk, i)?,
            (_, Some(message @ Message { sends: false, .. })) => self.receive(message)?,
            (_, Some(message)) => {
                let tensor = take(&mut self.tensors, message.key, "result")?;
                self.measured.sent += size_in_bytes(&tensor);
                self.worker.pipeline.send_shared(message.to, &tensor)?;
            }
            // `add_up` has computed the gradients for the update, and the training loop applies them.
            (_, None) => {}
        }
        if action.computes() {
            // A GPU goes on computing after the call has returned.
            self.worker.chunks[chunk].network.device().synchronize()?;
        }
        Ok(())
    }

    /// Receives messages until `wanted` has arrived.
    ///
    /// A rank receives the messages of another rank in the order of sending. Two stages with several chunks send each
    /// other activations and gradients, and a message may arrive before the stage wants it. The schedule gives the order of
    /// sending.
    fn receive(&mut self, wanted: Message) -> Result<(), Error> {
        let (from, pipeline) = (wanted.from, &self.worker.pipeline);
        while !self.tensors.contains_key(&wanted.key) {
            let Some(message) = self.incoming[from].pop_front() else {
                return refuse(format!("stage {from} sends no more"));
            };
            let (carries, part, micro_batch) = message.key;
            let Chunk { network, input, output } =
                &self.worker.chunks[part / pipeline.world_size()];
            let sample = match carries {
                Carries::Activations => input,
                Carries::Gradients => output,
            };
            // One sample stands in for an empty micro-batch.
            let rows = self.share.shards[micro_batch].len().max(1);
            let tensor = pipeline.recv(from, &batch_of(rows, sample), network.dtype())?;
            self.tensors.insert(message.key, tensor);
        }
        Ok(())
    }
    // ANCHOR_END: execute

    // ANCHOR: passes
    /// Runs a chunk's layers on a micro-batch: on the images, or on the activation of the part before.
    fn forward(&mut self, chunk: usize, i: usize) -> TensorResult<()> {
        let (worker, schedule) = (self.worker, self.worker.checked.schedule());
        let part = schedule.part(worker.stage, chunk);
        let Chunk { network, input: sample, .. } = &worker.chunks[chunk];
        let batch = &self.share.shards[i];
        let (input, x) = if part > 0 {
            let arrived = take(&mut self.tensors, (Carries::Activations, part, i), "activation")?;
            let input = Var::from_tensor(&arrived)?;
            (Some(input.clone()), input.into_inner())
        } else if batch.is_empty() {
            (None, Tensor::zeros(batch_of(1, sample), network.dtype(), network.device())?)
        } else {
            (None, batch.images.to_device(network.device())?)
        };
        network.norms().shard(i);
        network.norms().stand_in(batch.is_empty());
        let output = network.forward_training(&x)?;
        let result = if schedule.is_last(part) {
            self.loss(i, &output)?
        } else {
            self.tensors.insert((Carries::Activations, part + 1, i), output.detach());
            output
        };
        let bytes = activations(&result, &x, network.weights());
        self.keep(bytes);
        self.kept.insert((chunk, i), Kept { input, result, bytes });
        Ok(())
    }

    /// The sum of the losses of a micro-batch.
    fn loss(&mut self, i: usize, logits: &Tensor) -> TensorResult<Tensor> {
        let batch = &self.share.shards[i];
        if batch.is_empty() {
            return stand_in_loss(logits);
        }
        let labels = batch.labels.to_device(logits.device())?;
        let loss = cross_entropy(logits, &labels)?;
        let batch = Batch { images: batch.images.clone(), labels };
        self.sums_of_micro_batches.insert(i, StepSums::new(&loss, logits, &batch)?);
        Ok(loss)
    }

    /// Computes the gradient of a micro-batch's loss by the input, and the gradients of the weights now or `later`.
    ///
    /// A stage without the loss starts from the gradient of the activation that it sent.
    fn backward(&mut self, chunk: usize, i: usize, later: bool) -> TensorResult<()> {
        let (worker, schedule) = (self.worker, self.worker.checked.schedule());
        let part = schedule.part(worker.stage, chunk);
        let Kept { input, result, bytes } = take(&mut self.kept, (chunk, i), "activation kept")?;
        let gradient = match schedule.is_last(part) {
            true => result.ones_like()?,
            false => take(&mut self.tensors, (Carries::Gradients, part, i), "gradient")?,
        };
        let (mut found, second) = match later {
            true => backward_in_halves(&result, &gradient)?,
            false => (backward_from(&result, &gradient)?, SecondHalf::default()),
        };
        if let Some(input) = input {
            let Some(gradient) = found.remove(&input) else {
                bail!("the output of this stage does not depend on its input");
            };
            self.tensors.insert((Carries::Gradients, part - 1, i), gradient.detach());
        }
        if !later {
            return self.add(chunk, i, found, bytes);
        }
        // Some gradients of parameters, such as a batch norm's, are complete in the first half.
        let waiting = found.bytes() + second.bytes();
        self.keep(waiting);
        self.halves.insert((chunk, i), (found, second, bytes + waiting));
        Ok(())
    }

    /// Computes the second half of a backward pass: the gradients of the weights.
    fn backward_weight(&mut self, chunk: usize, i: usize) -> TensorResult<()> {
        let (mut found, second, bytes) = take(&mut self.halves, (chunk, i), "first half")?;
        found.extend(second.run()?);
        self.add(chunk, i, found, bytes)
    }

    /// Adds a micro-batch's gradients of the weights to the sum, and frees what its backward pass has kept.
    fn add(&mut self, chunk: usize, i: usize, found: Gradients, bytes: usize) -> TensorResult<()> {
        self.bytes -= bytes;
        let gradients = self.worker.chunks[chunk].network.parameter_gradients(&found)?;
        self.sums[chunk].add(self.worker.hosts.held.start + i, gradients)
    }
    // ANCHOR_END: passes

    // ANCHOR: add_up
    /// Adds the gradients of all micro-batches of all pipelines, and averages their statistics into the running ones.
    pub(super) fn add_up(&mut self) -> Result<(), Error> {
        let Worker { chunks, replicas, tree, .. } = self.worker;
        for (sum, Chunk { network, .. }) in std::mem::take(&mut self.sums).into_iter().zip(chunks) {
            self.measured.gradients += sum.most_sets() * network.weights().parameter_bytes();
            self.gradients.extend(sum.total(&**replicas)?);
            network.norms().fold(&**replicas, tree)?;
        }
        Ok(())
    }

    /// Counts bytes that are kept from now on.
    fn keep(&mut self, bytes: usize) {
        self.bytes += bytes;
        self.measured.activations = self.measured.activations.max(self.bytes);
    }
}

/// Takes something of a micro-batch. A checked schedule makes sure that it is there.
fn take<K: Ord + fmt::Debug, T>(from: &mut BTreeMap<K, T>, key: K, what: &str) -> TensorResult<T> {
    match from.remove(&key) {
        Some(found) => Ok(found),
        None => bail!("{key:?}: there is no {what}"),
    }
}
// ANCHOR_END: add_up

/// The span of an instruction in a trace: on the track of a device's computations, or of its messages.
fn span(action: Action) -> tracing::Span {
    macro_rules! span {
        ($track:expr, $name:literal, $i:expr) => {
            info_span!(target: $track, $name, micro_batch = $i)
        };
    }
    match action {
        Action::Forward(i) => span!(COMPUTE, "forward", i),
        Action::Backward(i) | Action::BackwardInput(i) => span!(COMPUTE, "backward", i),
        Action::BackwardWeight(i) => span!(COMPUTE, "backward, weights", i),
        Action::Update => info_span!(target: COMPUTE, "update"),
        Action::RecvActivation(i) => span!(COMMUNICATION, "receive activation", i),
        Action::SendActivation(i) => span!(COMMUNICATION, "send activation", i),
        Action::RecvGradient(i) => span!(COMMUNICATION, "receive gradient", i),
        Action::SendGradient(i) => span!(COMMUNICATION, "send gradient", i),
    }
}
