//! One step of one stage: what lies there between two instructions, and what each instruction does with it.

use std::collections::BTreeMap;

use candle_core::{ModuleT, Result as TensorResult, Tensor, Var, bail};
use concise_wrapper::Error;
use concise_wrapper::model::stand_in_loss;
use concise_wrapper::weights::Weights;
use datasets::Batch;
use harness::records::BatchSums;
use ops::cross_entropy;
use scratch_data_parallel::TreeSum;
use split_batch::loader::LocalBatch;
use trainer::DeferredSums;

use super::{Worker, meeting};
use crate::held::activations;
use crate::pipeline::schedule::Action;

/// Something of each micro-batch that has it now.
type OfEach<T> = BTreeMap<usize, T>;

/// A step that is being made.
pub(super) struct Pass<'a, M> {
    worker: &'a Worker<'a, M>,
    share: &'a LocalBatch,
    activations_in: OfEach<Tensor>,
    activations_out: OfEach<Tensor>,
    gradients_in: OfEach<Tensor>,
    gradients_out: OfEach<Tensor>,
    kept: OfEach<Kept>,
    sum: TreeSum,
    total: Total,
    seen: OfEach<DeferredSums>,
    bytes: usize,
    peak_bytes: usize,
}

/// What the backward pass of a micro-batch needs.
struct Kept {
    /// What arrived, as a variable: its gradient is what is sent back.
    input: Option<Var>,
    /// On the last stage the loss, elsewhere the activation.
    result: Tensor,
    bytes: usize,
}

/// What the sum came to; empty before that.
#[derive(Default)]
struct Total {
    /// Over the micro-batches of all replicas.
    gradients: Vec<Tensor>,
    /// The most sets of gradients that there were here at one time.
    most_sets: usize,
}

/// What a step came to, but for when.
pub(super) struct Ended {
    pub sums: Option<BatchSums>,
    pub activation_bytes: usize,
    pub gradient_bytes: usize,
}

impl<'a, M: ModuleT> Pass<'a, M> {
    pub fn new(worker: &'a Worker<'a, M>, share: &'a LocalBatch) -> Self {
        Self {
            worker,
            share,
            activations_in: OfEach::new(),
            activations_out: OfEach::new(),
            gradients_in: OfEach::new(),
            gradients_out: OfEach::new(),
            kept: OfEach::new(),
            sum: TreeSum::new(worker.tree),
            total: Total::default(),
            seen: OfEach::new(),
            bytes: 0,
            peak_bytes: 0,
        }
    }

    /// Does one thing.
    pub fn perform(
        &mut self,
        action: Action,
        update: &mut impl FnMut(&Weights, &[Tensor], usize) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let Worker { line, stage, shapes, network, .. } = self.worker;
        let arriving = |from, i, sample| {
            line.recv(from, &meeting::shape(self.rows(i), sample), network.dtype())
        };
        match action {
            Action::RecvActivation(i) => {
                let activation = arriving(stage - 1, i, &shapes.input)?;
                self.activations_in.insert(i, activation);
            }
            Action::Forward(i) => self.forward(i)?,
            Action::SendActivation(i) => {
                line.send_shared(
                    stage + 1,
                    &take(&mut self.activations_out, i, "activation to send")?,
                )?;
            }
            Action::RecvGradient(i) => {
                let gradient = arriving(stage + 1, i, &shapes.output)?;
                self.gradients_in.insert(i, gradient);
            }
            Action::Backward(i) => self.backward(i)?,
            Action::SendGradient(i) => {
                line.send_shared(
                    stage - 1,
                    &take(&mut self.gradients_out, i, "gradient to send")?,
                )?;
            }
            Action::Update => {
                update(network.weights(), &self.total.gradients, self.share.samples)?;
            }
            Action::BackwardInput(_) | Action::BackwardWeight(_) => {
                let text = "the backward pass of a worker is in one piece";
                return Err(candle_core::Error::Msg(text.to_owned()).into());
            }
        }
        Ok(())
    }

