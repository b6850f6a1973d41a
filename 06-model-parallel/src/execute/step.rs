//! One list on one stage: the state between two instructions, and the execution of each instruction.

use std::collections::BTreeMap;
use std::ops::Add;

use candle_core::{Result as TensorResult, Tensor, Var, bail};
use concise_wrapper::Error;
use concise_wrapper::model::stand_in_loss;
use concise_wrapper::weights::Weights;
use datasets::Batch;
use harness::records::BatchSums;
use harness::report::trace::{COMMUNICATION, COMPUTE};
use ops::backward::{Gradients, SecondHalf, backward_from, backward_in_halves, no_grad};
use ops::size_in_bytes;
use tracing::info_span;
use trainer::StepSums;

use super::unit::Unit;
use super::{Executor, Placed, batch_of, refuse};
use crate::bytes::{Bytes, activations};
use crate::gantt::words;
use crate::instructions::{Action, Carries, Instruction, Key, Message, Schedule};
use crate::simulate::Span;

// ANCHOR: state
/// Updates the weights of a unit with their summed gradients. Returns the bytes of the optimizer's state.
pub(super) type Update<'a> = dyn FnMut(&Weights, &[Tensor]) -> TensorResult<usize> + 'a;

/// The state of a list between two instructions.
pub(super) struct StepState<'a, U> {
    executor: &'a Executor<U>,
    pub(super) schedule: &'a Schedule,
    micro_batches: &'a [Batch],
    /// Without updates this is an evaluation: batch norms use their running statistics.
    update: Option<&'a mut Update<'a>>,
    /// Activations and gradients that wait for a pass of this stage, or for the instruction that sends them.
    tensors: BTreeMap<Key, Tensor>,
    /// The messages to take in for each message that this stage waits for.
    arrivals: BTreeMap<Key, Vec<Message>>,
    /// The tensors that a unit keeps of a micro-batch, and their bytes, by unit and micro-batch.
    kept: BTreeMap<(usize, usize), (Kept, usize)>,
    /// Loss and correct answers of each micro-batch, on the rank whose loss counts.
    sums: BTreeMap<usize, StepSums>,
    /// The bytes of messages that this stage has sent.
    pub(super) sent: usize,
    /// The most bytes during this instruction.
    held: Bytes,
}

/// The tensors of a micro-batch that a unit keeps between two passes.
enum Kept {
    /// For a recomputation: the input.
    Input(Tensor),
    /// For a backward pass: the received activation as a variable, if the unit before needs its gradient; and the loss, or
    /// the activation that went to the next unit.
    Graph(Option<Var>, Tensor),
    /// For the second half of a backward pass: the gradients of parameters so far, and the rest.
    Half(Gradients, SecondHalf),
}

impl<'a, U: Unit> StepState<'a, U> {
    pub(super) fn new(
        executor: &'a Executor<U>,
        schedule: &'a Schedule,
        micro_batches: &'a [Batch],
        update: Option<&'a mut Update<'a>>,
    ) -> Self {
        Self {
            executor,
            schedule,
            micro_batches,
            update,
            tensors: BTreeMap::new(),
            arrivals: schedule.arrivals(executor.stage),
            kept: BTreeMap::new(),
            sums: BTreeMap::new(),
            sent: 0,
            held: Bytes::default(),
        }
    }

    // ANCHOR_END: state

    // ANCHOR: execute
    /// Executes one instruction, and waits for the device. The span has the most bytes that the stage has held meanwhile.
    pub(super) fn execute(&mut self, instruction: Instruction) -> Result<Span, Error> {
        let (Instruction { unit, action }, executor) = (instruction, self.executor);
        let of_unit = &executor.units[&unit].unit;
        // To wait for the sum over the replicas is no work.
        let summed = if action == Action::Update { of_unit.take_gradients()? } else { Vec::new() };
        let name = words(action).2;
        let _span = match action.computes() {
            true => info_span!(target: COMPUTE, "instruction", name, %instruction).entered(),
            false => info_span!(target: COMMUNICATION, "instruction", name, %instruction).entered(),
        };
        let start = executor.now();
        self.held = Bytes::default();
        self.weigh(bytes_of_gradients(&summed));
        match (action, self.schedule.message(instruction)) {
            (Action::Forward(i) | Action::ForwardOnly(i) | Action::Recompute(i), _) => {
                self.forward(instruction, i)?;
            }
            (Action::Backward(i), _) => self.backward(unit, i, false)?,
            (Action::BackwardInput(i), _) => self.backward(unit, i, true)?,
            (Action::BackwardWeight(i), _) => self.backward_weight(unit, i)?,
            // ANCHOR: collectives
            (Action::AllReduce | Action::Gather, _) => {
                of_unit.start(action)?;
                self.weigh(Bytes::default());
            }
            (Action::ReduceScatter, _) => {
                let gradients = of_unit.held().gradients;
                of_unit.start(action)?;
                // The gradients were joined in a row.
                self.weigh(Bytes { gradients, ..Bytes::default() });
            }
            (Action::Wait, _) => of_unit.wait()?,
            (Action::Free, _) => of_unit.free()?,
            // ANCHOR_END: collectives
            (Action::Update, _) => self.update(unit, &summed)?,
            (_, Some(message @ Message { sends: false, .. })) => self.receive(message)?,
            (_, Some(message)) => {
                let tensor = self.take(message.key)?;
                self.sent += size_in_bytes(&tensor);
                executor.pipeline.send_shared(message.to, &tensor)?;
            }
            (_, None) => return refuse(format!("{instruction} is no message")),
        }
        if action.computes() {
            // A GPU goes on computing after the call has returned.
            of_unit.network().device().synchronize()?;
        }
        let (stage, end, held) = (executor.stage, executor.now(), self.held);
        Ok(Span { stage, instruction, start, end, held })
    }

