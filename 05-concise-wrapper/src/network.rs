//! A network: what it computes, and its tensors by name.

use std::sync::{Arc, Mutex, MutexGuard};

use candle_core::{DType, Device, Module, ModuleT, Result, Shape, Tensor, bail};
use candle_nn::VarBuilder;
use candle_nn::init::Init;
use harness::lock::locked;
use ops::backward::{Gradients, SecondHalf, backward, backward_from, backward_in_halves};
use ops::parameters::no_gradient;

use crate::batch_norm::Norms;
use crate::gradient_hook::GradientHook;
use crate::initial;
use crate::precision::{Copies, Precision};
use crate::weights::{Made, Registry, Source, Weights};

/// Builds a network out of named tensors; called once for every replica.
type Build<M> = dyn Fn(&VarBuilder<'_>, &Norms) -> Result<M> + Send + Sync;

/// One replica of a network, in training or in use.
///
/// Anything that is made of [`VarBuilder`]'s tensors will do: layers of `candle_nn`, this course's, your
/// own. Some of `candle_nn`'s have a wrong backward pass, or none; the book's chapter 5 has a list.
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
    weights: Weights,
    copies: Copies,
    norms: Norms,
    collector: Arc<Collector>,
    precision: Precision,
    device: Device,
    build: Arc<Build<M>>,
}

impl<M: ModuleT> Network<M> {
    /// A network with fresh weights. Each depends on its name and the seed alone.
    ///
    /// `precision` is an element type, such as `DType::F32`; with `DType::BF16` layers compute in bf16, and
    /// everything else is in f32 ([`Precision`]). `build` is given the builder of tensors, and what the batch
    /// norms of the network share.
    ///
    /// # Errors
    ///
    /// Those of `build`, and when `precision` is of another element type.
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

