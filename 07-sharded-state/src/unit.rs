//! A unit whose state is shared out over the replicas: each replica updates its chunk of the parameters.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use candle_core::{Device, ModuleT, Result as TensorResult, Tensor};
use concise_wrapper::weights::{Named, Snapshot, Weights};
use concise_wrapper::{Error, Network};
use devices::move_view;
use model_parallel::execute::unit::{Replicas, Unit, add};
use model_parallel::{Action, Bytes, Instruction};
use ops::size_in_bytes;
use params_and_allreduce::collectives::chunk_range;

use crate::flat::Flat;

// ANCHOR: unit
/// A unit of which this replica owns one chunk: a run of the row of its parameters, of [`chunk_range`].
pub struct Sharded<M> {
    number: usize,
    network: Network<M>,
    flat: Flat,
    /// The chunk as one parameter, and the buffers of the layers.
    owned: Weights,
    replicas: Rc<Replicas>,
    /// The sum of the gradients over the micro-batches.
    sum: RefCell<Vec<Tensor>>,
    is_whole: Cell<bool>,
    /// Whether a gather is on its way.
    gathers: Cell<bool>,
    /// Whether a sum is on its way.
    sums: Cell<bool>,
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
        let tensors = network.weights().parameters.iter().map(|named| named.tensor.clone());
        let flat = Flat::new(tensors.collect());
        let Weights { buffers, .. } = network.weights().clone();
        let mut owned = Weights { precision, parameters: Vec::new(), buffers };
        if !flat.is_empty() {
            let comm = &replicas.comm;
            let own = chunk_range(flat.len(), comm.world_size(), comm.rank());
            // A view would keep the whole row in memory.
            let tensor = flat.row()?.narrow(0, own.start, own.len())?.copy()?;
            owned.parameters = vec![Named { name: format!("unit{number}.chunk"), tensor }];
        }
        let (sum, is_whole) = (RefCell::default(), Cell::new(true));
        let (gathers, sums, replicas) = (Cell::default(), Cell::default(), Rc::clone(replicas));
        Ok(Self { number, network, flat, owned, replicas, sum, is_whole, gathers, sums })
    }

    /// This replica's chunk of the parameters, or `None` for a unit without parameters.
    pub fn chunk(&self) -> Option<&Tensor> {
        self.owned.parameters.first().map(|named| &named.tensor)
    }

    /// The number of the unit in the model.
    pub fn number(&self) -> usize {
        self.number
    }

    /// The length of the row of all parameters.
    pub fn row_len(&self) -> usize {
        self.flat.len()
    }

    /// All parameters and buffers by name, in CPU memory, joined from the chunks of all replicas, which call this
    /// together.
    pub fn whole(&self) -> Result<Snapshot, Error> {
        let mut whole = Vec::new();
        if let Some(chunk) = self.chunk() {
            let row = self.replicas.comm.all_gather(chunk, self.flat.len())?;
            let names = self.network.weights().parameters.iter().map(|named| named.name.clone());
            let values = self.flat.split(&row.to_device(&Device::Cpu)?)?.into_iter();
            let copy = |(name, it): (String, Tensor)| Ok((name, it.copy()?));
            whole = names.zip(values).map(copy).collect::<TensorResult<_>>()?;
        }
        let buffers = Weights { parameters: Vec::new(), ..self.owned.clone() };
        whole.extend(buffers.snapshot()?);
        Ok(whole)
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

    fn is_freed(&self) -> bool {
        !self.is_whole.get()
    }

    fn owned(&self) -> &Weights {
        &self.owned
    }

    fn add(&self, _micro_batch: usize, gradients: Vec<Tensor>) -> TensorResult<()> {
        add(&mut self.sum.borrow_mut(), gradients)
    }

    fn start(&self, collective: Action) -> Result<(), Error> {
        let of = self.instruction(collective);
        let len = self.flat.len();
        match (collective, self.chunk()) {
            (Action::Gather | Action::ReduceScatter, None) => {
                self.replicas.start(of, |_| Ok(Vec::new()))
            }
            (Action::Gather, Some(chunk)) => {
                self.gathers.set(true);
                // The second connection carries tensors in CPU memory.
                let chunk = chunk.to_device(&Device::Cpu)?;
                self.replicas.start(of, move |comm| Ok(vec![comm.all_gather(&chunk, len)?]))
            }
            (Action::ReduceScatter, Some(_)) => {
                self.sums.set(true);
                let row = Flat::join(&self.sum.take())?.to_device(&Device::Cpu)?;
                self.replicas.start(of, move |comm| Ok(vec![comm.reduce_scatter(&row)?]))
            }
            _ => refuse(format!("unit {} is in chunks: its sum is ReduceScatter", self.number)),
        }
    }

    fn wait(&self) -> Result<Vec<Tensor>, Error> {
        let arrived = self.replicas.take(self.instruction(Action::Gather))?;
        for row in &arrived {
            self.flat.fill(&move_view(row, self.network.device())?)?;
        }
        self.gathers.set(false);
        self.is_whole.set(true);
        Ok(arrived)
    }

    fn free(&self) -> Result<(), Error> {
        self.is_whole.set(false);
        Ok(self.flat.free()?)
    }

    fn take_gradients(&self) -> Result<Vec<Tensor>, Error> {
        let chunk = self.replicas.take(self.instruction(Action::ReduceScatter))?;
        self.sums.set(false);
        let device = self.network.device();
        Ok(chunk.iter().map(|it| move_view(it, device)).collect::<TensorResult<_>>()?)
    }

    /// A row that is on its way counts until its `Wait` or its `Update`.
    fn held(&self) -> Bytes {
        let (of_chunk, whole) = (
            self.chunk().map_or(0, size_in_bytes),
            self.flat.len() * self.owned.precision.weights().size_in_bytes(),
        );
        let rows = usize::from(self.is_whole.get()) + usize::from(self.gathers.get());
        let has_gradients = !self.sum.borrow().is_empty() || self.sums.get();
        let gradients = if has_gradients { whole } else { 0 };
        Bytes { parameters: of_chunk + rows * whole, gradients, ..Bytes::default() }
    }
}
// ANCHOR_END: unit

fn refuse<T>(text: String) -> Result<T, Error> {
    Err(candle_core::Error::Msg(text).into())
}
