//! The reducer: sums gradients over all ranks, bucket by bucket, during the backward pass.
//!
//! ```text
//! main thread        backward  layer 8  layer 7  layer 6  layer 5 …          wait  update
//! background thread                   └ bucket 0 ───── └ bucket 1 ───────────── ┘
//! ```
//!
//! The backward pass calls a [hook](Reducer::hook) as soon as the gradient of a parameter is complete. The hook copies the
//! gradient to its place in a bucket. A full bucket goes to the background thread.
//!
//! All ranks sum the buckets in the same order, so a full bucket waits for the buckets before it. If each rank summed its
//! buckets in the order in which they became full, two ranks could wait for each other's next bucket for ever.

use std::sync::{Arc, Mutex};

use candle_core::{Result, Tensor, bail};
use devices::move_view;
use harness::lock::locked;
use harness::report::trace::{COMMUNICATION, COMPUTE};
use ops::backward::backward_from;
use ops::parameters::{no_gradient, overwrite};
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::{self, SharedCommunicator};
use tracing::info_span;

use super::bucket::{BucketCaps, buckets};
use super::worker::Worker;
use crate::weights::{Named, Weights};

// ANCHOR: state
/// Sums gradients over all ranks.
pub(super) struct Reducer {
    parameters: Vec<Named>,
    /// For each parameter, its bucket and the start of its gradient there. Unused with a world size of 1.
    places: Vec<(usize, usize)>,
    state: Mutex<State>,
}

/// The progress of a backward pass.
struct State {
    /// True from the beginning of a backward pass to its end, and for ever after a failure. At other times gradients belong to
    /// another loss.
    under_way: bool,
    /// Whether this pass ends with the sums over all ranks.
    synchronise: bool,
    /// Whether the gradient of each parameter has come.
    come: Vec<bool>,
    /// Sums of earlier passes that were not synchronised. With a world size of 1, the sums of all passes.
    carried: Vec<Option<Tensor>>,
    buckets: Vec<Bucket>,
    /// The first bucket that has not gone to the background thread.
    next: usize,
    /// Whether buckets travel during the backward pass.
    overlap: bool,
    /// Whether sums were made before. A GPU loads a kernel when the kernel is first used, and may wait for all work before
    /// that. So no bucket travels during the first backward pass on a GPU.
    warm: bool,
    /// `None` with a world size of 1.
    worker: Option<Worker>,
}

struct Bucket {
    /// All gradients in a row. The next backward pass writes to this memory again. By then [`Reducer::finish`] has waited for
    /// the sums, and when an all-reduce returns, no other rank reads its input.
    flat: Tensor,
    /// The number of gradients.
    all: usize,
    /// The number of gradients that have not come in this pass.
    missing: usize,
}
// ANCHOR_END: state

impl Reducer {
    // ANCHOR: new
    /// Makes the buckets, and starts the background thread if there are other ranks.
    pub(super) fn new(
        weights: &Weights,
        caps: BucketCaps,
        rank: &SharedCommunicator,
        algorithm: Algorithm,
        overlap: bool,
    ) -> std::result::Result<Self, communicator::Error> {
        let (alone, parameters) = (rank.world_size() == 1, weights.parameters.clone());
        let members = if alone { Vec::new() } else { buckets(&weights.parameter_sizes(), caps) };
        let (mut places, mut buckets) = (vec![(0, 0); parameters.len()], Vec::new());
        for members in members {
            let mut len = 0;
            for &parameter in &members {
                places[parameter] = (buckets.len(), len);
                len += parameters[parameter].tensor.elem_count();
            }
            let first = &parameters[members[0]].tensor;
            let flat = Tensor::zeros(len, first.dtype(), first.device())?;
            buckets.push(Bucket { flat, all: members.len(), missing: members.len() });
        }
        let state = State {
            under_way: false,
            synchronise: true,
            come: vec![false; parameters.len()],
            carried: vec![None; parameters.len()],
            buckets,
            next: 0,
            overlap,
            warm: !parameters.iter().any(|named| named.tensor.device().is_cuda()),
            worker: if alone { None } else { Some(Worker::start(rank, algorithm)?) },
        };
        Ok(Self { parameters, places, state: Mutex::new(state) })
    }
    // ANCHOR_END: new

    /// Returns the number of buckets.
    pub(super) fn buckets(&self) -> usize {
        locked(&self.state).buckets.len()
    }

    /// From now on buckets travel after the backward pass.
    pub(super) fn no_overlap(&self) {
        locked(&self.state).overlap = false;
    }

