//! A model as a list of layers, which can be cut into stages and into parts.
//!
//! The list says how to build each layer, and builds nothing. A device then makes the tensors of its own stage only, and of
//! its own part of each layer, so no device ever holds the whole model. The initial value of a tensor depends on its
//! name and the seed alone, so all devices together have the weights of one device.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use candle_core::{Device, Error as TensorError, ModuleT, Result, Shape, Tensor, bail};
use candle_nn::VarBuilder;
use candle_nn::init::Init;
use concise_wrapper::batch_norm::Norms;
use concise_wrapper::ddp::alike;
use concise_wrapper::weights::Snapshot;
use concise_wrapper::{Error, Network, Precision, initial};

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
    build: Arc<Build>,
    /// The weight and the bias of a layer that ranks can share.
    parameters: Vec<ParameterSpec>,
}

/// A run of layers of a model, in order.
pub struct Stage(Vec<Box<Forward>>);

impl ModuleT for Stage {
    fn forward_t(&self, x: &Tensor, train: bool) -> Result<Tensor> {
        self.0.iter().try_fold(x.clone(), |x, layer| layer(&x, train))
    }
}
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
        build: impl Fn(&VarBuilder<'_>, &Norms) -> Result<L> + Send + Sync + 'static,
    ) -> Self {
        let build = move |vb: &VarBuilder<'_>, norms: &Norms, _: &Group| -> Result<Box<Forward>> {
            let layer = build(vb, norms)?;
            Ok(Box::new(move |x: &Tensor, train| layer.forward_t(x, train)))
        };
        self.list.push(PlannedLayer { build: Arc::new(build), parameters: Vec::new() });
        self
    }
    // ANCHOR_END: then

    // ANCHOR: affine
    /// Adds a layer with a weight and a bias, which the ranks of a group share.
    pub(crate) fn affine(
        mut self,
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
        self.list.push(PlannedLayer { build: Arc::new(build), parameters });
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

    /// Builds a layer of tensors from another source, and drops the layer. Fails when there is no such layer, and with the
    /// errors of the source.
    pub fn build_from(&self, layer: usize, source: &VarBuilder<'_>) -> Result<()> {
        match self.list.get(layer) {
            Some(it) => (it.build)(source, &Norms::default(), &Group::alone()).map(drop),
            None => bail!("there is no layer {layer} in a model of {}", self.len()),
        }
    }

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
            let precision = network.precision().to_string();
            let mut settings = vec![("seed".to_owned(), seed.to_string())];
            settings.push(("precision".to_owned(), precision));
            for spec in self.list[layers].iter().flat_map(|layer| &layer.parameters) {
                settings.push((format!("tensor {}", spec.name), format!("{:?}", spec.shape)));
            }
            alike::compare(communicator, &settings)?;
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
