//! A network: a module, its named tensors, and their gradients.
//!
//! A module asks for its tensors by name, through candle's [`VarBuilder`]. So layers of `candle_nn` can be used, except those
//! with a wrong backward pass, which chapter 5 of the book lists.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use candle_core::{DType, Device, Module, ModuleT, Result, Shape, Tensor, Var, bail};
use candle_nn::VarBuilder;
use candle_nn::init::Init;
use candle_nn::var_builder::SimpleBackend;
use devices::move_view;
use harness::lock::locked;
use harness::report::trace::COMPUTE;
use model_state::initial;
use model_state::parameters::no_gradient;
use ops::backward::{Gradients, backward, record_parameter, record_views};
use ops::update::overwrite_rounded;
use tracing::info_span;

use crate::batch_norm::Norms;
use crate::precision::Precision;
use crate::weights::{Named, Weights, is_buffer};

// ANCHOR: network
/// Builds a module of named tensors, once for each replica.
type Build<M> = dyn Fn(&VarBuilder<'_>, &Norms) -> Result<M> + Send + Sync;

/// Returns the first value of a tensor, from its name, shape, distribution and type.
type Values = dyn Fn(&str, &Shape, Init, DType) -> Result<Tensor> + Send + Sync;

/// One replica of a network.
///
/// ```
/// use candle_core::{DType, Device};
/// use concise_wrapper::Network;
/// use concise_wrapper::resnet::ResNet18;
///
/// let network = Network::new(1, DType::F32, &Device::Cpu, |vb, norms| {
///     ResNet18::new(8, norms, vb)
/// })?;
/// assert_eq!(network.weights().parameters[0].name, "conv1.weight");
/// # Ok::<(), candle_core::Error>(())
/// ```
pub struct Network<M> {
    module: M,
    made: Made,
    norms: Norms,
    device: Device,
    build: Arc<Build<M>>,
    /// The row of which all parameters are views, if they are.
    row: Option<Tensor>,
    /// Whether a wrapper sums the gradients over all ranks.
    pub(crate) wrapped: bool,
}

/// The tensors that a module has asked for.
#[derive(Clone)]
struct Made {
    weights: Weights,
    /// The tensors that layers use, by name. With mixed precision they are rounded copies of the parameters.
    of_layers: HashMap<String, Tensor>,
}
// ANCHOR_END: network

impl<M: ModuleT> Network<M> {
    // ANCHOR: new
    /// Makes a network with fresh weights. Each depends on its name and the seed alone.
    ///
    /// `precision` is an element type, such as `DType::F32`. With `DType::BF16` the layers compute in bf16, and everything else
    /// is f32 ([`Precision`]). `build` gets the builder of tensors, and the settings that the batch norms of the network share.
    pub fn new(
        seed: u64,
        precision: impl Into<Precision>,
        device: &Device,
        build: impl Fn(&VarBuilder<'_>, &Norms) -> Result<M> + Send + Sync + 'static,
    ) -> Result<Self> {
        let value =
            move |name: &_, shape: &_, init, dtype| initial::value(name, shape, init, seed, dtype);
        Self::with_values(value, precision, device, build)
    }

    /// Makes a network with the initial weights that `values` returns, from the name, the shape, the distribution and the
    /// element type of a tensor.
    pub fn with_values(
        values: impl Fn(&str, &Shape, Init, DType) -> Result<Tensor> + Send + Sync + 'static,
        precision: impl Into<Precision>,
        device: &Device,
        build: impl Fn(&VarBuilder<'_>, &Norms) -> Result<M> + Send + Sync + 'static,
    ) -> Result<Self> {
        let (norms, frozen) = (Norms::default(), Vec::new());
        Self::built(Box::new(values), norms, precision.into(), device, Arc::new(build), frozen)
    }

    /// Makes a copy on another device: the same values, in other memory.
    pub fn replica(&self, device: &Device) -> Result<Self> {
        self.copied(device, |_| false)
    }

    /// Moves all parameters into one [row](Self::row), of which they become views. The layers must compute in the type of the
    /// parameters.
    pub fn in_one_row(self) -> Result<Self> {
        let mut weights = self.weights().clone();
        if weights.parameters.is_empty() {
            return Ok(self);
        }
        let rows = weights.parameters.iter().map(|it| it.tensor.detach().flatten_all());
        let row = record_parameter(&Tensor::cat(&rows.collect::<Result<Vec<_>>>()?, 0)?)?;
        let shapes = weights.parameters.iter().map(|it| it.tensor.shape().clone());
        let views = record_views(&row, &shapes.collect::<Vec<_>>())?;
        weights.parameters.iter_mut().zip(views).for_each(|(named, view)| named.tensor = view);
        let network =
            self.rebuilt(weights, &self.device, |_| false, |tensor| Ok(tensor.clone()))?;
        Ok(Self { row: Some(row), ..network })
    }

    /// Returns the memory of all parameters, in order, if they are [in one row](Self::in_one_row).
    pub fn row(&self) -> Option<&Tensor> {
        self.row.as_ref()
    }

    /// Makes constants of the parameters of some names, like PyTorch's `requires_grad_(False)`. They become buffers, without
    /// gradients and updates. All ranks freeze the same parameters, before they wrap the network. Fails when no parameter has
    /// such a name.
    pub fn freeze(self, frozen: impl Fn(&str) -> bool) -> Result<Self> {
        if !self.weights().parameters.iter().any(|named| frozen(&named.name)) {
            bail!("no parameter of this network has a name that is to be frozen");
        }
        self.copied(&self.device, frozen)
    }

    fn copied(&self, device: &Device, freezes: impl Fn(&str) -> bool) -> Result<Self> {
        let to = device.clone();
        let copy = move |tensor: &Tensor| move_view(&tensor.detach().force_contiguous()?, &to);
        self.rebuilt(self.weights().clone(), device, freezes, copy)
    }

    /// Builds the layers again, with what `tensor` makes of these weights.
    fn rebuilt(
        &self,
        weights: Weights,
        device: &Device,
        freezes: impl Fn(&str) -> bool,
        tensor: impl Fn(&Tensor) -> Result<Tensor> + Send + Sync + 'static,
    ) -> Result<Self> {
        let frozen = weights.parameters.iter().filter(|named| freezes(&named.name));
        // The parameters that were frozen before are buffers.
        let frozen = frozen.chain(&weights.buffers).map(|named| named.name.clone()).collect();
        let values = move |name: &str, shape: &Shape, _: Init, _: DType| match weights
            .get(name)
            .filter(|found| found.shape() == shape)
        {
            Some(found) => tensor(found),
            None => bail!("one replica has a tensor {name} of {shape:?}, another has none"),
        };
        let (norms, precision) = (self.norms.replica(), self.precision());
        Self::built(Box::new(values), norms, precision, device, Arc::clone(&self.build), frozen)
    }

    fn built(
        values: Box<Values>,
        norms: Norms,
        precision: Precision,
        device: &Device,
        build: Arc<Build<M>>,
        frozen: Vec<String>,
    ) -> Result<Self> {
        let layers = precision.layers();
        if !matches!(layers, DType::F32 | DType::F64 | DType::BF16) {
            bail!("layers compute in f32, f64 or bf16, not in {}", layers.as_str());
        }
        let weights = Weights { precision, parameters: Vec::new(), buffers: Vec::new() };
        let made = Arc::new(Mutex::new(Made { weights, of_layers: HashMap::new() }));
        let registry = Registry { values, made: Arc::clone(&made), frozen };
        let builder = VarBuilder::from_backend(Box::new(registry), layers, device.clone());
        let module = build(&builder, &norms)?;
        let made = locked(&made).clone();
        Ok(Self { module, made, norms, device: device.clone(), build, row: None, wrapped: false })
    }
    // ANCHOR_END: new

    // ANCHOR: round
    /// Rounds all parameters to the type of the layers again: the optimizer has changed the parameters.
    fn round(&self) -> Result<()> {
        let pairs = self.used().zip(self.weights().parameters.iter().map(|named| &named.tensor));
        // A layer may use a parameter in its own type.
        let rounded = pairs.filter(|(used, parameter)| used.dtype() != parameter.dtype());
        overwrite_rounded(&rounded.collect::<Vec<_>>())
    }
    // ANCHOR_END: round

    // ANCHOR: gradients
    /// Computes the logits of a batch, as in training: batch norms use and keep the statistics of the batch.
    pub fn forward_training(&self, images: &Tensor) -> Result<Tensor> {
        self.logits(images, true)
    }

    fn logits(&self, images: &Tensor, train: bool) -> Result<Tensor> {
        self.round()?;
        let precision = self.precision();
        let logits = self.module.forward_t(&precision.images(images)?, train)?;
        self.norms.average()?;
        precision.logits(&logits)
    }

    /// Computes the gradient of every parameter, in the order of the parameters. Fails when a parameter has no gradient, or
    /// the network is wrapped by [`Ddp`](crate::Ddp).
    pub fn gradients(&self, loss: &Tensor) -> Result<Vec<Tensor>> {
        let _span = info_span!(target: COMPUTE, "backward").entered();
        if self.wrapped {
            let to = "the wrapper: call the wrapper's `gradients`";
            bail!("this network is wrapped, and its gradients go to {to}");
        }
        self.parameter_gradients(&backward(loss)?)
    }

    /// Selects the gradients of all parameters, in the order and the types of the parameters, from the gradients of a
    /// backward pass. Fails when a parameter has no gradient: the message names it.
    pub fn parameter_gradients(&self, found: &Gradients) -> Result<Vec<Tensor>> {
        let parameters = self.weights().parameters.iter().zip(self.used());
        let of_row = self.row().and_then(|row| found.get(row));
        let gradient = |(Named { name, tensor }, used): (&Named, &Tensor)| {
            match (found.get(used), of_row) {
                (Some(gradient), _) => gradient.to_dtype(tensor.dtype()),
                // candle has computed the gradients, and knows no views.
                (None, Some(row)) => {
                    let start = tensor.layout().start_offset();
                    row.narrow(0, start, tensor.elem_count())?.reshape(tensor.shape())
                }
                (None, None) => bail!("{}", no_gradient(name)),
            }
        };
        parameters.map(gradient).collect()
    }

    /// Returns the tensors that layers use as parameters, in order. A backward pass returns their gradients.
    pub(crate) fn used(&self) -> impl Iterator<Item = &Tensor> {
        self.weights().parameters.iter().map(|named| &self.made.of_layers[&named.name])
    }

    /// Returns the network's tensors.
    pub fn weights(&self) -> &Weights {
        &self.made.weights
    }

    /// Returns the settings that the batch norms of this network share.
    pub fn norms(&self) -> &Norms {
        &self.norms
    }

    /// Returns the element type of weights, images and logits.
    pub fn dtype(&self) -> DType {
        self.precision().weights()
    }
    // ANCHOR_END: gradients

    /// Returns the element types of the weights and of the layers.
    pub fn precision(&self) -> Precision {
        self.weights().precision
    }

    /// Returns the device of the tensors.
    pub fn device(&self) -> &Device {
        &self.device
    }
}

impl<M: ModuleT> Module for Network<M> {
    /// Computes the logits of a batch, as in evaluation: batch norms use their running statistics.
    fn forward(&self, images: &Tensor) -> Result<Tensor> {
        self.logits(images, false)
    }
}

// ANCHOR: registry
/// The backend of the builder: makes each tensor when a layer asks for it first.
struct Registry {
    values: Box<Values>,
    made: Arc<Mutex<Made>>,
    frozen: Vec<String>,
}

impl SimpleBackend for Registry {
    fn get(
        &self,
        shape: Shape,
        name: &str,
        init: Init,
        dtype: DType,
        device: &Device,
    ) -> Result<Tensor> {
        let Made { weights, of_layers } = &mut *locked(&self.made);
        if let Some(tensor) = of_layers.get(name) {
            if tensor.shape() != &shape {
                bail!("{name} is asked for as {:?} and as {shape:?}", tensor.shape());
            }
            return Ok(tensor.clone());
        }
        // A parameter that layers use in bf16 is kept in f32, and so is every buffer.
        let kept = Precision::from(dtype).weights();
        let value = (self.values)(name, &shape, init, kept)?.to_device(device)?;
        let named = |tensor: &Tensor| Named { name: name.to_owned(), tensor: tensor.clone() };
        let tensor = if is_buffer(name) {
            let buffer = Var::from_tensor(&value)?.into_inner();
            weights.buffers.push(named(&buffer));
            buffer
        } else if self.frozen.iter().any(|frozen| frozen == name) {
            // A backward pass stops at a frozen parameter.
            let frozen = Var::from_tensor(&value.to_dtype(dtype)?)?.into_inner().detach();
            weights.buffers.push(named(&frozen));
            frozen
        } else {
            // A view of a parameter is one already.
            let parameter = match value.track_op() {
                true => value.clone(),
                false => record_parameter(&value.to_dtype(dtype)?)?,
            };
            weights.parameters.push(named(if kept == dtype { &parameter } else { &value }));
            parameter
        };
        of_layers.insert(name.to_owned(), tensor.clone());
        Ok(tensor)
    }

    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> Result<Tensor> {
        match locked(&self.made).of_layers.get(name) {
            Some(tensor) => Ok(tensor.clone()),
            None => bail!("{name} cannot be made without a shape"),
        }
    }

    fn contains_tensor(&self, _: &str) -> bool {
        true // The builder makes every tensor that a layer asks for.
    }
}
// ANCHOR_END: registry

#[cfg(test)]
mod tests {
    use std::thread;

    use candle_nn::{FuncT, func_t};
    use ops::cross_entropy;

    use super::*;
    use crate::batch_norm::BatchNorm;
    use crate::lenet::LeNet;
    use crate::optimizer::{Momentum, Optimizer as _, Sgd};

    fn lenet() -> Network<LeNet> {
        Network::new(1, DType::F64, &Device::Cpu, |vb, _| LeNet::new(vb)).unwrap()
    }

    /// The gradients of an image that is different for each salt.
    fn gradients(network: &Network<LeNet>, salt: u32) -> Vec<Vec<f64>> {
        let pixels = (0..784).map(|pixel| f64::from(pixel * (salt + 3) % 101) / 50.0 - 1.0);
        let image = Tensor::from_iter(pixels, &Device::Cpu).unwrap();
        let logits = network.forward_training(&image.reshape((1, 1, 28, 28)).unwrap()).unwrap();
        let label = Tensor::new(&[salt % 10], &Device::Cpu).unwrap();
        let gradients = network.gradients(&cross_entropy(&logits, &label).unwrap()).unwrap();
        let values = gradients.iter().map(|gradient| gradient.flatten_all()?.to_vec1());
        values.collect::<Result<_>>().unwrap()
    }

    #[test]
    fn threads_that_differentiate_one_network_get_their_own_gradients() {
        let network = lenet();
        let expected: Vec<_> = (0..8).map(|salt| gradients(&network, salt)).collect();
        thread::scope(|scope| {
            for (salt, expected) in (0..).zip(&expected) {
                let network = &network;
                scope.spawn(move || {
                    for _ in 0..15 {
                        assert!(gradients(network, salt) == *expected, "thread {salt}");
                    }
                });
            }
        });
    }

    #[test]
    fn frozen_parameters_have_no_gradient_and_no_update() {
        let network = lenet().freeze(|name| name.ends_with(['1', '2'])).unwrap();
        let whole = lenet();
        let names = |named: &[Named]| named.iter().map(|it| it.name.clone()).collect::<Vec<_>>();
        let (all, rest) =
            (names(&whole.weights().parameters), names(&network.weights().parameters));
        let frozen = names(&network.weights().buffers);
        assert!(!rest.is_empty() && frozen == ["W1", "b1", "W2", "b2"]);
        assert_eq!([frozen.clone(), rest.clone()].concat().len(), all.len());
        let of_rest = all.iter().zip(gradients(&whole, 5)).filter(|(name, _)| rest.contains(name));
        assert_eq!(gradients(&network, 5), of_rest.map(|(_, it)| it).collect::<Vec<_>>());

        let before = network.weights().snapshot().unwrap();
        let image = Tensor::ones((2, 1, 28, 28), DType::F64, &Device::Cpu).unwrap();
        let loss = network.forward_training(&image).unwrap().sum_all().unwrap();
        let all = ops::backward::backward_from(&loss, &loss.ones_like().unwrap()).unwrap();
        let found = network.parameter_gradients(&all).unwrap();
        let has_gradient = |named: &Named| all.get(&named.tensor).is_some();
        assert!(!network.weights().buffers.iter().any(has_gradient), "computed and thrown away");
        Sgd::new(Momentum::default()).step(network.weights(), &found, 0.1, 2).unwrap();
        for ((name, before), (_, after)) in before.iter().zip(network.weights().snapshot().unwrap())
        {
            let moved = (before - after).unwrap().abs().unwrap().max_all().unwrap();
            assert_eq!(moved.to_scalar::<f64>().unwrap() > 0.0, rest.contains(name), "{name}");
        }
        // A replica is frozen as well.
        let replica = network.replica(&Device::Cpu).unwrap();
        assert_eq!(names(&replica.weights().buffers), frozen);
        assert!(lenet().freeze(|name| name == "W9").is_err());
    }

    #[test]
    fn a_frozen_batch_norm_still_moves_its_running_statistics() {
        let build = |vb: &VarBuilder<'_>, norms: &Norms| BatchNorm::new(2, false, norms, vb);
        let network = Network::new(1, DType::F64, &Device::Cpu, build).unwrap();
        let network = network.freeze(|_| true).unwrap();
        let frozen = ["weight", "bias", "running_mean", "running_var"];
        assert!(network.weights().buffers.iter().map(|named| &named.name).eq(&frozen));
        let images = Tensor::new(&[1.0, 2.0, 3.0, 5.0], &Device::Cpu).unwrap();
        network.forward_training(&images.reshape((2, 2, 1, 1)).unwrap()).unwrap();
        let mean = network.weights().get("running_mean").unwrap().to_vec1::<f64>().unwrap();
        assert!((mean[0] - 0.2).abs() < 1e-12 && (mean[1] - 0.35).abs() < 1e-12, "{mean:?}");
    }

    #[test]
    fn in_bf16_frozen_parameters_are_rounded_once() {
        let build = |vb: &VarBuilder<'_>, _: &Norms| -> Result<FuncT<'static>> {
            let (weight, bias) = (vb.get((2, 3), "a.weight")?, vb.get(3, "a.bias")?);
            Ok(func_t(move |x, _| ops::linear(x, &weight, &bias)))
        };
        let network = Network::new(1, DType::BF16, &Device::Cpu, build).unwrap();
        let frozen = network.freeze(|name| name == "a.weight").unwrap();
        assert_eq!(frozen.weights().buffers[0].tensor.dtype(), DType::BF16);
        let x = Tensor::ones((1, 2), DType::F32, &Device::Cpu).unwrap();
        let loss = frozen.forward_training(&x).unwrap().sum_all().unwrap();
        assert_eq!(frozen.gradients(&loss).unwrap().len(), 1);
    }
}