    /// Adds the gradients up over all micro-batches, those of the other replicas too, and averages their
    /// statistics into the running ones.
    pub fn add_up(&mut self) -> Result<(), Error> {
        let Worker { network, replicas, tree, .. } = self.worker;
        let sum = std::mem::replace(&mut self.sum, TreeSum::new(*tree));
        let most_sets = sum.most_sets();
        self.total = Total { gradients: sum.total(&**replicas)?, most_sets };
        Ok(network.norms().fold(&**replicas, tree)?)
    }

    /// Samples of a micro-batch; one stands in where there is none.
    fn rows(&self, micro_batch: usize) -> usize {
        self.share.shards[micro_batch].len().max(1)
    }

    fn forward(&mut self, i: usize) -> TensorResult<()> {
        let Worker { network, shapes, stage, .. } = self.worker;
        let batch = &self.share.shards[i];
        let (input, x) = if *stage > 0 {
            let arrived = take(&mut self.activations_in, i, "activation")?;
            let input = Var::from_tensor(&arrived)?;
            (Some(input.clone()), input.into_inner())
        } else if batch.is_empty() {
            let shape = meeting::shape(1, &shapes.input);
            (None, Tensor::zeros(shape, network.dtype(), network.device())?)
        } else {
            (None, batch.images.to_device(network.device())?)
        };
        network.norms().shard(i);
        network.norms().stand_in(batch.is_empty());
        let output = network.forward_training(&x)?;
        let result = if self.worker.is_last() {
            self.loss(i, &output)?
        } else {
            self.activations_out.insert(i, output.detach());
            output
        };
        let bytes = activations(&result, &x, network.weights());
        self.bytes += bytes;
        self.peak_bytes = self.peak_bytes.max(self.bytes);
        self.kept.insert(i, Kept { input, result, bytes });
        Ok(())
    }

    /// The sum of a micro-batch's losses.
    fn loss(&mut self, i: usize, logits: &Tensor) -> TensorResult<Tensor> {
        let batch = &self.share.shards[i];
        if batch.is_empty() {
            return stand_in_loss(logits);
        }
        let labels = batch.labels.to_device(logits.device())?;
        let loss = cross_entropy(logits, &labels)?;
        let batch = Batch { images: batch.images.clone(), labels };
        self.seen.insert(i, DeferredSums::new(&loss, logits, &batch)?);
        Ok(loss)
    }

    // ANCHOR: backward
    /// The gradients of a micro-batch's loss, here and for the stage before.
    ///
    /// A stage that is not the last one does not know the loss. It knows the loss's gradient by what it has sent
    /// on, and begins there.
    fn backward(&mut self, i: usize) -> TensorResult<()> {
        let network = &self.worker.network;
        let Kept { input, result, bytes } = take(&mut self.kept, i, "activation kept")?;
        let gradient = if self.worker.is_last() {
            result.ones_like()?
        } else {
            take(&mut self.gradients_in, i, "gradient")?
        };
        let (of_parameters, others) = network.all_gradients(&result, &gradient)?;
        self.sum.add(self.worker.first_leaf + i, of_parameters)?;
        if let Some(input) = input {
            let Some(gradient) = others.get(&input) else {
                bail!("what this stage computes does not depend on what it receives");
            };
            self.gradients_out.insert(i, gradient.detach());
        }
        self.bytes -= bytes;
        Ok(())
    }
    // ANCHOR_END: backward

    /// What the step came to, but for when.
    pub fn end(self) -> TensorResult<Ended> {
        let mut all = BatchSums::default();
        // In the order of their numbers.
        for unread in self.seen.values() {
            all += unread.read()?;
        }
        Ok(Ended {
            sums: self.worker.is_last().then_some(all),
            activation_bytes: self.peak_bytes,
            gradient_bytes: self.total.most_sets * self.worker.network.weights().parameter_bytes(),
        })
    }
}

/// What a micro-batch has; a checked schedule sees to it that it is there.
fn take<T>(of_each: &mut OfEach<T>, micro_batch: usize, what: &str) -> TensorResult<T> {
    match of_each.remove(&micro_batch) {
        Some(it) => Ok(it),
        None => bail!("micro-batch {micro_batch} has no {what}"),
    }
}
