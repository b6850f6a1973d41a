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
use candle_nn::var_builder::SimpleBackend;
use concise_wrapper::batch_norm::Norms;
use concise_wrapper::ddp::alike;
use concise_wrapper::weights::{Snapshot, is_buffer};
use concise_wrapper::{Error, Network, Precision, initial};
use harness::lock::locked;

use crate::tensor_parallel::{Cut, Group};

// ANCHOR: list
type Forward = dyn Fn(&Tensor, bool) -> Result<Tensor> + Send + Sync;
type Build = dyn Fn(&VarBuilder<'_>, &Norms, &Group) -> Result<Box<Forward>> + Send + Sync;

/// A model as a list of layers; none of them is built yet.
#[derive(Clone, Default)]
pub struct Layers {
    name: String,
    list: Vec<PlannedLayer>,
}

#[derive(Clone)]
struct PlannedLayer {
    name: String,
    build: Arc<Build>,
    /// The weight and the bias of a layer that ranks can share.
    parameters: Vec<ParameterSpec>,
}

/// Some layers of a model, one after the other.
pub struct Stage(Vec<Box<Forward>>);
// ANCHOR_END: list

// ANCHOR: spec
/// A parameter of a layer that is not built yet: the whole tensor, and the way in which ranks share it, or `None` if each
/// rank has all of it.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "the lines above explain the fields")]
pub struct ParameterSpec {
    pub name: String,
    pub shape: Vec<usize>,
    pub init: Init,
    pub cut: Option<Cut>,
}
// ANCHOR_END: spec

impl Layers {
    /// An empty list for a model of this name.
    pub fn named(name: impl Into<String>) -> Self {
        Self { name: name.into(), list: Vec::new() }
    }

    /// The name of the model, such as `dense stack 784-512-10`.
    pub fn name(&self) -> &str {
        &self.name
    }

    // ANCHOR: then
    /// Adds a layer to the end of the list. `build` builds the layer. In a group, each rank has the whole layer.
    ///
    /// The layer gets a batch, `[B, …]`, and whether the pass is for training.
    #[must_use]
    pub fn then<L: ModuleT + Send + Sync + 'static>(
        mut self,
        name: impl Into<String>,
        build: impl Fn(&VarBuilder<'_>, &Norms) -> Result<L> + Send + Sync + 'static,
    ) -> Self {
        let build = move |vb: &VarBuilder<'_>, norms: &Norms, _: &Group| -> Result<Box<Forward>> {
            let layer = build(vb, norms)?;
            Ok(Box::new(move |x: &Tensor, train| layer.forward_t(x, train)))
        };
        let (name, build) = (name.into(), Arc::new(build));
        self.list.push(PlannedLayer { name, build, parameters: Vec::new() });
        self
    }
    // ANCHOR_END: then

    // ANCHOR: affine
    /// Adds a layer with a weight and a bias, which the ranks of a group share.
    pub(crate) fn affine(
        mut self,
        name: impl Into<String>,
        [weight, bias]: [ParameterSpec; 2],
        layer: impl Fn(&Tensor, &Tensor, &Tensor, &Group) -> Result<Tensor>
        + Copy
        + Send
        + Sync
        + 'static,
    ) -> Self {
        let parameters = vec![weight.clone(), bias.clone()];
        let build = move |vb: &VarBuilder<'_>, _: &Norms, group: &Group| -> Result<Box<Forward>> {
            let (weight, bias) = (weight.get(vb, group)?, bias.get(vb, group)?);
            let group = group.clone();
            Ok(Box::new(move |x: &Tensor, _| layer(x, &weight, &bias, &group)))
        };
        self.list.push(PlannedLayer { name: name.into(), build: Arc::new(build), parameters });
        self
    }
    // ANCHOR_END: affine

    /// The number of layers.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The layers' names, the first layer's first.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.list.iter().map(|planned| planned.name.as_str())
    }

    // ANCHOR: size
    /// The names and shapes of the parameters of a layer, in order. The layer is built of tensors without memory, so the
    /// layer may be larger than the memory of this machine. Fails when there is no such layer.
    pub fn parameters(&self, layer: usize) -> Result<Vec<(String, Shape)>> {
        let Some(planned) = self.list.get(layer) else {
            bail!("there is no layer {layer} in a model of {}", self.len());
        };
        let recorder = SpecRecorder::default();
        let specs = Arc::clone(&recorder.0);
        let vb = VarBuilder::from_backend(Box::new(recorder), DType::F32, Device::Cpu);
        drop((planned.build)(&vb, &Norms::default(), &Group::alone())?);
        Ok(std::mem::take(&mut *locked(&specs)))
    }
    // ANCHOR_END: size

    /// Checks that layers can be cut into so many parts. Fails when no layer can be cut, or a tensor has too few
    /// features: the message names the tensor.
    pub fn check_parts(&self, parts: usize) -> Result<()> {
        if self.sharded().is_empty() {
            bail!("no layer of this model can be cut into parts");
        }
        let mut parameters = self.list.iter().flat_map(|layer| &layer.parameters);
        parameters.try_for_each(|spec| spec.check(parts))
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
        self.build_for(layers, seed, precision.into(), device, &Group::alone())
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
        group: &Group,
    ) -> std::result::Result<Network<Stage>, Error> {
        let network = self.build_for(layers.clone(), seed, precision.into(), device, group)?;
        if let Some(communicator) = group.communicator() {
            let settings =
                [("seed", seed.to_string()), ("precision", network.precision().to_string())];
            let settings = settings.map(|(what, value)| (what.to_owned(), value));
            let specs = self.list[layers].iter().flat_map(|layer| &layer.parameters);
            let whole =
                specs.map(|spec| (format!("tensor {}", spec.name), format!("{:?}", spec.shape)));
            alike::compare(communicator, &settings.into_iter().chain(whole).collect::<Vec<_>>())?;
        }
        Ok(network)
    }

    /// A rank draws each whole tensor, keeps its part and frees the rest, as Megatron-LM does on the CPU. So all parts
    /// together are the tensor of one device, to the last bit.
    fn build_for(
        &self,
        layers: Range<usize>,
        seed: u64,
        precision: Precision,
        device: &Device,
        group: &Group,
    ) -> Result<Network<Stage>> {
        let (model, of_values) = (self.clone(), group.clone());
        let values = move |name: &str, shape: &Shape, init, dtype| match model.sharded().get(name) {
            Some((spec, cut)) if of_values.ranks() > 1 => {
                let whole = initial::value(name, &spec.shape.clone().into(), init, seed, dtype)?;
                // A view would keep the whole tensor in memory.
                of_values.part(&whole, *cut)?.force_contiguous()
            }
            _ => initial::value(name, shape, init, seed, dtype),
        };
        let Some(planned) = self.list.get(layers.clone()).filter(|planned| !planned.is_empty())
        else {
            bail!("there are no layers {layers:?} in a model of {}", self.len());
        };
        let (planned, group) = (planned.to_vec(), group.clone());
        Network::with_values(values, precision, device, move |vb, norms| {
            planned.iter().map(|it| (it.build)(vb, norms, &group)).collect::<Result<_>>().map(Stage)
        })
    }

    /// Joins the parts of all ranks: `values` are this rank's, in CPU memory, by name. All ranks of the group call this
    /// together, and all get the whole tensors. Fails when another rank stops or stalls.
    pub fn join(&self, values: Snapshot, group: &Group) -> Result<Snapshot> {
        let sharded = self.sharded();
        let whole = |(name, value): (String, Tensor)| {
            let of_group = group.communicator().zip(sharded.get(name.as_str()));
            let Some((communicator, (_, cut))) = of_group else { return Ok((name, value)) };
            let part = value.to_device(communicator.device())?;
            Ok((name, group.all_gather(&part, *cut)?.to_device(&Device::Cpu)?))
        };
        values.into_iter().map(whole).collect()
    }

    /// The tensors that the ranks of a group share, by name.
    fn sharded(&self) -> BTreeMap<&str, (&ParameterSpec, Cut)> {
        let all = self.list.iter().flat_map(|layer| &layer.parameters);
        all.filter_map(|spec| Some((spec.name.as_str(), (spec, spec.cut?)))).collect()
    }
    // ANCHOR_END: parts
}

