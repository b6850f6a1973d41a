//! A model as a list of layers, so that it can be cut.
//!
//! The list says how each layer is built, and builds nothing. A stage then makes the tensors of its own
//! layers and of no others: what the device could not hold never exists on it. As the initial value of a
//! tensor depends on its name and the seed alone, all stages together have the weights that one device would
//! have.

use std::ops::Range;
use std::sync::Arc;

use candle_core::{Device, ModuleT, Result, Tensor, bail};
use candle_nn::VarBuilder;
use candle_nn::init::Init;
use concise_wrapper::batch_norm::Norms;
use concise_wrapper::lenet::init;
use concise_wrapper::{Network, Precision};
use single_gpu::lenet::SHAPES;
use single_gpu::ops::{conv2d_relu_pool, linear, linear_relu};

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
        let [w1, b1, w2, b2, w3, b3, w4, b4] = SHAPES;
        let convolution = |x: &Tensor, w: &Tensor, b: &Tensor| conv2d_relu_pool(x, w, b, 2);
        let flatten = |_: &VarBuilder<'_>, _: &Norms| Ok(|x: &Tensor| x.flatten_from(1));
        Self::default()
            .then("convolution 1", affine(w1, b1, init, convolution))
            .then("convolution 2", affine(w2, b2, init, convolution))
            .then("flatten", flatten)
            .then("dense 1", affine(w3, b3, init, linear_relu))
            .then("dense 2", affine(w4, b4, init, linear))
    }

    /// A dense stack: `[B, …]`, flattened to `[B, widths[0]]`, → `[B, widths[last]]`, with a relu between two
    /// layers. Layer i has a weight `dense{i}.weight` of `[widths[i], widths[i + 1]]` and a bias.
    ///
    /// Initial weights are N(0, 2 / widths\[i\]) (He et al. 2015), biases zero.
    ///
    /// # Errors
    ///
    /// When there are fewer than two widths, or one is 0.
    pub fn dense(widths: &[usize]) -> Result<Self> {
        if widths.len() < 2 || widths.contains(&0) {
            bail!("a dense stack has at least two widths, none of them 0; got {widths:?}");
        }
        let mut layers = Self::default();
        for (i, pair) in widths.windows(2).enumerate() {
            let last = i + 2 == widths.len();
            let (weight, bias) = (format!("dense{i}.weight"), format!("dense{i}.bias"));
            let stdev = (2.0 / pair[0] as f64).sqrt();
            let init = move |name: &str| match name.ends_with("weight") {
                true => Init::Randn { mean: 0.0, stdev },
                false => Init::Const(0.0),
            };
            let dense = move |x: &Tensor, w: &Tensor, b: &Tensor| {
                let x = x.flatten_from(1)?;
                if last { linear(&x, w, b) } else { linear_relu(&x, w, b) }
            };
            let build = affine((&weight, pair), (&bias, &pair[1..]), init, dense);
            layers = layers.then(format!("dense {i}"), build);
        }
        Ok(layers)
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
}

impl ModuleT for Stage {
    fn forward_t(&self, x: &Tensor, train: bool) -> Result<Tensor> {
        self.0.iter().try_fold(x.clone(), |x, layer| layer(&x, train))
    }
}

/// A layer with a weight and a bias: names, shapes, and where the tensor of a name begins.
fn affine<L>(
    weight: (&str, &[usize]),
    bias: (&str, &[usize]),
    init: impl Fn(&str) -> Init + Send + Sync + 'static,
    layer: L,
) -> impl Fn(&VarBuilder<'_>, &Norms) -> Result<Affine<L>> + Send + Sync + 'static
where
    L: Fn(&Tensor, &Tensor, &Tensor) -> Result<Tensor> + Copy + Send + Sync + 'static,
{
    let owned = |(name, shape): (&str, &[usize])| (name.to_owned(), shape.to_vec());
    let (weight, bias) = (owned(weight), owned(bias));
    move |vb, _| {
        let get = |(name, shape): &(String, Vec<usize>)| {
            vb.get_with_hints(shape.as_slice(), name, init(name))
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
