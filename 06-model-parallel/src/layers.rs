//! A model as a list of layers, which can be cut into stages and into parts.
//!
//! The list says how to build each layer, and builds nothing. A device then makes the tensors of its own stage only, and of
//! its own part of each layer, so no device ever holds the whole model. The initial value of a tensor depends on its
//! name and the seed alone, so all devices together have the weights of one device.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use candle_core::{DType, Device, Error as TensorError, ModuleT, Result, Shape, Tensor, Var, bail};
use candle_nn::VarBuilder;
use candle_nn::init::Init;
use concise_wrapper::batch_norm::Norms;
use concise_wrapper::ddp::alike;
use concise_wrapper::weights::{Snapshot, is_buffer};
use concise_wrapper::{Error, Network, Precision, initial};
use harness::lock::locked;
use harness::report::counted;
use params_and_allreduce::communicator::{self, Alone, Communicator, SharedCommunicator};
use split_batch::shard_range;

use crate::tensor_parallel;

// ANCHOR: list
type Layer = Box<dyn ModuleT + Send + Sync>;
type Build = dyn Fn(&Builder<'_>) -> Result<Layer> + Send + Sync;

/// A model as a list of layers; none of them is built yet.
#[derive(Clone, Default)]
pub struct Layers {
    name: String,
    list: Vec<Arc<Build>>,
    takes_tokens: bool,
}

/// A run of layers of a model, in order.
pub struct Stage(Vec<Layer>);

impl ModuleT for Stage {
    fn forward_t(&self, x: &Tensor, train: bool) -> Result<Tensor> {
        self.0.iter().try_fold(x.clone(), |x, layer| layer.forward_t(&x, train))
    }
}
// ANCHOR_END: list

// ANCHOR: builder
/// The tensors of a layer on one rank, for the function that builds the layer.
pub struct Builder<'a> {
    /// Makes whole tensors.
    pub vb: &'a VarBuilder<'a>,
    /// The settings of batch norms.
    pub norms: &'a Norms,
    /// The ranks that share the layers.
    pub group: &'a SharedCommunicator,
    cuts: &'a Cuts,
}

/// The axis of each tensor that is cut, and the features along the axis on all ranks together, by the name of the tensor.
type Cuts = Mutex<BTreeMap<String, (usize, usize)>>;

impl Builder<'_> {
    /// This rank's share of things of which each rank has as many, such as heads. Fails when the number of ranks does not
    /// divide the number of things: the message names the things.
    pub fn share(&self, what: &str, count: usize) -> Result<usize> {
        let ranks = self.group.world_size();
        match count.is_multiple_of(ranks) {
            true => Ok(count / ranks),
            false => refuse(format!("{count} {what} cannot be cut into {ranks} equal parts")),
        }
    }

    /// This rank's part of a tensor of this shape, cut along an axis. With `None`, each rank has the whole tensor. Fails when
    /// a rank would have no part: the message names the tensor.
    pub fn get(
        &self,
        name: &str,
        shape: &[usize],
        init: Init,
        cut: Option<usize>,
    ) -> Result<Tensor> {
        let (ranks, mut shape) = (self.group.world_size(), shape.to_vec());
        if let Some(axis) = cut {
            let features = shape[axis];
            if features < ranks {
                let features = counted(features, "feature");
                return refuse(format!(
                    "{name}: {features} cannot be cut into {ranks} parts: use fewer ranks"
                ));
            }
            shape[axis] = shard_range(features, ranks, self.group.rank()).len();
            locked(self.cuts).insert(name.to_owned(), (axis, features));
        }
        self.vb.get_with_hints(shape, name, init)
    }
}
// ANCHOR_END: builder

/// A parameter that a layer asks for: its name, its whole shape, and the axis along which ranks share it, if they do.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "the line above explains the fields")]
pub struct ParameterSpec {
    pub name: String,
    pub shape: Vec<usize>,
    pub cut: Option<usize>,
}

impl ParameterSpec {
    /// The number of elements of the whole tensor.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }
}

/// Refuses a command line, so without a backtrace.
fn refuse<T>(text: String) -> Result<T> {
    Err(TensorError::Msg(text))
}

/// An initial value without memory: one number stands at every place of the shape. The network takes over a view of a
/// variable as it is.
fn blank(_: &ParameterSpec, shape: &Shape, _: Init, dtype: DType) -> Result<Tensor> {
    Var::zeros((), dtype, &Device::Cpu)?.broadcast_as(shape)
}

