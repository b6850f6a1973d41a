//! A network: a module, its named tensors, and the hooks that receive its gradients.
//!
//! A module asks for its tensors by name, through candle's [`VarBuilder`]. So layers of `candle_nn` can be used, except those
//! with a wrong backward pass, which chapter 5 of the book lists. The builder makes each tensor and keeps it in a list.

use std::sync::{Arc, Mutex, OnceLock};

use candle_core::{DType, Device, Module, ModuleT, Result, Shape, Tensor, Var, bail};
use candle_nn::VarBuilder;
use candle_nn::init::Init;
use candle_nn::var_builder::SimpleBackend;
use devices::move_view;
use harness::lock::locked;
use harness::report::trace::COMPUTE;
use ops::backward::{Gradients, SecondHalf, backward_from, backward_in_halves, record_copy};
use ops::parameters::{no_gradient, overwrite_rounded};
use ops::{initial, size_in_bytes};
use tracing::info_span;

use crate::batch_norm::Norms;
use crate::precision::Precision;
use crate::weights::{Named, Weights, is_buffer};

// ANCHOR: network
/// Builds a module of named tensors. Each replica calls it once.
type Build<M> = dyn Fn(&VarBuilder<'_>, &Norms) -> Result<M> + Send + Sync;

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
    hooks: Arc<Hooks>,
    device: Device,
    build: Arc<Build<M>>,
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
        let values = move |name: &str, shape: &Shape, init, dtype| {
            initial::value(name, shape, init, seed, dtype)
        };
        Self::with_values(values, precision, device, build)
    }

    /// Makes a network with the initial weights that `values` returns, from a tensor's name, its shape, the distribution that
    /// the layer asks for, and the element type. With [`initial::value`], each depends on its name and a seed alone.
    pub fn with_values(
        values: impl Fn(&str, &Shape, Init, DType) -> Result<Tensor> + Send + Sync + 'static,
        precision: impl Into<Precision>,
        device: &Device,
        build: impl Fn(&VarBuilder<'_>, &Norms) -> Result<M> + Send + Sync + 'static,
    ) -> Result<Self> {
        let (precision, build) = (precision.into(), Arc::new(build));
        Self::built(Box::new(values), Norms::default(), precision, device, build)
    }
    // ANCHOR_END: new

    // ANCHOR: replica
    /// Makes a copy on another device: the same values, in other memory.
    pub fn replica(&self, device: &Device) -> Result<Self> {
        let (weights, to) = (self.weights().clone(), device.clone());
        let values = move |name: &str, shape: &Shape, _: Init, _: DType| match weights.get(name) {
            Some(tensor) if tensor.shape() == shape => {
                move_view(&tensor.detach().force_contiguous()?, &to)
            }
            Some(tensor) => {
                bail!("{name} is {:?} in one replica, {shape:?} in another", tensor.shape())
            }
            None => bail!("one replica has a tensor {name}, another has none"),
        };
        let (norms, precision) = (self.norms.replica(), self.precision());
        Self::built(Box::new(values), norms, precision, device, Arc::clone(&self.build))
    }
    // ANCHOR_END: replica

    // ANCHOR: built
    fn built(
        values: Box<Values>,
        norms: Norms,
        precision: Precision,
        device: &Device,
        build: Arc<Build<M>>,
    ) -> Result<Self> {
        let layers = precision.layers();
        if !matches!(layers, DType::F32 | DType::F64 | DType::BF16) {
            bail!("layers compute in f32, f64 or bf16, not in {}", layers.as_str());
        }
        let weights = Weights { precision, parameters: Vec::new(), buffers: Vec::new() };
        let made = Arc::new(Mutex::new(Made { weights, used: Vec::new() }));
        let (hooks, device) = (Arc::<Hooks>::default(), device.clone());
        let registry = Registry { values, hooks: Arc::clone(&hooks), made: Arc::clone(&made) };
        let builder = VarBuilder::from_backend(Box::new(registry), layers, device.clone());
        let module = build(&builder, &norms)?;
        let made = locked(&made).clone();
        Ok(Self { module, made, norms, hooks, device, build })
    }
    // ANCHOR_END: built

    // ANCHOR: forward
    /// Computes the logits of a batch, as in training: batch norms use and keep the statistics of the batch.
    pub fn forward_training(&self, images: &Tensor) -> Result<Tensor> {
        self.logits(images, true)
    }

    fn logits(&self, images: &Tensor, train: bool) -> Result<Tensor> {
        self.made.round()?;
        let precision = self.precision();
        let logits = self.module.forward_t(&precision.images(images)?, train)?;
        self.norms.average()?;
        precision.logits(&logits)
    }
    // ANCHOR_END: forward

    // ANCHOR: gradients
    /// Computes the gradient of every parameter, in the order of the parameters. Fails when a parameter has no gradient: the
    /// message names it. Fails when the network is wrapped by [`Ddp`](crate::Ddp).
    pub fn gradients(&self, loss: &Tensor) -> Result<Vec<Tensor>> {
        let _span = info_span!(target: COMPUTE, "backward").entered();
        self.all_gradients(loss, &loss.ones_like()?).map(|(of_parameters, _)| of_parameters)
    }

    /// Continues a backward pass from `result`: `gradient` is the gradient of a loss by `result`. Returns the gradient of every
    /// parameter, in the order of the parameters, and the gradients of all other variables that `result` depends on, such as an
    /// input.
    pub fn all_gradients(
        &self,
        result: &Tensor,
        gradient: &Tensor,
    ) -> Result<(Vec<Tensor>, Gradients)> {
        let (slots, others) = self.collect(None, || backward_from(result, gradient))?;
        Ok((self.complete(slots)?, others))
    }

    /// The first half of [`all_gradients`](Self::all_gradients): returns the gradients of all other variables, and the second half,
    /// which computes the gradients of the parameters.
    pub fn backward_input(
        &self,
        result: &Tensor,
        gradient: &Tensor,
    ) -> Result<(Gradients, WeightHalf)> {
        let (slots, (others, rest)) =
            self.collect(None, || backward_in_halves(result, gradient))?;
        Ok((others, WeightHalf { slots, rest }))
    }

    /// The second half: returns the gradient of every parameter, in the order of the parameters, with the bits of
    /// [`all_gradients`](Self::all_gradients).
    pub fn backward_weight(&self, WeightHalf { slots, rest }: WeightHalf) -> Result<Vec<Tensor>> {
        let (slots, _) = self.collect(Some(slots), || rest.run())?;
        self.complete(slots)
    }

    /// Runs a backward pass or a half of one. Returns the gradients of the parameters, with those of the first half.
    fn collect<T>(
        &self,
        first_half: Option<Slots>,
        backward: impl FnOnce() -> Result<T>,
    ) -> Result<(Slots, T)> {
        if self.hooks.wrapper.get().is_some() {
            bail!(
                "this network is wrapped, and its gradients go to the wrapper: call the wrapper's `gradients`"
            );
        }
        let empty = || vec![None; self.weights().parameters.len()];
        *locked(&self.hooks.gradients) = first_half.unwrap_or_else(empty);
        let others = backward()?;
        Ok((std::mem::take(&mut *locked(&self.hooks.gradients)), others))
    }

    fn complete(&self, slots: Slots) -> Result<Vec<Tensor>> {
        let slots = self.weights().parameters.iter().zip(slots);
        let complete = slots.map(|(parameter, gradient)| match gradient {
            Some(gradient) => Ok(gradient),
            None => bail!("{}", no_gradient(&parameter.name)),
        });
        complete.collect()
    }

    /// From now on every backward pass gives its gradients to `hook`, with the number of the parameter. Call this once.
    pub(crate) fn register_hook(
        &self,
        hook: impl Fn(usize, &Tensor) -> Result<()> + Send + Sync + 'static,
    ) {
        let first = self.hooks.wrapper.set(Box::new(hook)).is_ok();
        assert!(first, "a network has one wrapper");
    }
    // ANCHOR_END: gradients

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

// ANCHOR: halves
/// The gradient of each parameter, if it is computed already.
type Slots = Vec<Option<Tensor>>;

/// The second half of a backward pass of a network ([`Network::backward_input`]).
pub struct WeightHalf {
    /// The gradients that the first half has computed, such as a batch norm's.
    slots: Slots,
    rest: SecondHalf,
}

impl WeightHalf {
    /// Returns the bytes of the gradients that wait for the second half.
    pub fn bytes(&self) -> usize {
        let slots = self.slots.iter().flatten().map(size_in_bytes);
        self.rest.bytes() + slots.sum::<usize>()
    }
}
// ANCHOR_END: halves

// ANCHOR: hooks
/// Receives the number of a parameter and the gradient of the parameter.
type Hook = dyn Fn(usize, &Tensor) -> Result<()> + Send + Sync;

/// The receivers of a network's gradients.
#[derive(Default)]
struct Hooks {
    /// The gradients of the backward pass that is under way. Empty at other times.
    gradients: Mutex<Slots>,
    /// The hook of a wrapper, which gets the gradients instead.
    wrapper: OnceLock<Box<Hook>>,
}
// ANCHOR_END: hooks

// ANCHOR: hook
/// Makes a parameter with this value, in other memory. The backward pass calls the hook with the number and the gradient of the
/// parameter, in the type `kept` of the network's weights. Update the parameter in place.
///
/// An ordinary backward pass returns all gradients at its end. But the gradient of the last layer is complete soon after the
/// start. Therefore each parameter is the result of an operation with an unused input. The backward pass calls this operation's
/// backward function as soon as the gradient of the parameter is complete:
///
/// ```text
/// forward     anchor ─ hook ─→ W ──→ conv ──→ …        W has its value already
/// backward    anchor   hook ←─ dW ←─ conv ←── …        dW is complete: hook(parameter, dW)
/// ```
fn with_gradient_hook(
    value: &Tensor,
    kept: DType,
    parameter: usize,
    hooks: Arc<Hooks>,
) -> Result<Tensor> {
    let anchor = Var::zeros((), DType::F32, value.device())?;
    record_copy("gradient hook", value, [&anchor], move |_, gradient| {
        let gradient = gradient.to_dtype(kept)?;
        if let Some(hook) = hooks.wrapper.get() {
            hook(parameter, &gradient)?;
        } else if let Some(slot) = locked(&hooks.gradients).get_mut(parameter) {
            *slot = Some(gradient);
        }
        Ok([None])
    })
}
// ANCHOR_END: hook

/// Returns the first value of a tensor, from its name, shape, distribution and type.
type Values = dyn Fn(&str, &Shape, Init, DType) -> Result<Tensor> + Send + Sync;

// ANCHOR: made
/// The tensors that a module has asked for.
#[derive(Clone)]
struct Made {
    weights: Weights,
    /// The tensors that layers use as parameters. With mixed precision they are rounded copies of the parameters.
    used: Vec<Tensor>,
}
// ANCHOR_END: made

impl Made {
    // ANCHOR: get
    /// Returns the tensor that layers use under this name.
    fn get(&self, name: &str) -> Option<&Tensor> {
        let Weights { parameters, buffers, .. } = &self.weights;
        let parameters = parameters.iter().zip(&self.used);
        let buffers = buffers.iter().map(|buffer| (buffer, &buffer.tensor));
        let found = parameters.chain(buffers).find(|(named, _)| named.name == name);
        found.map(|(_, tensor)| tensor)
    }
    // ANCHOR_END: get

    // ANCHOR: round
    /// Rounds all parameters to the type of the layers again: the optimizer has changed the parameters.
    fn round(&self) -> Result<()> {
        if !self.weights.precision.is_mixed() {
            return Ok(());
        }
        let pairs = self.used.iter().zip(&self.weights.parameters);
        // A layer may use a parameter in its own type.
        let rounded = pairs.filter(|(used, parameter)| used.dtype() != parameter.tensor.dtype());
        let rounded = rounded.map(|(used, parameter)| (used, &parameter.tensor));
        overwrite_rounded(&rounded.collect::<Vec<_>>())
    }
    // ANCHOR_END: round
}

// ANCHOR: registry
/// The backend of the builder: makes each tensor when a layer asks for it first.
struct Registry {
    values: Box<Values>,
    hooks: Arc<Hooks>,
    made: Arc<Mutex<Made>>,
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
        let mut made = locked(&self.made);
        if let Some(tensor) = made.get(name) {
            if tensor.shape() != &shape {
                bail!("{name} is asked for as {:?} and as {shape:?}", tensor.shape());
            }
            return Ok(tensor.clone());
        }
        // A parameter that layers use in bf16 is kept in f32, and so is every buffer.
        let kept = Precision::from(dtype).weights();
        let value = (self.values)(name, &shape, init, kept)?.to_device(device)?;
        let name = name.to_owned();
        let Made { weights, used } = &mut *made;
        if is_buffer(&name) {
            let tensor = Var::from_tensor(&value)?.into_inner();
            weights.buffers.push(Named { name, tensor: tensor.clone() });
            return Ok(tensor);
        }
        let (number, hooks) = (used.len(), Arc::clone(&self.hooks));
        let of_layers = with_gradient_hook(&value.to_dtype(dtype)?, kept, number, hooks)?;
        let tensor = if kept == dtype { of_layers.clone() } else { value };
        weights.parameters.push(Named { name, tensor });
        used.push(of_layers.clone());
        Ok(of_layers)
    }

    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> Result<Tensor> {
        match locked(&self.made).get(name) {
            Some(tensor) => Ok(tensor.clone()),
            None => bail!("{name} cannot be made without a shape"),
        }
    }

    fn contains_tensor(&self, _: &str) -> bool {
        // The builder makes every tensor that a layer asks for.
        true
    }
}
// ANCHOR_END: registry