    // ANCHOR: backward
    /// Runs the backward pass of a loss, during which full buckets travel. Without `synchronise` nothing is sent, and the next
    /// pass adds its gradients to this pass's gradients. Fails when a parameter has no gradient. Fails after a backward pass
    /// that failed: some of its gradients are in the buckets.
    pub(super) fn backward(&self, loss: &Tensor, synchronise: bool) -> Result<()> {
        let mut state = locked(&self.state);
        if std::mem::replace(&mut state.under_way, true) {
            bail!(
                "an earlier backward pass has failed, so the sums of gradients are not valid: make a new model"
            );
        }
        (state.synchronise, state.next) = (synchronise, 0);
        state.come.fill(false);
        state.buckets.iter_mut().for_each(|bucket| bucket.missing = bucket.all);
        // The hook takes the lock.
        drop(state);
        let span = info_span!(target: COMPUTE, "backward").entered();
        backward_from(loss, &loss.ones_like()?)?;
        drop(span);
        let mut state = locked(&self.state);
        if let Some(parameter) = state.come.iter().position(|come| !come) {
            bail!("{}", no_gradient(&self.parameters[parameter].name));
        }
        state.under_way = synchronise;
        Ok(())
    }
    // ANCHOR_END: backward

    // ANCHOR: on_gradient
    /// Returns the gradient hook of all parameters: the backward pass calls it with a parameter's number and gradient.
    pub(super) fn hook(self: &Arc<Self>) -> impl Fn(usize, &Tensor) -> Result<()> + use<> {
        let reducer = Arc::clone(self);
        move |parameter, gradient| {
            let state = &mut *locked(&reducer.state);
            if !state.under_way {
                return Ok(());
            }
            state.come[parameter] = true;
            let sum = match &state.carried[parameter] {
                Some(earlier) => &ops::sum(earlier, gradient)?,
                None => gradient,
            };
            let Some(worker) = state.worker.as_ref().filter(|_| state.synchronise) else {
                state.carried[parameter] = Some(sum.clone());
                return Ok(());
            };
            let (bucket, start) = reducer.places[parameter];
            let bucket = &mut state.buckets[bucket];
            let place = bucket.flat.narrow(0, start, sum.elem_count())?;
            overwrite(&place, &sum.flatten_all()?)?;
            bucket.missing -= 1;
            while state.overlap
                && state.warm
                && let Some(bucket) = state.buckets.get(state.next)
                && bucket.missing == 0
            {
                worker.all_reduce(state.next, &bucket.flat)?;
                state.next += 1;
            }
            Ok(())
        }
    }
    // ANCHOR_END: on_gradient

    // ANCHOR: finish
    /// Ends a backward pass, and returns the gradients in the order of the parameters: the sums over all ranks, or this
    /// rank's own gradients if the pass was not synchronised. Fails when another rank stops or stalls.
    pub(super) fn finish(&self) -> std::result::Result<Vec<Tensor>, communicator::Error> {
        let _span = info_span!(target: COMMUNICATION, "wait for buckets").entered();
        let state = &mut *locked(&self.state);
        let carried = state.carried.iter_mut().filter_map(Option::take).collect();
        let Some(worker) = state.worker.as_ref().filter(|_| state.synchronise) else {
            state.under_way = false;
            return Ok(carried);
        };
        for (number, bucket) in state.buckets.iter().enumerate().skip(state.next) {
            worker.all_reduce(number, &bucket.flat)?;
        }
        let sums = state.buckets.iter().map(|_| worker.sum());
        let sums = sums.collect::<std::result::Result<Vec<Tensor>, _>>()?;
        // On a GPU the sums move from the background's stream to this thread's stream. The background's stream then waits for
        // this stream, and so for the whole backward pass: all sums must be in its queue before.
        let home = |(sum, bucket): (&Tensor, &Bucket)| move_view(sum, bucket.flat.device());
        let sums = sums.iter().zip(&state.buckets).map(home).collect::<Result<Vec<_>>>()?;
        let gradient = |(parameter, &(bucket, start)): (&Named, &(usize, usize))| {
            let shape = parameter.tensor.shape();
            sums[bucket].narrow(0, start, shape.elem_count())?.reshape(shape)
        };
        let gradients = self.parameters.iter().zip(&self.places).map(gradient);
        let gradients = gradients.collect::<Result<_>>()?;
        (state.under_way, state.warm) = (false, true);
        Ok(gradients)
    }
    // ANCHOR_END: finish
}