    /// Receives a message, and the messages that arrive before it.
    fn receive(&mut self, wanted: Message) -> Result<(), Error> {
        let pipeline = &self.executor.pipeline;
        for Message { from, key, .. } in self.arrivals.remove(&wanted.key).unwrap_or_default() {
            let (carries, unit, micro_batch) = key;
            let Placed { unit, input, output, .. } = &self.executor.units[&unit];
            let sample = match carries {
                Carries::Activations => input,
                Carries::Gradients => output,
            };
            // One sample stands in for an empty micro-batch.
            let rows = self.micro_batches[micro_batch].samples().max(1);
            let dtype = unit.network().dtype();
            self.tensors.insert(key, pipeline.recv(from, &batch_of(rows, sample), dtype)?);
        }
        self.weigh(Bytes::default());
        Ok(())
    }
    // ANCHOR_END: execute

    // ANCHOR: passes
    /// Runs a unit's layers on a micro-batch: on the images, on the activation of the unit before, or on the kept input.
    fn forward(&mut self, it: Instruction, i: usize) -> TensorResult<()> {
        let (unit, schedule) = (it.unit, self.schedule);
        let again = matches!(it.action, Action::Recompute(_));
        let keeps_graph = again || matches!(it.action, Action::Forward(_));
        let (network, batch) = (self.executor.units[&unit].unit.network(), &self.micro_batches[i]);
        let x = if again {
            let Some((Kept::Input(x), _)) = self.kept.remove(&(unit, i)) else {
                bail!("{it}: no input is kept");
            };
            x
        } else if unit > 0 {
            self.take((Carries::Activations, unit, i))?
        } else if batch.is_empty() {
            // Black images, and tokens 0.
            let sample = &batch.images.dims()[1..];
            Tensor::zeros(batch_of(1, sample), batch.images.dtype(), network.device())?
        } else {
            batch.images.to_device(network.device())?
        };
        let of_input = size_in_bytes(&x);
        if !keeps_graph && unit >= schedule.first_trained {
            self.kept.insert((unit, i), (Kept::Input(x.clone()), of_input));
        }
        let needs_gradient = keeps_graph && unit > schedule.first_trained;
        let input = if needs_gradient { Some(Var::from_tensor(&x)?) } else { None };
        let x = input.as_ref().map_or(x, |input| input.as_tensor().clone());
        network.norms().shard(i);
        network.norms().stand_in(batch.is_empty());
        let output = match (&self.update, keeps_graph) {
            (None, _) => no_grad(|| candle_core::Module::forward(network, &x))?,
            (_, true) => network.forward_training(&x)?,
            (_, false) => no_grad(|| network.forward_training(&x))?,
        };
        network.norms().stand_in(false);
        let result = if schedule.is_last(unit) {
            self.loss(i, &output)?
        } else {
            if !again {
                self.tensors.insert((Carries::Activations, unit + 1, i), output.detach());
            }
            output
        };
        if keeps_graph {
            let bytes = activations(&result, &x, network.weights());
            self.kept.insert((unit, i), (Kept::Graph(input, result), bytes));
        }
        self.weigh(Bytes { activations: if again { of_input } else { 0 }, ..Bytes::default() });
        Ok(())
    }

    /// Takes an activation or a gradient. A checked schedule makes sure that it is there.
    fn take(&mut self, key: Key) -> TensorResult<Tensor> {
        match self.tensors.remove(&key) {
            Some(found) => Ok(found),
            None => bail!("{key:?}: there is no such tensor"),
        }
    }

    /// The sum of the losses of a micro-batch.
    fn loss(&mut self, i: usize, logits: &Tensor) -> TensorResult<Tensor> {
        let batch = &self.micro_batches[i];
        if batch.is_empty() {
            return stand_in_loss(logits);
        }
        let Executor { settings, parts, .. } = self.executor;
        let labels = batch.labels.to_device(logits.device())?;
        let (loss, sums) = (settings.loss)(logits, &labels, parts)?;
        // Ranks that share the layers have the same sums, which count once.
        if parts.rank() == 0 {
            self.sums.insert(i, StepSums::Deferred(sums, batch.len() as u64));
        }
        Ok(loss)
    }

