//! A unit whose state is shared out over the replicas: each replica updates its chunk of the parameters.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use candle_core::{Device, ModuleT, Result as TensorResult, Tensor};
use concise_wrapper::weights::{Named, Snapshot, Weights};
use concise_wrapper::{Error, Network};
use devices::move_view;
use model_parallel::execute::unit::{Replicas, Unit, add, refuse};
use model_parallel::{Action, Bytes, Instruction};
use ops::size_in_bytes;
use params_and_allreduce::collectives::chunk_range;

use crate::flat;

// ANCHOR: unit
/// A unit of which this replica owns one chunk: a run of the row of its parameters, of [`chunk_range`].
///
/// The layers may be this rank's part of the unit ([`build_part`](model_parallel::layers::Layers::build_part)). The
/// replicas are then the ranks with the same part.
pub struct Sharded<M> {
    number: usize,
    /// The parameters are views of one row.
    network: Network<M>,
    /// The chunk as one parameter, and the buffers of the layers.
    owned: Weights,
    replicas: Rc<Replicas>,
    /// The sum of the gradients over the micro-batches.
    sum: RefCell<Vec<Tensor>>,
    is_whole: Cell<bool>,
}

impl<M: ModuleT> Sharded<M> {
    /// Takes this replica's chunk of a unit, which is whole. Fails when layers compute in bf16: they keep rounded
    /// copies of the parameters, which would not be freed.
    pub fn new(number: usize, network: Network<M>, replicas: &Rc<Replicas>) -> Result<Self, Error> {
        let precision = network.precision();
        if precision.layers() != precision.weights() {
            return refuse(format!(
                "layers that compute in {} keep rounded copies of the parameters, which cannot be freed: take f32 or f64",
                precision.layers().as_str()
            ));
        }
        let (network, comm) = (network.in_one_row()?, &replicas.comm);
        let mut owned = Weights { parameters: Vec::new(), ..network.weights().clone() };
        if let Some(row) = network.row() {
            let own = chunk_range(row.elem_count(), comm.world_size(), comm.rank());
            // A view would keep the whole row in memory.
            let tensor = row.detach().narrow(0, own.start, own.len())?.copy()?;
            owned.parameters = vec![Named { name: format!("unit{number}.chunk"), tensor }];
        }
        let (sum, is_whole) = (RefCell::default(), Cell::new(true));
        Ok(Self { number, network, owned, replicas: Rc::clone(replicas), sum, is_whole })
    }

    /// This replica's chunk of the parameters, or `None` for a unit without parameters.
    pub fn chunk(&self) -> Option<&Tensor> {
        self.owned.parameters.first().map(|named| &named.tensor)
    }

    /// Whether the replica has its chunk alone.
    pub fn is_freed(&self) -> bool {
        !self.is_whole.get()
    }

    /// The length of the row of all parameters.
    pub fn row_len(&self) -> usize {
        self.network.row().map_or(0, Tensor::elem_count)
    }

    /// All parameters and buffers by name, in CPU memory, joined from the chunks of all replicas, which call this
    /// together.
    pub fn whole(&self) -> Result<Snapshot, Error> {
        let mut weights = self.network.weights().clone();
        if let Some(chunk) = self.chunk() {
            let row = self.replicas.comm.all_gather(chunk, self.row_len())?;
            let values = flat::split(&row, weights.parameters.iter().map(|named| &named.tensor))?;
            weights.parameters.iter_mut().zip(values).for_each(|(named, it)| named.tensor = it);
        }
        Ok(weights.snapshot()?)
    }

    fn instruction(&self, action: Action) -> Instruction {
        Instruction { unit: self.number, action }
    }
}

impl<M: ModuleT> Unit for Sharded<M> {
    type Module = M;

    fn network(&self) -> &Network<M> {
        &self.network
    }

    fn owned(&self) -> &Weights {
        &self.owned
    }

    fn add(&self, _micro_batch: usize, gradients: Vec<Tensor>) -> TensorResult<()> {
        add(&mut self.sum.borrow_mut(), gradients)
    }

    fn start(&self, collective: Action) -> Result<(), Error> {
        let of = self.instruction(collective);
        let len = self.row_len();
        match (collective, self.chunk()) {
            (Action::Gather | Action::ReduceScatter, None) => {
                self.replicas.start(of, |_| Ok(Vec::new()))
            }
            (Action::Gather, Some(chunk)) => {
                // The second connection carries tensors in CPU memory.
                let chunk = chunk.to_device(&Device::Cpu)?;
                self.replicas.start(of, move |comm| Ok(vec![comm.all_gather(&chunk, len)?]))
            }
            (Action::ReduceScatter, Some(_)) => {
                let row = flat::join(&self.sum.take())?.to_device(&Device::Cpu)?;
                self.replicas.start(of, move |comm| Ok(vec![comm.reduce_scatter(&row)?]))
            }
            _ => refuse(format!("unit {} is in chunks: its sum is ReduceScatter", self.number)),
        }
    }

    fn wait(&self) -> Result<(), Error> {
        let arrived = self.replicas.take(self.instruction(Action::Gather))?;
        for (row, values) in self.network.row().iter().zip(&arrived) {
            flat::fill(row, &move_view(values, self.network.device())?)?;
        }
        self.is_whole.set(true);
        Ok(())
    }

    fn free(&self) -> Result<(), Error> {
        self.is_whole.set(false);
        self.network.row().map_or(Ok(()), |row| Ok(flat::free(row)?))
    }

    fn take_gradients(&self) -> Result<Vec<Tensor>, Error> {
        let chunk = self.replicas.take(self.instruction(Action::ReduceScatter))?;
        let device = self.network.device();
        Ok(chunk.iter().map(|it| move_view(it, device)).collect::<TensorResult<_>>()?)
    }

    /// A row that is on its way counts until its `Wait` or its `Update`.
    fn held(&self) -> Bytes {
        let whole = self.network.row().map_or(0, size_in_bytes);
        let travels = |action| self.replicas.is_on_its_way(self.instruction(action));
        let rows = usize::from(self.is_whole.get()) + usize::from(travels(Action::Gather));
        let has_gradients = !self.sum.borrow().is_empty() || travels(Action::ReduceScatter);
        Bytes {
            parameters: self.chunk().map_or(0, size_in_bytes) + rows * whole,
            gradients: if has_gradients { whole } else { 0 },
            ..Bytes::default()
        }
    }
}
// ANCHOR_END: unit