impl Layers {
    /// An empty list for a model of this name.
    pub fn named(name: impl Into<String>) -> Self {
        Self { name: name.into(), list: Vec::new(), takes_tokens: false }
    }

    /// The list of a model that reads tokens (u32), and not images.
    #[must_use]
    pub fn of_tokens(self) -> Self {
        Self { takes_tokens: true, ..self }
    }

    /// Whether the model reads tokens.
    pub fn takes_tokens(&self) -> bool {
        self.takes_tokens
    }

    /// The name of the model, such as `dense stack 784-512-10`.
    pub fn name(&self) -> &str {
        &self.name
    }

    // ANCHOR: then
    /// Adds a layer to the end of the list. `build` builds the layer.
    ///
    /// The layer gets a batch, `[B, …]`, and whether the pass is for training.
    #[must_use]
    pub fn then<L: ModuleT + Send + Sync + 'static>(
        mut self,
        build: impl Fn(&Builder<'_>) -> Result<L> + Send + Sync + 'static,
    ) -> Self {
        let build = move |builder: &Builder<'_>| -> Result<Layer> { Ok(Box::new(build(builder)?)) };
        self.list.push(Arc::new(build));
        self
    }
    // ANCHOR_END: then

    /// Puts another layer in the place of layer `number`, such as an exercise's. Panics when there is no such layer.
    #[must_use]
    pub fn replace<L: ModuleT + Send + Sync + 'static>(
        self,
        number: usize,
        build: impl Fn(&Builder<'_>) -> Result<L> + Send + Sync + 'static,
    ) -> Self {
        let mut layers = self.then(build);
        // The last layer takes the place.
        layers.list.swap_remove(number);
        layers
    }

    /// The number of layers.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The parameters of some of the layers, in order. The layers are built of tensors without memory: a model on paper may
    /// fit no machine that is here. Fails when there are no such layers.
    pub fn parameters(&self, layers: Range<usize>) -> Result<Vec<ParameterSpec>> {
        let alone = Alone(Device::Cpu).into();
        Ok(self.network(layers, DType::F32.into(), &Device::Cpu, &alone, blank)?.1)
    }

    /// Checks that layers can be cut into so many parts. Fails when no layer can be cut, a tensor has too few features, or
    /// things cannot be shared out evenly: the message names the model, the tensor or the things.
    pub fn check_parts(&self, parts: usize) -> Result<()> {
        let (cpu, all) = (&Device::Cpu, 0..self.len());
        let group: SharedCommunicator = Arc::new(Silent { parts, device: cpu.clone() });
        let (_, parameters) = self.network(all, DType::F32.into(), cpu, &group, blank)?;
        match parameters.iter().any(|spec| spec.cut.is_some()) {
            true => Ok(()),
            false => refuse(format!("{} is split in stages only", self.name)),
        }
    }

    // ANCHOR: build
    /// Builds some of the layers: the network of one stage, or with `0..len()` the whole model. Fails when there are no
    /// such layers, or their tensors cannot be made.
    pub fn build(
        &self,
        layers: Range<usize>,
        seed: u64,
        precision: impl Into<Precision>,
        device: &Device,
    ) -> Result<Network<Stage>> {
        let alone = Alone(device.clone()).into();
        Ok(self.build_for(layers, seed, precision.into(), device, &alone)?.0)
    }
    // ANCHOR_END: build

    // ANCHOR: parts
    /// Builds this rank's part of some of the layers. All ranks of the group call this together.
    ///
    /// Fails with the errors of [`build`](Self::build); when a tensor has fewer features than the group has ranks;
    /// [`Error::NotAlike`] on a rank with another seed, precision or network than rank 0.
    pub fn build_part(
        &self,
        layers: Range<usize>,
        seed: u64,
        precision: impl Into<Precision>,
        device: &Device,
        group: &SharedCommunicator,
    ) -> std::result::Result<Network<Stage>, Error> {
        let (network, tensors) = self.build_for(layers, seed, precision.into(), device, group)?;
        let precision = network.precision().to_string();
        let settings = [("seed".to_owned(), seed.to_string()), ("precision".to_owned(), precision)];
        let tensors = tensors.into_iter();
        let tensors = tensors.map(|it| (format!("tensor {}", it.name), format!("{:?}", it.shape)));
        alike::compare(group, &settings.into_iter().chain(tensors).collect::<Vec<_>>())?;
        Ok(network)
    }

