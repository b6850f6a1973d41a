//! A model as a list of layers, so that it can be cut.
//!
//! The list says how each layer is built, and builds nothing. A stage then makes the tensors of its own
//! layers and of no others: what the device could not hold never exists on it. As the initial value of a
//! tensor depends on its name and the seed alone, all stages together have the weights that one device would
//! have.

use std::ops::Range;
use std::sync::Arc;

use candle_core::{Device, ModuleT, Result, Shape, Tensor, bail};
use candle_nn::VarBuilder;
use concise_wrapper::batch_norm::Norms;
use concise_wrapper::lenet::init;
use concise_wrapper::resnet::{BLOCKS, Block, Head, Stem};
use concise_wrapper::{Network, Precision};
use ops::{conv2d_relu_pool, flatten, linear, linear_relu};
use single_gpu::lenet::SHAPES;

use crate::dense::{self, PlannedTensor};
use crate::wishes;

type Forward = dyn Fn(&Tensor, bool) -> Result<Tensor> + Send + Sync;
type Build = dyn Fn(&VarBuilder<'_>, &Norms) -> Result<Box<Forward>> + Send + Sync;

/// A model as a list of layers; none of them is built yet.
#[derive(Clone, Default)]
pub struct Layers(Vec<Planned>);

#[derive(Clone)]
struct Planned {
    name: String,
    build: Arc<Build>,
}

/// Some layers of a model, one after the other.
pub struct Stage(Vec<Box<Forward>>);

impl Layers {
    /// The same list with one more layer at its end, which is built by `build`.
    ///
    /// What is built is given a batch, `[B, …]`, and whether it is for training.
    #[must_use]
    pub fn then<L: ModuleT + Send + Sync + 'static>(
        mut self,
        name: impl Into<String>,
        build: impl Fn(&VarBuilder<'_>, &Norms) -> Result<L> + Send + Sync + 'static,
    ) -> Self {
        let build = move |vb: &VarBuilder<'_>, norms: &Norms| -> Result<Box<Forward>> {
            let layer = build(vb, norms)?;
            Ok(Box::new(move |x: &Tensor, train| layer.forward_t(x, train)))
        };
        self.0.push(Planned { name: name.into(), build: Arc::new(build) });
        self
    }

    /// LeNet of stage 1: `[B, 1, 28, 28]` → `[B, 10]`, in five layers; its names, shapes and initial weights.
    pub fn lenet() -> Self {
        let planned = |(name, shape): (&str, &[usize])| PlannedTensor {
            name: name.to_owned(),
            shape: shape.to_vec(),
            init: init(name),
        };
        let [w1, b1, w2, b2, w3, b3, w4, b4] = SHAPES.map(planned);
        let convolution = |x: &Tensor, w: &Tensor, b: &Tensor| conv2d_relu_pool(x, w, b, 2);
        let flatten = |_: &VarBuilder<'_>, _: &Norms| Ok(|x: &Tensor| flatten(x));
        Self::default()
            .then("convolution 1", affine([w1, b1], convolution))
            .then("convolution 2", affine([w2, b2], convolution))
            .then("flatten", flatten)
            .then("dense 1", affine([w3, b3], linear_relu))
            .then("dense 2", affine([w4, b4], linear))
    }

    /// A dense stack: `[B, …]`, flattened to `[B, widths[0]]`, → `[B, widths[last]]`, with a relu between two
    /// layers. Its tensors are those of [`dense::plan`].
    ///
    /// # Errors
    ///
    /// When there are fewer than two widths, or one is 0.
    pub fn dense(widths: &[usize]) -> Result<Self> {
        let stack = dense::plan(widths)?;
        let count = stack.len();
        let mut layers = Self::default();
        for (i, tensors) in stack.into_iter().enumerate() {
            let last = i + 1 == count;
            let dense = move |x: &Tensor, w: &Tensor, b: &Tensor| {
                let x = flatten(x)?;
                if last { linear(&x, w, b) } else { linear_relu(&x, w, b) }
            };
            layers = layers.then(format!("dense {i}"), affine(tensors, dense));
        }
        Ok(layers)
    }

    /// ResNet-18 of stage 5: `[B, 1, 28, 28]` → `[B, 10]`, in ten layers: the stem, eight blocks, the head. Its
    /// names, shapes and initial weights; the first group has `width` planes, 64 in the original.
    pub fn resnet18(width: usize) -> Self {
        let stem = Self::default().then("stem", move |vb, norms| Stem::new(width, norms, vb));
        let blocks = (0..BLOCKS).fold(stem, |layers, number| {
            let build =
                move |vb: &VarBuilder<'_>, norms: &Norms| Block::new(number, width, norms, vb);
            layers.then(format!("block {number}"), build)
        });
        blocks.then("head", move |vb, _| Head::new(width, vb))
    }

    /// How many layers there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The layers' names, the first layer's first.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|planned| planned.name.as_str())
    }

    /// Every parameter that a layer will ask for, in order, with its name and shape; nothing is made of it.
    ///
    /// The layer itself is asked, so a network's size can be told on a machine that could not hold it.
    ///
    /// # Errors
    ///
    /// When there is no such layer, or it cannot be built.
    pub fn parameters(&self, layer: usize) -> Result<Vec<(String, Shape)>> {
        let Some(planned) = self.0.get(layer) else {
            bail!("there is no layer {layer} in a model of {}", self.len());
        };
        wishes::of(|vb| (planned.build)(vb, &Norms::default()).map(drop))
    }

    // ANCHOR: build
    /// Builds some of the layers: the network of one stage, or with `0..len()` the whole model.
    ///
    /// # Errors
    ///
    /// When there are no such layers, or their tensors cannot be made.
    pub fn build(
        &self,
        layers: Range<usize>,
        seed: u64,
        precision: impl Into<Precision>,
        device: &Device,
    ) -> Result<Network<Stage>> {
        let Some(planned) = self.0.get(layers.clone()).filter(|planned| !planned.is_empty()) else {
            bail!("there are no layers {layers:?} in a model of {}", self.len());
        };
        let planned = planned.to_vec();
        Network::new(seed, precision, device, move |vb, norms| {
            let layers = planned.iter().map(|planned| (planned.build)(vb, norms));
            Ok(Stage(layers.collect::<Result<_>>()?))
        })
    }
    // ANCHOR_END: build
}

impl ModuleT for Stage {
    fn forward_t(&self, x: &Tensor, train: bool) -> Result<Tensor> {
        self.0.iter().try_fold(x.clone(), |x, layer| layer(&x, train))
    }
}

/// A layer with a weight and a bias.
fn affine<L>(
    [weight, bias]: [PlannedTensor; 2],
    layer: L,
) -> impl Fn(&VarBuilder<'_>, &Norms) -> Result<Affine<L>> + Send + Sync + 'static
where
    L: Fn(&Tensor, &Tensor, &Tensor) -> Result<Tensor> + Copy + Send + Sync + 'static,
{
    move |vb, _| {
        let get = |tensor: &PlannedTensor| {
            vb.get_with_hints(tensor.shape.as_slice(), &tensor.name, tensor.init)
        };
        Ok(Affine { weight: get(&weight)?, bias: get(&bias)?, layer })
    }
}

struct Affine<L> {
    weight: Tensor,
    bias: Tensor,
    layer: L,
}

impl<L: Fn(&Tensor, &Tensor, &Tensor) -> Result<Tensor>> ModuleT for Affine<L> {
    fn forward_t(&self, x: &Tensor, _train: bool) -> Result<Tensor> {
        (self.layer)(x, &self.weight, &self.bias)
    }
}
