//! A unit on one rank: its layers, the sum of its gradients, and its update.

use std::cell::RefCell;
use std::collections::BTreeMap;
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

use crate::instructions::{Action, Instruction};
use crate::simulate::Bytes;

// ANCHOR: unit
/// A unit of the model, as the executor uses it on its rank.
pub trait Unit {
    /// The type of the layers.
    type Module: ModuleT;

    /// The layers.
    fn network(&self) -> &Network<Self::Module>;

    /// What this rank updates: the parameters that [`take_gradients`](Self::take_gradients) returns gradients of.
    fn owned(&self) -> &Weights;

    /// Adds the gradients of a micro-batch to the sum.
    fn add(&self, micro_batch: usize, gradients: Vec<Tensor>) -> TensorResult<()>;

    /// Starts to sum the gradients over all replicas. All replicas call this for their units in one order.
    fn start_sum(&self) -> Result<(), Error>;

    /// Takes the gradients: waits for the sum over all replicas, if it has been started.
    fn take_gradients(&self) -> Result<Vec<Tensor>, Error>;

    /// The bytes of parameters and gradients that the unit holds now.
    fn held(&self) -> Bytes;
}
// ANCHOR_END: unit

// ANCHOR: whole
/// The connection to the ranks that hold the same units in other pipelines.
pub(super) struct Replicas {
    pub comm: SharedCommunicator,
    /// The tree over the micro-batches of all pipelines.
    pub tree: FixedTree,
    /// Whether gradients are added along the tree.
    pub by_tree: bool,
    /// The second thread of this rank; `None` with one replica.
    lane: Option<Worker<Summed>>,
    /// The sums that have come, by unit. A sum without gradients has been used by its update.
    come: RefCell<BTreeMap<usize, Summed>>,
}

/// The sum of a unit over all replicas, and the times at which it began and ended.
struct Summed {
    unit: usize,
    times: [Instant; 2],
    gradients: Option<Vec<Tensor>>,
}

impl Replicas {
    /// All replicas call this together.
    pub fn new(comm: SharedCommunicator, tree: FixedTree, by_tree: bool) -> Result<Self, Error> {
        let lane = (comm.world_size() > 1).then(|| Worker::start(&comm)).transpose()?;
        Ok(Self { comm, tree, by_tree, lane, come: RefCell::default() })
    }

    /// Waits for the sum of a unit. Sums come in the order in which they were started.
    fn wait_for(&self, unit: usize) -> Result<Vec<Tensor>, Error> {
        let (lane, mut come) = (self.lane.as_ref(), self.come.borrow_mut());
        loop {
            if let Some(sum) = come.get_mut(&unit).and_then(|it| it.gradients.take()) {
                return Ok(sum);
            }
            let Some(lane) = lane else {
                return Err(communicator::Error::Other(format!(
                    "no sum of unit {unit} was started"
                ))
                .into());
            };
            let summed = lane.next()?;
            come.insert(summed.unit, summed);
        }
    }

    /// The times of the last sum that an instruction has started.
    pub fn times_of(&self, Instruction { unit, action }: Instruction) -> Option<[Instant; 2]> {
        let come = self.come.borrow();
        come.get(&unit).filter(|_| action == Action::AllReduce).map(|summed| summed.times)
    }

    /// The number of this rank's first micro-batch among those of all pipelines.
    pub fn first(&self) -> usize {
        self.tree.held_by(self.comm.rank()).start
    }
}

/// A unit whose parameters this rank holds whole. Every replica makes the same update.
pub struct Whole<M> {
    number: usize,
    network: Network<M>,
    replicas: Rc<Replicas>,
    sum: RefCell<Sum>,
}

/// The sum of a unit's gradients over the micro-batches.
enum Sum {
    /// In the order of the micro-batches: the bits of one device with these micro-batches. Empty before the first one.
    Running(Vec<Tensor>),
    /// Along a fixed tree: the bits of any number of replicas.
    Tree(TreeSum),
    /// The sum over replicas is on its way.
    Travels,
}

