//! A model as a list of layers, which can be cut into stages.
//!
//! The list says how to build each layer, and builds nothing. A stage then makes the tensors of its own layers only, so a device never holds the whole model. The initial value of a tensor depends on its name and the seed
//! alone, so all stages together have the weights of one device.

use std::ops::Range;
use std::sync::{Arc, Mutex};

use candle_core::{DType, Device, ModuleT, Result, Shape, Tensor, Var, bail};
use candle_nn::VarBuilder;
use candle_nn::init::{Init, ZERO};
use candle_nn::var_builder::SimpleBackend;
use concise_wrapper::batch_norm::Norms;
use concise_wrapper::lenet::init;
use concise_wrapper::resnet::{BLOCKS, Block, Head, Stem};
use concise_wrapper::weights::is_buffer;
use concise_wrapper::{Network, Precision};
use harness::lock::locked;
use ops::{conv2d_relu_pool, flatten, linear, linear_relu};
use single_gpu::lenet::SHAPES;

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
    /// Adds a layer to the end of the list. `build` builds the layer.
    ///
    /// The layer gets a batch, `[B, …]`, and whether the pass is for training.
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

    /// Adds a layer with a weight and a bias.
    fn affine(
        self,
        name: impl Into<String>,
        [weight, bias]: [ParameterSpec; 2],
        layer: impl Fn(&Tensor, &Tensor, &Tensor) -> Result<Tensor> + Copy + Send + Sync + 'static,
    ) -> Self {
        self.then(name, move |vb, _| {
            let get = |spec: &ParameterSpec| {
                vb.get_with_hints(spec.shape.as_slice(), &spec.name, spec.init)
            };
            let (weight, bias) = (get(&weight)?, get(&bias)?);
            Ok(move |x: &Tensor| layer(x, &weight, &bias))
        })
    }

    /// LeNet of stage 1: `[B, 1, 28, 28]` → `[B, 10]`, in five layers; its names, shapes and initial weights.
    pub fn lenet() -> Self {
        let planned = |(name, shape): (&str, &[usize])| ParameterSpec {
            name: name.to_owned(),
            shape: shape.to_vec(),
            init: init(name),
        };
        let [w1, b1, w2, b2, w3, b3, w4, b4] = SHAPES.map(planned);
        let convolution = |x: &Tensor, w: &Tensor, b: &Tensor| conv2d_relu_pool(x, w, b, 2);
        let flatten = |_: &VarBuilder<'_>, _: &Norms| Ok(|x: &Tensor| flatten(x));
        Self::default()
            .affine("convolution 1", [w1, b1], convolution)
            .affine("convolution 2", [w2, b2], convolution)
            .then("flatten", flatten)
            .affine("dense 1", [w3, b3], linear_relu)
            .affine("dense 2", [w4, b4], linear)
    }

    /// A dense stack: `[B, …]`, flattened to `[B, widths[0]]`, → `[B, widths[last]]`, with a relu between two
    /// layers. Its tensors are those of [`dense_parameters`].
    ///
    /// # Errors
    ///
    /// When there are fewer than two widths, or one is 0.
    pub fn dense(widths: &[usize]) -> Result<Self> {
        let stack = dense_parameters(widths)?;
        let count = stack.len();
        let mut layers = Self::default();
        for (i, tensors) in stack.into_iter().enumerate() {
            let last = i + 1 == count;
            let dense = move |x: &Tensor, w: &Tensor, b: &Tensor| {
                let x = flatten(x)?;
                if last { linear(&x, w, b) } else { linear_relu(&x, w, b) }
            };
            layers = layers.affine(format!("dense {i}"), tensors, dense);
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

    /// The number of layers.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The layers' names, the first layer's first.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|planned| planned.name.as_str())
    }

    /// The names and shapes of the parameters of a layer, in order, without making them.
    ///
    /// The function asks the layer itself, so the size of a network is known on a machine that could not hold it.
    ///
    /// # Errors
    ///
    /// When there is no such layer, or it cannot be built.
    pub fn parameters(&self, layer: usize) -> Result<Vec<(String, Shape)>> {
        let Some(planned) = self.0.get(layer) else {
            bail!("there is no layer {layer} in a model of {}", self.len());
        };
        specs_of(|vb| (planned.build)(vb, &Norms::default()).map(drop))
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

/// A parameter of a layer that is not built yet.
#[derive(Clone, Debug)]
pub struct ParameterSpec {
    /// The name.
    pub name: String,
    /// The shape.
    pub shape: Vec<usize>,
    /// The distribution of its initial values.
    pub init: Init,
}

/// The initial weights of a layer with this many inputs: N(0, 2 / inputs) (He et al., "Delving deep into
/// rectifiers", 2015).
pub fn dense_init(inputs: usize) -> Init {
    Init::Randn { mean: 0.0, stdev: (2.0 / inputs as f64).sqrt() }
}

/// Weight and bias of each layer of a stack, `[B, widths[0]]` → `[B, widths[last]]`, the first layer first.
///
/// Layer i has a weight `dense{i}.weight` of `[widths[i], widths[i + 1]]`, from [`dense_init`], and a bias
/// `dense{i}.bias` of `[widths[i + 1]]`, zeros.
///
/// # Errors
///
/// When there are fewer than two widths, or one is 0.
pub fn dense_parameters(widths: &[usize]) -> Result<Vec<[ParameterSpec; 2]>> {
    if widths.len() < 2 || widths.contains(&0) {
        bail!("a dense stack has at least two widths, none of them 0; got {widths:?}");
    }
    let layer = |(number, pair): (usize, &[usize])| {
        let tensor = |kind: &str, shape: &[usize], init| {
            let name = format!("dense{number}.{kind}");
            ParameterSpec { name, shape: shape.to_vec(), init }
        };
        [tensor("weight", pair, dense_init(pair[0])), tensor("bias", &pair[1..], ZERO)]
    };
    Ok(widths.windows(2).enumerate().map(layer).collect())
}

/// The parameters that `build` asks for, each once, in order; not the buffers. Their memory is one number each.
fn specs_of(build: impl FnOnce(&VarBuilder<'_>) -> Result<()>) -> Result<Vec<(String, Shape)>> {
    let specs = Specs::default();
    let backend = Box::new(SpecRecorder(Arc::clone(&specs)));
    build(&VarBuilder::from_backend(backend, DType::F32, Device::Cpu))?;
    let specs = std::mem::take(&mut *locked(&specs));
    Ok(specs)
}

/// Names and shapes, in the order of the requests.
type Specs = Arc<Mutex<Vec<(String, Shape)>>>;

/// A source of tensors that notes the name and the shape of each tensor.
struct SpecRecorder(Specs);

impl SimpleBackend for SpecRecorder {
    fn get(
        &self,
        shape: Shape,
        name: &str,
        _init: Init,
        dtype: DType,
        device: &Device,
    ) -> Result<Tensor> {
        if is_buffer(name) {
            // Batch norms need a variable with memory: a number for each channel.
            return Ok(Var::zeros(shape, dtype, device)?.into_inner());
        }
        // One number, which the layer sees in every place of the shape.
        let number = Tensor::zeros((), dtype, device)?.broadcast_as(&shape)?;
        let mut specs = locked(&self.0);
        match specs.iter().find(|(known, _)| known == name) {
            Some((_, known)) if *known != shape => {
                bail!("{name} is asked for as {known:?} and as {shape:?}")
            }
            Some(_) => {}
            None => specs.push((name.to_owned(), shape)),
        }
        Ok(number)
    }

    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> Result<Tensor> {
        bail!("{name} cannot be made without a shape")
    }

    fn contains_tensor(&self, _: &str) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stack_is_planned_layer_by_layer() {
        let layers = dense_parameters(&[8, 50, 3]).unwrap();
        let planned = layers.iter().flatten().map(|ParameterSpec { name, shape, init }| {
            let std = match init {
                Init::Randn { mean: 0.0, stdev } => *stdev,
                Init::Const(0.0) => 0.0,
                _ => panic!("{name} begins at {init:?}"),
            };
            (name.as_str(), shape.as_slice(), std)
        });
        let expected = [
            ("dense0.weight", &[8, 50][..], 0.5),
            ("dense0.bias", &[50], 0.0),
            ("dense1.weight", &[50, 3], 0.2),
            ("dense1.bias", &[3], 0.0),
        ];
        assert_eq!(planned.collect::<Vec<_>>(), expected);
    }
}
