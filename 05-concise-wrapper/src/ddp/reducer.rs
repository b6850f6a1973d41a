//! The reducer: sums gradients over all ranks, bucket by bucket, during the backward pass.
//!
//! ```text
//! main thread        backward  layer 8  layer 7  layer 6  layer 5 …          wait  update
//! background thread                   └ bucket 0 ───── └ bucket 1 ───────────── ┘
//! ```
//!
//! The backward pass calls a hook as soon as the gradient of a parameter is complete. The hook copies the gradient to its place
//! in a bucket. A full bucket goes to the background thread. All ranks sum the buckets in the same order, so a full bucket waits
//! for the buckets before it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use candle_core::{ModuleT, Result as TensorResult, Tensor, TensorId, bail};
use devices::move_view;
use harness::lock::locked;
use harness::report::trace::{COMMUNICATION, COMPUTE};
use model_state::parameters::no_gradient;
use ops::backward::backward_with_hook;
use ops::update::overwrite;
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::SharedCommunicator;
use tracing::info_span;

use super::bucket::{BucketCaps, buckets};
use super::worker::Worker;
use crate::weights::Named;
use crate::{Error, Network};

// ANCHOR: state
/// Sums gradients over all ranks.
pub(super) struct Reducer {
    parameters: Vec<Named>,
    /// The number of each parameter, by the tensor that the layers use.
    numbers: HashMap<TensorId, usize>,
    /// In the order in which the ranks sum them. Empty with a world size of 1, and so are the places.
    pub(super) buckets: Vec<Bucket>,
    /// For each parameter, its bucket and the start of its gradient there.
    places: Vec<(usize, usize)>,
    /// `None` with a world size of 1.
    worker: Option<Worker>,
    /// Whether buckets travel during the backward pass, or all of them after it.
    pub(super) overlap: bool,
    /// Whether the sums are those of a library such as NCCL.
    pub(super) native: bool,
    /// Whether sums were made before: no bucket travels during the first backward pass on a GPU, which loads kernels and may
    /// wait for all work before that.
    warm: bool,
    /// True from the beginning of a backward pass until its gradients are returned, and for ever after a failure.
    under_way: bool,
    /// Whether this pass ends with the sums over all ranks.
    sends: bool,
    /// Whether the gradient of each parameter has come in this pass.
    come: Vec<bool>,
    /// The first bucket that has not gone to the background thread in this pass.
    next: usize,
    /// Sums of passes that send nothing.
    carried: Vec<Option<Tensor>>,
}

pub(super) struct Bucket {
    /// All gradients in a row. The next backward pass writes to this memory again. By then [`Reducer::finish`] has waited for
    /// the sums, and when an all-reduce returns, no other rank reads its input.
    flat: Tensor,
    members: Vec<usize>,
}

impl Reducer {
    /// Makes the buckets, and starts the background thread if there are other ranks. Fails when parameters have more than one
    /// type, because a bucket is one tensor.
    pub(super) fn new<M: ModuleT>(
        network: &Network<M>,
        caps: BucketCaps,
        rank: &SharedCommunicator,
        algorithm: Algorithm,
        overlap: bool,
    ) -> Result<Self, Error> {
        let (weights, alone) = (network.weights(), rank.world_size() == 1);
        let parameters = weights.parameters.clone();
        let dtype = parameters.first().map_or(network.dtype(), |first| first.tensor.dtype());
        if let Some(other) = parameters.iter().find(|named| named.tensor.dtype() != dtype) {
            let [other_type, dtype] = [other.tensor.dtype(), dtype].map(|dtype| dtype.as_str());
            let both =
                format!("{} is {other_type}, and {} {dtype}", other.name, parameters[0].name);
            let text = format!("{both}: in buckets all parameters are of one type");
            return Err(candle_core::Error::Msg(text).into());
        }
        let (mut places, mut filled) = (vec![(0, 0); parameters.len()], Vec::new());
        let members = if alone { Vec::new() } else { buckets(&weights.parameter_sizes(), caps) };
        for members in members {
            let mut len = 0;
            for &member in &members {
                places[member] = (filled.len(), len);
                len += parameters[member].tensor.elem_count();
            }
            let flat = Tensor::zeros(len, dtype, network.device())?;
            filled.push(Bucket { flat, members });
        }
        Ok(Self {
            numbers: network.used().map(Tensor::id).zip(0..).collect(),
            buckets: filled,
            places,
            worker: if alone { None } else { Some(Worker::start(rank, algorithm)?) },
            overlap,
            native: algorithm == Algorithm::Native,
            warm: !network.device().is_cuda(),
            under_way: false,
            sends: false,
            come: vec![false; parameters.len()],
            next: 0,
            carried: vec![None; parameters.len()],
            parameters,
        })
    }
    // ANCHOR_END: state

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
        state.come.fill(false);
        drop(state);
        let _span = info_span!(target: COMPUTE, "backward").entered();
        let reducer = Arc::clone(reducer);
        backward_with_hook(loss, &loss.ones_like()?, move |tensor, gradient| {
            let state = &mut *locked(&reducer);
            let Some(&number) = state.numbers.get(&tensor.id()) else { return Ok(()) };
            state.come[number] = true;
            let gradient = gradient.to_dtype(state.parameters[number].tensor.dtype())?;
            let sum = match state.carried[number].take() {
                Some(earlier) => ops::sum(&earlier, &gradient)?,
                None => gradient,
            };
            let Some(worker) = state.worker.as_ref().filter(|_| state.sends) else {
                state.carried[number] = Some(sum);
                return Ok(());
            };
            let (bucket, start) = state.places[number];
            let place = state.buckets[bucket].flat.narrow(0, start, sum.elem_count())?;
            overwrite(&place, &sum.flatten_all()?)?;
            while state.overlap
                && state.warm
                && let Some(bucket) = state.buckets.get(state.next)
                && bucket.members.iter().all(|&member| state.come[member])
            {
                worker.add(state.next, &bucket.flat)?;
                state.next += 1;
            }
            Ok(())
        })
    }
    // ANCHOR_END: backward

    // ANCHOR: finish
    /// Checks that every gradient has come, after the backward pass. The message of the error names the parameter.
    pub(super) fn check(&mut self) -> TensorResult<()> {
        if let Some(missing) = self.come.iter().position(|come| !come) {
            bail!("{}", no_gradient(&self.parameters[missing].name));
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
            return Ok(self.carried.iter_mut().filter_map(Option::take).collect());
        };
        for (number, bucket) in self.buckets.iter().enumerate().skip(self.next) {
            worker.add(number, &bucket.flat)?;
        }
        let sum = |bucket: &Bucket| Ok(move_view(&worker.sum()?, bucket.flat.device())?);
        let sums = self.buckets.iter().map(sum).collect::<Result<Vec<_>, Error>>()?;
        let gradient = |(parameter, &(bucket, start)): (&Named, &(usize, usize))| {
            let shape = parameter.tensor.shape();
            sums[bucket].narrow(0, start, shape.elem_count())?.reshape(shape)
        };
        let gradients = self.parameters.iter().zip(&self.places).map(gradient);
        let gradients = gradients.collect::<TensorResult<_>>()?;
        (self.under_way, self.warm) = (false, true);
        Ok(gradients)
    }
    // ANCHOR_END: finish
}