impl<M> Whole<M> {
    pub(super) fn new(number: usize, network: Network<M>, replicas: Rc<Replicas>) -> Self {
        let sum = RefCell::new(Sum::new(&replicas));
        Self { number, network, replicas, sum }
    }
}

impl Sum {
    fn new(replicas: &Replicas) -> Self {
        match replicas.by_tree {
            true => Self::Tree(TreeSum::new(replicas.tree)),
            false => Self::Running(Vec::new()),
        }
    }

    /// Ends the sum on this rank, and adds those of all ranks of `comm`.
    fn over(self, comm: &(impl Communicator + ?Sized)) -> Result<Vec<Tensor>, communicator::Error> {
        match self {
            Self::Running(sum) if comm.world_size() == 1 => Ok(sum),
            Self::Running(sum) => {
                sum.iter().map(|it| comm.all_reduce(it, Algorithm::default())).collect()
            }
            Self::Tree(sum) => sum.total(comm),
            Self::Travels => {
                Err(communicator::Error::Other("a sum is on its way twice".to_owned()))
            }
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
            Sum::Running(sum) if sum.is_empty() => *sum = gradients,
            Sum::Running(sum) => {
                // Each pair is freed as soon as it is added.
                let pairs = std::mem::take(sum).into_iter().zip(gradients);
                *sum = pairs.map(|(sum, it)| ops::sum(&sum, &it)).collect::<TensorResult<_>>()?;
            }
            Sum::Tree(sum) => sum.add(self.replicas.first() + micro_batch, gradients)?,
            Sum::Travels => candle_core::bail!("a gradient comes after the sum"),
        }
        Ok(())
    }

    fn start_sum(&self) -> Result<(), Error> {
        let Some(lane) = &self.replicas.lane else { return Ok(()) };
        // The second connection carries tensors in CPU memory.
        let sum = match self.sum.replace(Sum::Travels) {
            Sum::Running(sum) => {
                let sum = sum.into_iter().map(|it| it.to_device(&Device::Cpu));
                Sum::Running(sum.collect::<TensorResult<_>>()?)
            }
            Sum::Tree(sum) => Sum::Tree(sum.to_device(&Device::Cpu)?),
            Sum::Travels => Sum::Travels,
        };
        let unit = self.number;
        lane.add(move |comm| {
            let _span = info_span!(target: BACKGROUND, "sum over replicas", unit).entered();
            let start = Instant::now();
            let gradients = Some(sum.over(&**comm)?);
            Ok(Summed { unit, times: [start, Instant::now()], gradients })
        });
        Ok(())
    }

    fn take_gradients(&self) -> Result<Vec<Tensor>, Error> {
        let sum = self.sum.replace(Sum::new(&self.replicas));
        let gradients = match sum {
            Sum::Travels => self.replicas.wait_for(self.number)?,
            sum => sum.over(&*self.replicas.comm)?,
        };
        let device = self.network.device();
        Ok(gradients.iter().map(|it| move_view(it, device)).collect::<TensorResult<_>>()?)
    }

    fn held(&self) -> Bytes {
        let parameters = self.network.weights().parameter_bytes();
        let gradients = match &*self.sum.borrow() {
            Sum::Running(sum) if sum.is_empty() => 0,
            Sum::Running(_) | Sum::Travels => parameters,
            Sum::Tree(sum) => sum.sets() * parameters,
        };
        Bytes { parameters, gradients, ..Bytes::default() }
    }
}
// ANCHOR_END: whole

/// The weights of several units.
pub(super) fn joined<U: Unit>(units: &[U]) -> Weights {
    let precision = units[0].network().precision();
    let mut weights = Weights { precision, parameters: Vec::new(), buffers: Vec::new() };
    for unit in units {
        weights.parameters.extend(unit.owned().parameters.iter().cloned());
        weights.buffers.extend(unit.owned().buffers.iter().cloned());
    }
    weights
}
