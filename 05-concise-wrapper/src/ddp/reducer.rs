//! Gradients that are added up while the backward pass still runs.
//!
//! ```text
//! this thread       backward  layer 8  layer 7  layer 6  layer 5 …          wait  update
//! background thread                  └ bucket 0 ───── └ bucket 1 ───────────── ┘
//! ```
//!
//! The backward pass hands out each gradient as soon as it is finished. It is copied to its place in its
//! bucket, and a bucket that is full goes to a thread of its own, which adds it up over all ranks.
//!
//! Buckets are added up in their order, on every rank: a full bucket waits for those before it. In the
//! order in which they happen to get full, two ranks could wait for each other's next bucket for ever.

use std::sync::{Mutex, MutexGuard};

use candle_core::{Result, Tensor, bail};
use devices::move_view;
use harness::lock::locked;
use ops::parameters::{no_gradient, overwrite};
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::{self, SharedCommunicator};

use super::bucket::{BucketCaps, buckets};
use super::worker::Worker;
use crate::gradient_hook::GradientHook;
use crate::weights::Named;

/// Adds gradients up over all ranks, bucket by bucket, in the background.
pub(super) struct Reducer {
    /// The bucket of each parameter, and its place there.
    places: Vec<Place>,
    names: Vec<String>,
    state: Mutex<State>,
}

#[derive(Clone, Debug)]
struct Place {
    bucket: usize,
    start: usize,
    shape: Vec<usize>,
}

struct State {
    buckets: Vec<Bucket>,
    /// Which gradients have come in this backward pass.
    come: Vec<bool>,
    /// The first bucket that has not been sent.
    next: usize,
    synchronise: bool,
    /// What becomes of gradients that come.
    pass: Pass,
    overlap: bool,
    /// Whether sums were made before: on a GPU, where kernels are loaded when they are first used, which may wait for all
    /// that the GPU does, none are made beside the first backward pass.
    warm: bool,
    /// Sums of earlier backward passes that were not synchronised; of all, where there is one rank.
    carried: Vec<Option<Tensor>>,
    /// `None` where there is one rank: then nothing is to be added up.
    worker: Option<Worker>,
}

/// Where a backward pass stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pass {
    /// Nobody has asked for one: gradients that come are of another loss, and not for here.
    Idle,
    /// From its beginning to its end; for ever, if it fails.
    UnderWay,
}

struct Bucket {
    /// All gradients in a row.
    flat: Tensor,
    parameters: usize,
    missing: usize,
}

/// Makes sure that gradients can lie in a row.
pub(super) fn one_type(parameters: &[Named]) -> Result<()> {
    let Some(first) = parameters.first() else { return Ok(()) };
    let (name, dtype) = (&first.name, first.tensor.dtype());
    match parameters.iter().find(|named| named.tensor.dtype() != dtype) {
        None => Ok(()),
        Some(Named { name: other, tensor }) => bail!(
            "{other} is {}, and {name} {}: in buckets all parameters are of one type",
            tensor.dtype().as_str(),
            dtype.as_str()
        ),
    }
}

