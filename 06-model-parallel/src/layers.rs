//! A model as a list of layers, which can be cut into stages and into parts.
//!
//! The list says how to build each layer, and builds nothing. A device then makes the tensors of its own stage only, and of
//! its own part of each layer, so no device ever holds the whole model. The initial value of a tensor depends on its
//! name and the seed alone, so all devices together have the weights of one device.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use candle_core::{DType, Device, Error as TensorError, ModuleT, Result, Shape, Tensor, Var, bail};
use candle_nn::VarBuilder;
use candle_nn::init::Init;
use candle_nn::var_builder::SimpleBackend;
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
    /// The axes of the tensors that are cut, by name.
    cuts: RefCell<BTreeMap<String, usize>>,
}

impl<'a> Builder<'a> {
    fn new(vb: &'a VarBuilder<'a>, norms: &'a Norms, group: &'a SharedCommunicator) -> Self {
        Self { vb, norms, group, cuts: RefCell::default() }
    }

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
            let features = std::mem::take(&mut shape[axis]);
            if features < ranks {
                let features = counted(features, "feature");
                return refuse(format!(
                    "{name}: {features} cannot be cut into {ranks} parts: use fewer ranks"
                ));
            }
            shape[axis] = shard_range(features, ranks, self.group.rank()).len();
            self.cuts.borrow_mut().insert(name.to_owned(), axis);
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

/// The parameter of this name that ranks share, if there is one, and the axis along which they cut it.
fn shared<'a>(parameters: &'a [ParameterSpec], name: &str) -> Option<(&'a ParameterSpec, usize)> {
    let spec = parameters.iter().find(|spec| spec.name == name)?;
    Some((spec, spec.cut?))
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

    fn planned(&self, layers: Range<usize>) -> Result<&[Arc<Build>]> {
        match self.list.get(layers.clone()) {
            Some(planned) if !planned.is_empty() => Ok(planned),
            _ => bail!("there are no layers {layers:?} in a model of {}", self.len()),
        }
    }

    /// The parameters of some of the layers, in order. The layers are built of tensors without memory: a model on paper may
    /// fit no machine that is here. Fails when there are no such layers.
    pub fn parameters(&self, layers: Range<usize>) -> Result<Vec<ParameterSpec>> {
        self.asked(layers, Alone(Device::Cpu).into())
    }

    /// The parameters that the layers ask a builder for, on the first rank of a group.
    fn asked(&self, layers: Range<usize>, group: SharedCommunicator) -> Result<Vec<ParameterSpec>> {
        let asked = Mutex::default();
        let source = VarBuilder::from_backend(Box::new(Blank(&asked)), DType::F32, Device::Cpu);
        let norms = Norms::default();
        let builder = Builder::new(&source, &norms, &group);
        self.planned(layers)?.iter().try_for_each(|build| build(&builder).map(drop))?;
        let (asked, cuts) = (std::mem::take(&mut *locked(&asked)), builder.cuts.into_inner());
        let spec = |(name, shape): (String, Shape)| {
            let cut = cuts.get(&name).copied();
            ParameterSpec { name, shape: shape.into_dims(), cut }
        };
        Ok(asked.into_iter().map(spec).collect())
    }

    /// Checks that layers can be cut into so many parts. Fails when no layer can be cut, a tensor has too few features, or
    /// things cannot be shared out evenly: the message names the model, the tensor or the things.
    pub fn check_parts(&self, parts: usize) -> Result<()> {
        let group = Arc::new(Silent { parts, device: Device::Cpu });
        match self.asked(0..self.len(), group)?.iter().any(|spec| spec.cut.is_some()) {
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
        self.build_for(layers, seed, precision.into(), device, &Alone(device.clone()).into())
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
        let network = self.build_for(layers.clone(), seed, precision.into(), device, group)?;
        let precision = network.precision().to_string();
        let settings = [("seed".to_owned(), seed.to_string()), ("precision".to_owned(), precision)];
        let tensors = self.parameters(layers)?.into_iter();
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
    ) -> Result<Network<Stage>> {
        let (planned, of_values) = (self.planned(layers.clone())?.to_vec(), Arc::clone(group));
        let parameters = self.parameters(layers)?;
        let values = move |name: &str, shape: &Shape, init, dtype| match shared(&parameters, name) {
            Some((spec, axis)) if of_values.world_size() > 1 => {
                let whole = initial::value(name, &spec.shape.clone().into(), init, seed, dtype)?;
                // A view would keep the whole tensor in memory.
                tensor_parallel::part(&whole, axis, &of_values)?.force_contiguous()
            }
            _ => initial::value(name, shape, init, seed, dtype),
        };
        let group = Arc::clone(group);
        Network::with_values(values, precision, device, move |vb, norms| {
            let builder = Builder::new(vb, norms, &group);
            planned.iter().map(|build| build(&builder)).collect::<Result<_>>().map(Stage)
        })
    }

    /// Joins the parts of all ranks: `values` are this rank's, in CPU memory, by name. All ranks of the group call this
    /// together, and all get the whole tensors. Fails when another rank stops or stalls.
    pub fn join(&self, values: Snapshot, group: &SharedCommunicator) -> Result<Snapshot> {
        let parameters = self.parameters(0..self.len())?;
        let whole = |(name, value): (String, Tensor)| match shared(&parameters, &name) {
            Some((spec, axis)) if group.world_size() > 1 => {
                let part = value.to_device(group.device())?;
                let whole = tensor_parallel::join(&part, axis, spec.shape[axis], group)?;
                Ok((name, whole.to_device(&Device::Cpu)?))
            }
            _ => Ok((name, value)),
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

/// A source of tensors without memory. It notes the name and the shape of each parameter.
struct Blank<'a>(&'a Mutex<Vec<(String, Shape)>>);

impl SimpleBackend for Blank<'_> {
    fn get(
        &self,
        shape: Shape,
        name: &str,
        _: Init,
        dtype: DType,
        device: &Device,
    ) -> Result<Tensor> {
        if is_buffer(name) {
            // Batch norms need a variable with memory: a number for each channel.
            return Ok(Var::zeros(shape, dtype, device)?.into_inner());
        }
        // One number in memory, repeated at every place of the shape.
        let tensor = Tensor::zeros((), dtype, device)?.broadcast_as(&shape)?;
        locked(self.0).push((name.to_owned(), shape));
        Ok(tensor)
    }

    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> Result<Tensor> {
        bail!("{name} cannot be made without a shape")
    }

    fn contains_tensor(&self, _: &str) -> bool {
        true
    }
}
