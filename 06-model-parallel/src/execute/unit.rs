//! A unit on one rank: its layers, the sum of its gradients, and its update.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Instant;

use candle_core::{Device, ModuleT, Result as TensorResult, Tensor};
use concise_wrapper::ddp::worker::Worker;
use concise_wrapper::weights::Weights;
use concise_wrapper::{Error, Network};
use devices::move_view;
use harness::report::trace::BACKGROUND;
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::{self, Communicator, SharedCommunicator};
use scratch_data_parallel::{FixedTree, TreeSum};
use tracing::info_span;

use super::Settings;
use crate::bytes::Bytes;
use crate::instructions::{Action, Instruction};
use crate::simulate::QUEUE;

// ANCHOR: unit
/// A unit of the model, as the executor uses it on its rank. All replicas start the collectives of their units in one
/// order.
pub trait Unit {
    /// The type of the layers.
    type Module: ModuleT;

    /// The layers.
    fn network(&self) -> &Network<Self::Module>;

    /// The parameters that this rank updates. [`take_gradients`](Self::take_gradients) returns their gradients.
    fn owned(&self) -> &Weights;

    /// Adds the gradients of a micro-batch to the sum.
    fn add(&self, micro_batch: usize, gradients: Vec<Tensor>) -> TensorResult<()>;

    /// Starts a collective. Fails for a collective that this unit does not have.
    fn start(&self, collective: Action) -> Result<(), Error>;

    /// Waits for the gathered parameters, and gives them to the layers. Fails for a unit that is always whole.
    fn wait(&self) -> Result<(), Error> {
        no_chunks()
    }

    /// Drops the gathered parameters. Fails for a unit that is always whole.
    fn free(&self) -> Result<(), Error> {
        no_chunks()
    }

    /// Takes the gradients: waits for the sum over all replicas, if it has been started.
    fn take_gradients(&self) -> Result<Vec<Tensor>, Error>;

    /// The bytes of parameters and gradients that the unit holds now.
    fn held(&self) -> Bytes;
}
// ANCHOR_END: unit

// ANCHOR: replicas
/// The connection to the ranks that hold the same units, and the second thread of this rank, which does the
/// collectives.
pub struct Replicas {
    /// The first connection, for the main thread.
    pub comm: SharedCommunicator,
    /// The tree over the micro-batches of all replicas.
    pub(super) tree: FixedTree,
    settings: Settings,
    /// `None` with one replica.
    thread: Option<Worker<Done>>,
    /// The collectives that were started and whose results are not taken, each with its result as soon as it is there.
    started: RefCell<HashMap<Instruction, Option<Vec<Tensor>>>>,
    /// The times of the collectives of this step, in the order of their start.
    pub(super) times: RefCell<Vec<[Instant; 2]>>,
}

/// The result of a collective, and the times at which it began and ended.
struct Done {
    of: Instruction,
    result: Vec<Tensor>,
    times: [Instant; 2],
}

impl Replicas {
    /// All replicas call this together.
    pub(super) fn new(
        comm: SharedCommunicator,
        tree: FixedTree,
        settings: Settings,
    ) -> Result<Self, Error> {
        let several = comm.world_size() > 1;
        let thread = several.then(|| Worker::with_queue(&comm, QUEUE)).transpose()?;
        let (started, times) = Default::default();
        Ok(Self { comm, tree, settings, thread, started, times })
    }

    /// Starts the collective of an instruction: the second thread does `job` with the second connection, after the
    /// jobs before. The tensors of the job and of its result are in CPU memory. With one replica, the job is done at
    /// once.
    pub fn start(
        &self,
        of: Instruction,
        job: impl FnOnce(&SharedCommunicator) -> Result<Vec<Tensor>, communicator::Error>
        + Send
        + 'static,
    ) -> Result<(), Error> {
        let Instruction { unit, action } = of;
        let job = move |comm: &SharedCommunicator| {
            let _span = info_span!(target: BACKGROUND, "collective", ?action, unit).entered();
            let start = Instant::now();
            let result = job(comm)?;
            Ok::<_, communicator::Error>(Done { of, result, times: [start, Instant::now()] })
        };
        self.started.borrow_mut().insert(of, None);
        match &self.thread {
            Some(thread) => thread.add(job),
            None => self.keep(job(&self.comm)?),
        }
        Ok(())
    }

    /// Whether a collective was started, and its result is not taken.
    pub fn is_on_its_way(&self, of: Instruction) -> bool {
        self.started.borrow().contains_key(&of)
    }

    /// Waits for the result of a collective that was started.
    pub fn take(&self, of: Instruction) -> Result<Vec<Tensor>, Error> {
        let is_there = || self.started.borrow().get(&of).map(Option::is_some);
        while let (Some(false), Some(thread)) = (is_there(), &self.thread) {
            self.keep(thread.next()?);
        }
        match self.started.borrow_mut().remove(&of).flatten() {
            Some(result) => Ok(result),
            None => refuse(format!("no {of} was started")),
        }
    }

    fn keep(&self, Done { of, result, times }: Done) {
        self.started.borrow_mut().insert(of, Some(result));
        self.times.borrow_mut().push(times);
    }

