//! The reducer: sums gradients over all ranks, bucket by bucket, during the backward pass.
//!
//! ```text
//! main thread        backward  layer 8  layer 7  layer 6  layer 5 …          wait  update
//! background thread                   └ bucket 0 ───── └ bucket 1 ───────────── ┘
//! ```
//!
//! All ranks sum the buckets in the same order, so a full bucket waits for the buckets before it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use candle_core::{DType, ModuleT, Result as TensorResult, Tensor, TensorId, bail};
use devices::move_view;
use harness::lock::locked;
use harness::report::trace::{COMMUNICATION, COMPUTE};
use model_state::parameters::no_gradient;
use ops::backward::backward_with_hook;
use ops::update::overwrite;
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::SharedCommunicator;
use tracing::info_span;

use super::worker::{Worker, sum_bucket};
use crate::weights::Named;
use crate::{Error, Network};

// ANCHOR: state
/// Sums gradients over all ranks.
pub(super) struct Reducer {
    slots: Vec<Slot>,
    /// The slot of each parameter, by the tensor that the layers use.
    numbers: HashMap<TensorId, usize>,
    /// In the order in which the ranks sum them. Empty with a world size of 1.
    pub(super) buckets: Vec<Bucket>,
    /// `None` with a world size of 1.
    worker: Option<Worker<Tensor>>,
    /// Whether buckets travel during the backward pass, or all of them after it.
    pub(super) overlap: bool,
    pub(super) algorithm: Algorithm,
    /// Whether a pass has ended before. During the first pass on a GPU no bucket travels: the GPU loads kernels then.
    warm: bool,
    /// True from the beginning of a backward pass until its gradients are returned, and for ever after a failure.
    under_way: bool,
    /// Whether this pass ends with the sums over all ranks.
    sends: bool,
    /// The first bucket that has not gone to the background thread in this pass.
    next: usize,
}

/// A parameter, and its gradient.
struct Slot {
    parameter: Named,
    /// The bucket of the gradient, and the start of the gradient there.
    place: (usize, usize),
    /// Whether the gradient has come in this pass.
    come: bool,
    /// The sum of passes that send nothing.
    carried: Option<Tensor>,
}

pub(super) struct Bucket {
    /// All gradients in a row. The next backward pass writes to this memory again. By then [`Reducer::finish`] has waited for
    /// the sums, and when an all-reduce returns, no other rank reads its input.
    flat: Tensor,
    members: Vec<usize>,
}
// ANCHOR_END: state

impl Reducer {
    // ANCHOR: new
    /// Makes a reducer without buckets, and starts the background thread if there are other ranks. Fails when parameters have
    /// more than one type, because a bucket is one tensor.
    pub(super) fn new<M: ModuleT>(
        network: &Network<M>,
        rank: &SharedCommunicator,
        algorithm: Algorithm,
        overlap: bool,
    ) -> Result<Self, Error> {
        let (weights, alone) = (network.weights(), rank.world_size() == 1);
        let slot = |parameter: &Named| {
            let parameter = parameter.clone();
            Slot { parameter, place: (0, 0), come: false, carried: None }
        };
        let slots: Vec<Slot> = weights.parameters.iter().map(slot).collect();
        let dtype = slots.first().map_or(network.dtype(), Slot::dtype);
        if let Some(other) = slots.iter().find(|slot| slot.dtype() != dtype) {
            let [other_type, dtype] = [other.dtype(), dtype].map(|dtype| dtype.as_str());
            let [other, first] = [other, &slots[0]].map(|slot| &slot.parameter.name);
            let both = format!("{other} is {other_type}, and {first} {dtype}");
            let text = format!("{both}: in buckets all parameters are of one type");
            return Err(candle_core::Error::Msg(text).into());
        }
        Ok(Self {
            slots,
            numbers: network.used().map(Tensor::id).zip(0..).collect(),
            buckets: Vec::new(),
            worker: if alone { None } else { Some(Worker::start(rank)?) },
            overlap,
            algorithm,
            warm: !network.device().is_cuda(),
            under_way: false,
            sends: false,
            next: 0,
        })
    }