impl Reducer {
    pub(super) fn new(
        parameters: &[Named],
        caps: BucketCaps,
        rank: &SharedCommunicator,
        algorithm: Algorithm,
        overlap: bool,
    ) -> std::result::Result<Self, communicator::Error> {
        let alone = rank.world_size() == 1;
        let sizes: Vec<usize> = parameters.iter().map(Named::bytes).collect();
        let mut places = vec![None; parameters.len()];
        let mut made = Vec::new();
        let buckets = if alone { Vec::new() } else { buckets(&sizes, caps) };
        for (bucket, members) in buckets.iter().enumerate() {
            let mut start = 0;
            for &parameter in members {
                let tensor = &parameters[parameter].tensor;
                places[parameter] = Some(Place { bucket, start, shape: tensor.dims().to_vec() });
                start += tensor.elem_count();
            }
            let first = &parameters[members[0]].tensor;
            let flat = Tensor::zeros(start, first.dtype(), first.device())?;
            made.push(Bucket { flat, parameters: members.len(), missing: members.len() });
        }
        let state = State {
            buckets: made,
            come: vec![false; parameters.len()],
            next: 0,
            synchronise: true,
            pass: Pass::Idle,
            carried: vec![None; parameters.len()],
            overlap,
            warm: !parameters.iter().any(|named| named.tensor.device().is_cuda()),
            worker: match alone {
                true => None,
                false => Some(Worker::start(rank.background()?, algorithm)?),
            },
        };
        Ok(Self {
            places: places.into_iter().flatten().collect(),
            names: parameters.iter().map(|named| named.name.clone()).collect(),
            state: Mutex::new(state),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        locked(&self.state)
    }

    /// How many buckets there are.
    pub(super) fn buckets(&self) -> usize {
        self.lock().buckets.len()
    }

    /// From now on buckets are added up after the backward pass, not during it.
    pub(super) fn after_backward(&self) {
        self.lock().overlap = false;
    }

    /// Before a backward pass: whether it is the one at whose end all ranks hold the sum.
    ///
    /// What is left of a pass that failed would be added to this one, here and in the background.
    pub(super) fn begin(&self, synchronise: bool) -> Result<()> {
        let mut state = self.lock();
        if std::mem::replace(&mut state.pass, Pass::UnderWay) == Pass::UnderWay {
            bail!(
                "an earlier backward pass has failed, and its gradients are not all where they belong: begin anew"
            );
        }
        state.synchronise = synchronise;
        state.next = 0;
        state.come.fill(false);
        for bucket in &mut state.buckets {
            bucket.missing = bucket.parameters;
        }
        Ok(())
    }

    /// After a backward pass without synchronisation: makes sure that nothing is missing.
    pub(super) fn carry(&self) -> Result<()> {
        let mut state = self.lock();
        self.nothing_missing(&state)?;
        state.pass = Pass::Idle;
        Ok(())
    }

    /// After a synchronised backward pass: the sums over all ranks, in the order of the parameters.
    pub(super) fn finish(&self) -> std::result::Result<Vec<Tensor>, communicator::Error> {
        let mut state = self.lock();
        self.nothing_missing(&state)?;
        let carried = std::mem::replace(&mut state.carried, vec![None; self.names.len()]);
        let State { buckets, next, worker: Some(worker), .. } = &mut *state else {
            state.pass = Pass::Idle;
            return Ok(carried.into_iter().flatten().collect());
        };
        for (bucket, Bucket { flat, .. }) in buckets.iter().enumerate().skip(*next) {
            worker.add_up(bucket, flat)?;
        }
        let sums = buckets.iter().map(|_| worker.sum());
        let sums = sums.collect::<std::result::Result<Vec<Tensor>, communicator::Error>>()?;
        // Back from the background's stream, if it has one of its own; and only once all are under way, as that stream then
        // waits for this one, which has the whole backward pass ahead of it.
        let sums =
            sums.iter().zip(&*buckets).map(|(sum, bucket)| move_view(sum, bucket.flat.device()));
        let sums = sums.collect::<Result<Vec<Tensor>>>()?;
        let gradient = |Place { bucket, start, shape }: &Place| {
            let elements = shape.iter().product();
            sums[*bucket].narrow(0, *start, elements)?.reshape(shape.as_slice())
        };
        let gradients = self.places.iter().map(gradient).collect::<Result<_>>()?;
        (state.pass, state.warm) = (Pass::Idle, true);
        Ok(gradients)
    }

    fn nothing_missing(&self, state: &State) -> Result<()> {
        match state.come.iter().position(|come| !come) {
            Some(slot) => bail!("{}", no_gradient(&self.names[slot])),
            None => Ok(()),
        }
    }
}

impl GradientHook for Reducer {
    // ANCHOR: on_gradient
    fn on_gradient(&self, slot: usize, gradient: &Tensor) -> Result<()> {
        let mut state = self.lock();
        let state = &mut *state;
        if state.pass == Pass::Idle {
            return Ok(());
        }
        state.come[slot] = true;
        let sum = match &state.carried[slot] {
            Some(earlier) => &ops::sum(earlier, gradient)?,
            None => gradient,
        };
        let Some(worker) = state.worker.as_ref().filter(|_| state.synchronise) else {
            state.carried[slot] = Some(sum.clone());
            return Ok(());
        };
        let place = &self.places[slot];
        let bucket = &mut state.buckets[place.bucket];
        let room = bucket.flat.narrow(0, place.start, sum.elem_count())?;
        overwrite(&room, &sum.flatten_all()?)?;
        bucket.missing -= 1;
        while state.overlap
            && state.warm
            && let Some(bucket) = state.buckets.get(state.next)
            && bucket.missing == 0
        {
            worker.add_up(state.next, &bucket.flat)?;
            state.next += 1;
        }
        Ok(())
    }
    // ANCHOR_END: on_gradient
}