    /// A rank draws each whole tensor, keeps its part and frees the rest, as Megatron-LM does on the CPU. So all parts
    /// together are the tensor of one device, to the last bit.
    pub(crate) fn build_for(
        &self,
        layers: Range<usize>,
        seed: u64,
        precision: Precision,
        device: &Device,
        group: &SharedCommunicator,
    ) -> Result<(Network<Stage>, Vec<ParameterSpec>)> {
        let of_values = Arc::clone(group);
        self.network(layers, precision, device, group, move |spec, _, init, dtype| {
            let whole = initial::value(&spec.name, &spec.shape.clone().into(), init, seed, dtype)?;
            match spec.cut.filter(|_| of_values.world_size() > 1) {
                // A view would keep the whole tensor in memory.
                Some(axis) => tensor_parallel::part(&whole, axis, &of_values)?.force_contiguous(),
                None => Ok(whole),
            }
        })
    }

    /// Builds this rank's part of some of the layers, and lists their parameters. `value` makes a tensor of this shape,
    /// which is the rank's part, with the initial value of the parameter or buffer.
    fn network(
        &self,
        layers: Range<usize>,
        precision: Precision,
        device: &Device,
        group: &SharedCommunicator,
        value: impl Fn(&ParameterSpec, &Shape, Init, DType) -> Result<Tensor> + Send + Sync + 'static,
    ) -> Result<(Network<Stage>, Vec<ParameterSpec>)> {
        let planned = match self.list.get(layers.clone()) {
            Some(planned) if !planned.is_empty() => planned.to_vec(),
            _ => bail!("there are no layers {layers:?} in a model of {}", self.len()),
        };
        let (group, cuts, parameters) =
            (Arc::clone(group), Arc::new(Cuts::default()), Arc::default());
        let (known, listed) = (Arc::clone(&cuts), Arc::<Mutex<Vec<_>>>::clone(&parameters));
        let values = move |name: &str, shape: &Shape, init, dtype| {
            let (name, mut whole) = (name.to_owned(), shape.dims().to_vec());
            let cut = locked(&known).get(&name).map(|&(axis, features)| {
                whole[axis] = features;
                axis
            });
            let spec = ParameterSpec { name, shape: whole, cut };
            let value = value(&spec, shape, init, dtype);
            locked(&listed).extend(Some(spec).filter(|it| !is_buffer(&it.name)));
            value
        };
        let network = Network::with_values(values, precision, device, move |vb, norms| {
            let builder = Builder { vb, norms, group: &group, cuts: &cuts };
            planned.iter().map(|build| build(&builder)).collect::<Result<_>>().map(Stage)
        })?;
        let parameters = std::mem::take(&mut *locked(&parameters));
        Ok((network, parameters))
    }

    /// Joins the parts of all ranks: `values` are this rank's, in CPU memory, by name. All ranks of the group call this
    /// together, and all get the whole tensors. Fails when another rank stops or stalls.
    pub fn join(&self, values: Snapshot, group: &SharedCommunicator) -> Result<Snapshot> {
        let parameters = self.parameters(0..self.len())?;
        let whole = |(name, value): (String, Tensor)| {
            let spec = parameters.iter().find(|spec| spec.name == name);
            let cut =
                spec.and_then(|spec| Some((spec.cut?, spec))).filter(|_| group.world_size() > 1);
            let Some((axis, spec)) = cut else { return Ok((name, value)) };
            let part = value.to_device(group.device())?;
            let whole = tensor_parallel::join(&part, axis, spec.shape[axis], group)?;
            Ok((name, whole.to_device(&Device::Cpu)?))
        };
        values.into_iter().map(whole).collect()
    }
    // ANCHOR_END: parts
}

// ANCHOR: silent
/// The first of the ranks that share a layer, without the others: they receive nothing, and send zeros.
pub(crate) struct Silent {
    pub(crate) parts: usize,
    pub(crate) device: Device,
}

impl Communicator for Silent {
    fn rank(&self) -> usize {
        0
    }

    fn world_size(&self) -> usize {
        self.parts
    }

    fn device(&self) -> &Device {
        &self.device
    }

    fn send(&self, _: usize, _: &Tensor) -> std::result::Result<(), communicator::Error> {
        Ok(())
    }

    fn recv(
        &self,
        _: usize,
        shape: &Shape,
        dtype: DType,
    ) -> std::result::Result<Tensor, communicator::Error> {
        Ok(Tensor::zeros(shape, dtype, &self.device)?)
    }
}
// ANCHOR_END: silent