    /// Makes these buckets. Fails when a parameter is not in exactly one of them.
    pub(super) fn fill(&mut self, buckets: &[Vec<usize>]) -> TensorResult<()> {
        self.buckets.clear();
        for (number, Slot { parameter, .. }) in self.slots.iter().enumerate() {
            let count = buckets.iter().flatten().filter(|&&member| member == number).count();
            if count != 1 {
                bail!("parameter {} is in {count} buckets: it needs exactly one", parameter.name);
            }
        }
        for members in buckets.iter().filter(|_| self.worker.is_some()) {
            let mut len = 0;
            for &member in members {
                self.slots[member].place = (self.buckets.len(), len);
                len += self.slots[member].parameter.tensor.elem_count();
            }
            let like = &self.slots[0].parameter.tensor;
            let flat = Tensor::zeros(len, like.dtype(), like.device())?;
            self.buckets.push(Bucket { flat, members: members.clone() });
        }
        Ok(())
    }
    // ANCHOR_END: new

    // ANCHOR: backward
    /// Runs a backward pass. With `synchronise`, full buckets travel, and [`finish`](Self::finish) returns the sums over all
    /// ranks. Without, the pass sends nothing, and the next pass adds its gradients to this pass's gradients. Fails after a
    /// backward pass that failed.
    pub(super) fn backward(
        reducer: &Arc<Mutex<Self>>,
        loss: &Tensor,
        synchronise: bool,
    ) -> TensorResult<()> {
        let mut state = locked(reducer);
        if std::mem::replace(&mut state.under_way, true) {
            bail!(
                "an earlier backward pass has failed, so the sums of gradients are not valid: make a new model"
            );
        }
        (state.sends, state.next) = (synchronise && state.worker.is_some(), 0);
        state.slots.iter_mut().for_each(|slot| slot.come = false);
        drop(state);
        let _span = info_span!(target: COMPUTE, "backward").entered();
        let reducer = Arc::clone(reducer);
        backward_with_hook(loss, &loss.ones_like()?, move |tensor, gradient| {
            let state = &mut *locked(&reducer);
            let Some(&number) = state.numbers.get(&tensor.id()) else { return Ok(()) };
            let slot = &mut state.slots[number];
            slot.come = true;
            let gradient = gradient.to_dtype(slot.dtype())?;
            let sum = match slot.carried.take() {
                Some(earlier) => ops::sum(&earlier, &gradient)?,
                None => gradient,
            };
            let Some(worker) = state.worker.as_ref().filter(|_| state.sends) else {
                slot.carried = Some(sum);
                return Ok(());
            };
            let (bucket, start) = slot.place;
            let place = state.buckets[bucket].flat.narrow(0, start, sum.elem_count())?;
            overwrite(&place, &sum.flatten_all()?)?;
            while state.overlap
                && state.warm
                && let Some(bucket) = state.buckets.get(state.next)
                && bucket.members.iter().all(|&member| state.slots[member].come)
            {
                worker.add(sum_bucket(state.next, &bucket.flat, state.algorithm)?);
                state.next += 1;
            }
            Ok(())
        })
    }
    // ANCHOR_END: backward

    // ANCHOR: finish
    /// Checks that every gradient has come, after the backward pass. The message of the error names the parameter.
    pub(super) fn check(&mut self) -> TensorResult<()> {
        if let Some(missing) = self.slots.iter().find(|slot| !slot.come) {
            bail!("{}", no_gradient(&missing.parameter.name));
        }
        self.under_way = self.sends;
        Ok(())
    }

    /// Ends a backward pass, and returns the gradients in the order of the parameters: the sums over all ranks, or this
    /// rank's own gradients if the pass sends nothing. Fails when a parameter has no gradient, or another rank stops or stalls.
    pub(super) fn finish(&mut self) -> Result<Vec<Tensor>, Error> {
        self.check()?;
        let _span = info_span!(target: COMMUNICATION, "wait for buckets").entered();
        let Some(worker) = self.worker.as_ref().filter(|_| self.sends) else {
            return Ok(self.slots.iter_mut().filter_map(|slot| slot.carried.take()).collect());
        };
        for (number, bucket) in self.buckets.iter().enumerate().skip(self.next) {
            worker.add(sum_bucket(number, &bucket.flat, self.algorithm)?);
        }
        let sum = |bucket: &Bucket| Ok(move_view(&worker.next()?, bucket.flat.device())?);
        let sums = self.buckets.iter().map(sum).collect::<Result<Vec<_>, Error>>()?;
        let gradient = |Slot { parameter, place: (bucket, start), .. }: &Slot| {
            let shape = parameter.tensor.shape();
            sums[*bucket].narrow(0, *start, shape.elem_count())?.reshape(shape)
        };
        let gradients = self.slots.iter().map(gradient).collect::<TensorResult<_>>()?;
        (self.under_way, self.warm) = (false, true);
        Ok(gradients)
    }
    // ANCHOR_END: finish
}

impl Slot {
    fn dtype(&self) -> DType {
        self.parameter.tensor.dtype()
    }
}