    /// The number of this rank's first micro-batch among the micro-batches of all replicas.
    fn first(&self) -> usize {
        self.tree.held_by(self.comm.rank()).start
    }
}
// ANCHOR_END: replicas

// ANCHOR: whole
/// A unit whose parameters this rank holds whole. Every replica makes the same update.
pub struct Whole<M> {
    number: usize,
    network: Network<M>,
    replicas: Rc<Replicas>,
    /// `None` while the sum over replicas is on its way.
    sum: RefCell<Option<Sum>>,
}

/// The sum of a unit's gradients over the micro-batches.
enum Sum {
    /// In the order of the micro-batches: the bits of one device with these micro-batches. Empty before the first one.
    Running(Vec<Tensor>),
    /// Along a fixed tree: the bits of any number of replicas.
    Tree(TreeSum),
}

impl<M> Whole<M> {
    pub(super) fn new(number: usize, network: Network<M>, replicas: Rc<Replicas>) -> Self {
        let sum = RefCell::new(Some(Sum::new(&replicas)));
        Self { number, network, replicas, sum }
    }

    fn all_reduce(&self) -> Instruction {
        Instruction { unit: self.number, action: Action::AllReduce }
    }
}

impl Sum {
    fn new(replicas: &Replicas) -> Self {
        match replicas.settings.by_shards {
            true => Self::Tree(TreeSum::new(replicas.tree)),
            false => Self::Running(Vec::new()),
        }
    }

    /// Ends the sum on this rank, and adds the sums of all ranks of `comm`.
    fn over(
        self,
        comm: &(impl Communicator + ?Sized),
        algorithm: Algorithm,
    ) -> Result<Vec<Tensor>, communicator::Error> {
        match self {
            Self::Running(sum) if comm.world_size() == 1 => Ok(sum),
            Self::Running(sum) => sum.iter().map(|it| comm.all_reduce(it, algorithm)).collect(),
            Self::Tree(sum) => sum.total(comm),
        }
    }
}

impl<M: ModuleT> Unit for Whole<M> {
    type Module = M;

    fn network(&self) -> &Network<M> {
        &self.network
    }

    fn owned(&self) -> &Weights {
        self.network.weights()
    }

    fn add(&self, micro_batch: usize, gradients: Vec<Tensor>) -> TensorResult<()> {
        match &mut *self.sum.borrow_mut() {
            Some(Sum::Running(sum)) => add(sum, gradients),
            Some(Sum::Tree(sum)) => sum.add(self.replicas.first() + micro_batch, gradients),
            None => candle_core::bail!("a gradient comes after the sum"),
        }
    }

    fn start(&self, collective: Action) -> Result<(), Error> {
        // The second connection carries tensors in CPU memory.
        let sum = match self.sum.take() {
            _ if collective != Action::AllReduce => return no_chunks(),
            Some(Sum::Running(sum)) => {
                let sum = sum.into_iter().map(|it| it.to_device(&Device::Cpu));
                Sum::Running(sum.collect::<TensorResult<_>>()?)
            }
            Some(Sum::Tree(sum)) => Sum::Tree(sum.to_device(&Device::Cpu)?),
            None => return refuse(format!("the sum of unit {} is on its way twice", self.number)),
        };
        let algorithm = self.replicas.settings.algorithm;
        self.replicas.start(self.all_reduce(), move |comm| sum.over(&**comm, algorithm))
    }

    fn take_gradients(&self) -> Result<Vec<Tensor>, Error> {
        let gradients = match self.sum.replace(Some(Sum::new(&self.replicas))) {
            None => self.replicas.take(self.all_reduce())?,
            Some(sum) => sum.over(&*self.replicas.comm, self.replicas.settings.algorithm)?,
        };
        let device = self.network.device();
        Ok(gradients.iter().map(|it| move_view(it, device)).collect::<TensorResult<_>>()?)
    }

    fn held(&self) -> Bytes {
        let parameters = self.network.weights().parameter_bytes();
        let gradients = match &*self.sum.borrow() {
            Some(Sum::Running(sum)) if sum.is_empty() => 0,
            Some(Sum::Running(_)) | None => parameters,
            Some(Sum::Tree(sum)) => sum.sets() * parameters,
        };
        Bytes { parameters, gradients, ..Bytes::default() }
    }
}

/// Adds the gradients of a micro-batch to a sum, which is empty before the first one. Each pair is freed as soon as it
/// is added.
pub fn add(sum: &mut Vec<Tensor>, gradients: Vec<Tensor>) -> TensorResult<()> {
    let added = match std::mem::take(sum) {
        first if first.is_empty() => gradients,
        sum => {
            let pairs = sum.into_iter().zip(gradients);
            pairs.map(|(sum, it)| ops::sum(&sum, &it)).collect::<TensorResult<_>>()?
        }
    };
    *sum = added;
    Ok(())
}
// ANCHOR_END: whole

fn no_chunks() -> Result<(), Error> {
    refuse("every replica holds this unit whole, and there are no chunks".to_owned())
}

/// Fails with an error of the executor's caller.
pub fn refuse<T>(text: String) -> Result<T, Error> {
    Err(candle_core::Error::Msg(text).into())
}