    /// Computes the gradient of a micro-batch's loss by the input, and the gradients of the weights now or `later`.
    ///
    /// A unit without the loss starts from the gradient of the activation that it sent.
    fn backward(&mut self, unit: usize, i: usize, later: bool) -> TensorResult<()> {
        let Some((Kept::Graph(input, result), bytes)) = self.kept.remove(&(unit, i)) else {
            bail!("no activation of micro-batch {i} is kept");
        };
        // The message is held until the pass is done.
        let message = (Carries::Gradients, unit, i);
        let gradient = match (self.schedule.is_last(unit), self.tensors.get(&message)) {
            (true, _) => result.ones_like()?,
            (false, Some(gradient)) => gradient.clone(),
            (false, None) => bail!("{message:?}: there is no gradient"),
        };
        let (mut found, second) = match later {
            true => backward_in_halves(&result, &gradient)?,
            false => (backward_from(&result, &gradient)?, SecondHalf::default()),
        };
        if let Some(input) = input {
            let Some(gradient) = found.remove(&input) else {
                bail!("the output of this stage does not depend on its input");
            };
            self.tensors.insert((Carries::Gradients, unit - 1, i), gradient.detach());
        }
        if later {
            // Some gradients of parameters, such as a batch norm's, are complete in the first half.
            let waiting = found.bytes() + second.bytes();
            self.kept.insert((unit, i), (Kept::Half(found, second), bytes + waiting));
            self.weigh(Bytes::default());
        } else {
            self.add(unit, i, found, bytes)?;
        }
        self.tensors.remove(&message);
        Ok(())
    }

    /// Computes the second half of a backward pass: the gradients of the weights.
    fn backward_weight(&mut self, unit: usize, i: usize) -> TensorResult<()> {
        let Some((Kept::Half(mut found, second), bytes)) = self.kept.remove(&(unit, i)) else {
            bail!("there is no first half of micro-batch {i}");
        };
        found.extend(second.run()?);
        self.add(unit, i, found, bytes)
    }

    /// Adds a micro-batch's gradients of the weights to the sum. What the backward pass has used is free then.
    fn add(&mut self, unit: usize, i: usize, found: Gradients, bytes: usize) -> TensorResult<()> {
        let layers = &self.executor.units[&unit].unit;
        let gradients = layers.network().parameter_gradients(&found)?;
        drop(found);
        self.weigh(Bytes { activations: bytes, ..bytes_of_gradients(&gradients) });
        layers.add(i, gradients)
    }
    // ANCHOR_END: passes

    // ANCHOR: update
    /// Updates the weights of a unit.
    fn update(&mut self, unit: usize, summed: &[Tensor]) -> TensorResult<()> {
        if let Some(update) = &mut self.update {
            let Placed { unit, state, .. } = &self.executor.units[&unit];
            state.set(update(unit.owned(), summed)?);
            self.weigh(bytes_of_gradients(summed));
        }
        Ok(())
    }

    /// Loss and correct answers of each micro-batch: on other ranks than the one whose loss counts, zeros.
    pub(super) fn sums(&self) -> TensorResult<Vec<BatchSums>> {
        let none = BatchSums::of_no_samples();
        let of = |i| self.sums.get(&i).map_or(Ok(none), StepSums::read);
        (0..self.schedule.micro_batches).map(of).collect()
    }

    /// Counts the bytes that are held now, with others that nobody else counts.
    fn weigh(&mut self, others: Bytes) {
        // An activation that a graph of this stage keeps is no message.
        let is_kept = |&(carries, user, i): &Key| {
            let of_sender = user.checked_sub(1).and_then(|unit| self.kept.get(&(unit, i)));
            carries == Carries::Activations && matches!(of_sender, Some((Kept::Graph(..), _)))
        };
        let messages = self.tensors.iter().filter(|(key, _)| !is_kept(key));
        let of_stage = Bytes {
            optimizer: self.executor.units.values().map(|placed| placed.state.get()).sum(),
            activations: self.kept.values().map(|(_, bytes)| bytes).sum(),
            messages: messages.map(|(_, tensor)| size_in_bytes(tensor)).sum(),
            ..Bytes::default()
        };
        let units = self.executor.units.values().map(|placed| placed.unit.held());
        let now = units.chain([others]).fold(of_stage, |sum, more| sum.with(more, Add::add));
        self.held = self.held.with(now, usize::max);
    }
}

fn bytes_of_gradients(gradients: &[Tensor]) -> Bytes {
    Bytes { gradients: gradients.iter().map(size_in_bytes).sum(), ..Bytes::default() }
}
// ANCHOR_END: update