    /// A network whose weights start as `values` says: from a tensor's name, its shape, what the layer asked
    /// for, and the element type that it is kept in.
    ///
    /// The value comes in CPU memory, in this shape and type. Take it from [`initial::value`], so that it
    /// depends on the name and a seed alone.
    ///
    /// # Errors
    ///
    /// Those of `values` and `build`.
    pub fn with_values(
        values: impl Fn(&str, &Shape, Init, DType) -> Result<Tensor> + Send + Sync + 'static,
        precision: impl Into<Precision>,
        device: &Device,
        build: impl Fn(&VarBuilder<'_>, &Norms) -> Result<M> + Send + Sync + 'static,
    ) -> Result<Self> {
        let (source, norms) = (Source::Fresh(Box::new(values)), Norms::default());
        Self::built(source, norms, precision.into(), device, Arc::new(build))
    }

    /// A copy on another device: the same values, in memory of its own.
    ///
    /// # Errors
    ///
    /// When the tensors cannot be made there.
    pub fn replica(&self, device: &Device) -> Result<Self> {
        let source = Source::Copy(self.weights.clone());
        Self::built(source, self.norms.replica(), self.precision, device, Arc::clone(&self.build))
    }

    fn built(
        source: Source,
        norms: Norms,
        precision: Precision,
        device: &Device,
        build: Arc<Build<M>>,
    ) -> Result<Self> {
        if !matches!(precision.layers(), DType::F32 | DType::F64 | DType::BF16) {
            bail!("layers compute in f32, f64 or bf16, not in {}", precision.layers().as_str());
        }
        let collector = Arc::<Collector>::default();
        let hook: Arc<dyn GradientHook> = collector.clone();
        let (builder, made) = Registry::builder(source, hook, precision.layers(), device);
        let module = build(&builder, &norms)?;
        let made = std::mem::take(&mut *locked(&made));
        let (Made { weights, copies }, device) = (made, device.clone());
        Ok(Self { module, weights, copies, norms, collector, precision, device, build })
    }

    /// The logits of a batch, as in training: batch norms use the batch's statistics, and keep them.
    ///
    /// # Errors
    ///
    /// Those of the layers.
    pub fn forward_training(&self, images: &Tensor) -> Result<Tensor> {
        self.logits(images, true)
    }

    fn logits(&self, images: &Tensor, train: bool) -> Result<Tensor> {
        self.copies.round()?;
        let images = self.precision.images(images)?;
        let logits = self.module.forward_t(&images, train)?;
        self.norms.average()?;
        self.precision.logits(&logits)
    }

    /// The gradient of every parameter, in their order.
    ///
    /// # Errors
    ///
    /// When a parameter has none: the message names it; and when the network is wrapped by [`Ddp`](crate::Ddp).
    pub fn gradients(&self, loss: &Tensor) -> Result<Vec<Tensor>> {
        self.all_gradients(loss, &loss.ones_like()?).map(|(of_parameters, _)| of_parameters)
    }

    /// The gradient of every parameter, in their order, and those of all other variables that `result` depends on,
    /// such as an input that is one: of something whose gradient by `result` is `gradient`.
    ///
    /// # Errors
    ///
    /// As [`gradients`](Self::gradients), and when the two tensors are not of one shape and type.
    pub fn all_gradients(
        &self,
        result: &Tensor,
        gradient: &Tensor,
    ) -> Result<(Vec<Tensor>, Gradients)> {
        let slots = vec![None; self.weights.parameters.len()];
        let (slots, others) = self.collect(slots, || backward_from(result, gradient))?;
        Ok((self.complete(slots)?, others))
    }

    /// The first half of [`all_gradients`](Self::all_gradients): the gradients of all other variables, and the second
    /// half, which computes the gradients of the parameters from what the first half has kept.
    ///
    /// # Errors
    ///
    /// As [`all_gradients`](Self::all_gradients).
    pub fn backward_input(
        &self,
        result: &Tensor,
        gradient: &Tensor,
    ) -> Result<(Gradients, WeightHalf)> {
        let slots = vec![None; self.weights.parameters.len()];
        let (slots, (others, rest)) =
            self.collect(slots, || backward_in_halves(result, gradient))?;
        Ok((others, WeightHalf { slots, rest }))
    }

    /// The second half: the gradient of every parameter, in their order. The bits are those of
    /// [`all_gradients`](Self::all_gradients).
    ///
    /// # Errors
    ///
    /// As [`all_gradients`](Self::all_gradients).
    pub fn backward_weight(&self, WeightHalf { slots, rest }: WeightHalf) -> Result<Vec<Tensor>> {
        let (slots, _) = self.collect(slots, || rest.run())?;
        self.complete(slots)
    }

    /// Runs a backward pass, or a half of one, and adds the gradients of parameters to those in `slots`.
    fn collect<T>(
        &self,
        slots: Vec<Option<Tensor>>,
        backward: impl FnOnce() -> Result<T>,
    ) -> Result<(Vec<Option<Tensor>>, T)> {
        if !self.collector.begin(slots) {
            bail!(
                "this network is wrapped, and its gradients go to the wrapper: ask that for them"
            );
        }
        let others = backward()?;
        Ok((self.collector.take(), others))
    }

    /// The gradients in `slots`, if every parameter has one.
    fn complete(&self, slots: Vec<Option<Tensor>>) -> Result<Vec<Tensor>> {
        let slots = self.weights.parameters.iter().zip(slots);
        let complete = slots.map(|(parameter, gradient)| match gradient {
            Some(gradient) => Ok(gradient),
            None => bail!("{}", no_gradient(&parameter.name)),
        });
        complete.collect()
    }

    /// A backward pass whose gradients nobody keeps but the [listener](Self::listen).
    pub(crate) fn backward_to_listener(&self, loss: &Tensor) -> Result<()> {
        backward(loss).map(drop)
    }

    /// The network's tensors.
    pub fn weights(&self) -> &Weights {
        &self.weights
    }

    /// What the batch norms of this network share.
    pub fn norms(&self) -> &Norms {
        &self.norms
    }

    /// The element type of weights, images and logits.
    pub fn dtype(&self) -> DType {
        self.precision.weights()
    }

    /// What the network is kept in, and what its layers compute in.
    pub fn precision(&self) -> Precision {
        self.precision
    }

    /// Where the tensors are.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// From now on `listener` is told of every gradient during the backward pass, and keeps it.
    pub(crate) fn listen(&self, listener: Arc<dyn GradientHook>) {
        self.collector.lock().listener = Some(listener);
    }
}

impl<M: ModuleT> Module for Network<M> {
    /// The logits of a batch, as in evaluation: batch norms use their running statistics.
    fn forward(&self, images: &Tensor) -> Result<Tensor> {
        self.logits(images, false)
    }
}

/// The second half of a backward pass of a network ([`Network::backward_input`]).
pub struct WeightHalf {
    /// The gradients of parameters that the first half has computed, such as a batch norm's.
    slots: Vec<Option<Tensor>>,
    rest: SecondHalf,
}

impl WeightHalf {
    /// Bytes of the gradients that wait for the second half.
    pub fn bytes(&self) -> usize {
        let slots = self.slots.iter().flatten();
        let bytes = slots.map(|tensor| tensor.elem_count() * tensor.dtype().size_in_bytes());
        self.rest.bytes() + bytes.sum::<usize>()
    }
}

/// Where the gradient hooks of a network put the gradients.
#[derive(Default)]
struct Collector(Mutex<Collected>);

#[derive(Default)]
struct Collected {
    listener: Option<Arc<dyn GradientHook>>,
    slots: Vec<Option<Tensor>>,
}

impl Collector {
    fn lock(&self) -> MutexGuard<'_, Collected> {
        locked(&self.0)
    }

    /// Makes room for the gradients, unless a listener gets them.
    fn begin(&self, slots: Vec<Option<Tensor>>) -> bool {
        let mut collected = self.lock();
        collected.slots = slots;
        collected.listener.is_none()
    }

    fn take(&self) -> Vec<Option<Tensor>> {
        std::mem::take(&mut self.lock().slots)
    }
}

impl GradientHook for Collector {
    fn on_gradient(&self, slot: usize, gradient: &Tensor) -> Result<()> {
        let mut collected = self.lock();
        let listener = collected.listener.clone();
        match (listener, collected.slots.get_mut(slot)) {
            (Some(listener), _) => {
                drop(collected);
                listener.on_gradient(slot, gradient)
            }
            (None, Some(room)) => {
                *room = Some(gradient.clone());
                Ok(())
            }
            // A backward pass that nobody asked the gradients of.
            (None, None) => Ok(()),
        }
    }
}