// ANCHOR: stage
impl ModuleT for Stage {
    fn forward_t(&self, x: &Tensor, train: bool) -> Result<Tensor> {
        self.0.iter().try_fold(x.clone(), |x, layer| layer(&x, train))
    }
}
// ANCHOR_END: stage

// ANCHOR: of_spec
impl ParameterSpec {
    /// The same parameter, shared along an axis.
    pub(crate) fn cut(self, axis: usize) -> Self {
        Self { cut: Some(Cut::new(axis, self.shape[axis])), ..self }
    }

    /// Checks that each of so many ranks gets a part.
    fn check(&self, ranks: usize) -> Result<()> {
        let checked = self.cut.map_or(Ok(()), |cut| cut.check(ranks));
        checked.map_err(|error| TensorError::Msg(format!("{}: {error}", self.name)))
    }

    /// This rank's part of the tensor.
    fn get(&self, vb: &VarBuilder<'_>, group: &Group) -> Result<Tensor> {
        self.check(group.ranks())?;
        let mut shape = self.shape.clone();
        if let Some(cut) = self.cut {
            shape[cut.axis()] = cut.range(group.ranks(), group.rank()).len();
        }
        vb.get_with_hints(shape, &self.name, self.init)
    }
}
// ANCHOR_END: of_spec

// ANCHOR: recorder
/// A source of tensors that records the name and the shape of each parameter.
#[derive(Default)]
struct SpecRecorder(Arc<Mutex<Vec<(String, Shape)>>>);

impl SimpleBackend for SpecRecorder {
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
        // One number in memory, which stands in every place of the shape.
        let tensor = Tensor::zeros((), dtype, device)?.broadcast_as(&shape)?;
        locked(&self.0).push((name.to_owned(), shape));
        Ok(tensor)
    }

    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> Result<Tensor> {
        bail!("{name} cannot be made without a shape")
    }

    fn contains_tensor(&self, _: &str) -> bool {
        true
    }
}
// ANCHOR_END: recorder
