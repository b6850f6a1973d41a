//! The numbers of a model that decide its time: the parameters and the multiplications of each layer.

use candle_core::{DType, Result};
use concise_wrapper::ddp::bucket::{BucketCaps, buckets};
use model_parallel::layers::{Layers, ParameterSpec};

/// A model's layers, the first layer's first.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    /// Such as `LeNet`.
    pub name: String,
    /// Its layers.
    pub layers: Vec<Layer>,
}

/// One layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Layer {
    /// Bytes of each of its parameters, in f32.
    pub parameters: Vec<usize>,
    /// Floating point operations of a forward pass of one sample: two for each multiplication with a weight.
    pub operations: f64,
}

/// Gradients that travel together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bucket {
    /// The part of the backward pass after which its last gradient is there, 0 to 1.
    pub ready: f64,
    /// Bytes.
    pub bytes: f64,
}

impl Model {
    /// LeNet of stage 1, on images of 28×28 pixels. Fails when its layers cannot be built.
    pub fn lenet() -> Result<Self> {
        Self::new("LeNet".to_owned(), &Layers::lenet())
    }

    /// ResNet-18 of stage 5, on images of 28×28 pixels; the first group has `width` planes. Fails when its layers cannot be
    /// built.
    pub fn resnet18(width: usize) -> Result<Self> {
        Self::new(format!("ResNet-18 of width {width}"), &Layers::resnet18(width))
    }

    fn new(name: String, layers: &Layers) -> Result<Self> {
        let layer = |index: usize| {
            let parameters = layers.parameters(index..index + 1)?;
            let operations = parameters.iter().map(operations).sum();
            let bytes = |it: &ParameterSpec| it.elements() * DType::F32.size_in_bytes();
            Ok(Layer { parameters: parameters.iter().map(bytes).collect(), operations })
        };
        Ok(Self { name, layers: (0..layers.len()).map(layer).collect::<Result<_>>()? })
    }

    /// Bytes of all parameters, and so of all gradients.
    pub fn bytes(&self) -> usize {
        self.layers.iter().flat_map(|layer| &layer.parameters).sum()
    }

    /// Floating point operations of a forward pass of one sample.
    pub fn operations(&self) -> f64 {
        self.layers.iter().map(|layer| layer.operations).sum()
    }

    /// The time of each layer's backward pass, in any unit, if the time is proportional to the operations.
    pub fn backward_by_operations(&self) -> Vec<f64> {
        self.layers.iter().map(|layer| layer.operations).collect()
    }

    /// The buckets in which stage 5's DDP sums gradients, and the times in the backward pass at which they are full.
    ///
    /// `backward` is the time of each layer's backward pass, in any unit. The gradients of a layer exist when its backward
    /// pass has ended. Panics when there is not a time for each layer.
    pub fn buckets(&self, caps: BucketCaps, backward: &[f64]) -> Vec<Bucket> {
        assert_eq!(backward.len(), self.layers.len(), "a time for each layer");
        let whole: f64 = backward.iter().sum();
        let (mut sizes, mut done) = (Vec::new(), Vec::new());
        for (index, layer) in self.layers.iter().enumerate() {
            // The backward pass comes from the last layer.
            let after: f64 = backward[index..].iter().sum();
            for &bytes in &layer.parameters {
                sizes.push(bytes);
                done.push(if whole > 0.0 { after / whole } else { 1.0 });
            }
        }
        let bucket = |members: Vec<usize>| Bucket {
            ready: members.iter().map(|&member| done[member]).fold(0.0, f64::max),
            bytes: members.iter().map(|&member| sizes[member] as f64).sum(),
        };
        buckets(&sizes, caps).into_iter().map(bucket).collect()
    }
}

/// Floating point operations in which a parameter takes part, in a forward pass of one sample.
///
/// A weight of a dense layer is used once, a weight of a convolution at every pixel of its output. The few operations of
/// biases and norms do not count.
fn operations(parameter: &ParameterSpec) -> f64 {
    let uses = match parameter.shape.len() {
        2 => 1,
        4 => pixels(&parameter.name),
        _ => 0,
    };
    2.0 * (parameter.elements() * uses) as f64
}

/// Pixels of a convolution's output.
fn pixels(name: &str) -> usize {
    let side = match name {
        // 28 − 3 + 1, halved, − 5 + 1.
        "W1" => 26,
        "W2" => 9,
        name if name.starts_with("layer2") => 14,
        name if name.starts_with("layer3") => 7,
        name if name.starts_with("layer4") => 4,
        // The stem, and the first group.
        _ => 28,
    };
    side * side
}

#[cfg(test)]
mod tests {
    use candle_core::Device;
    use concise_wrapper::weights::Named;
    use trainer::memory::NetworkSize;

    use super::*;

    fn dense() -> Layers {
        Layers::dense(&[6, 17, 13, 11, 9, 10]).unwrap()
    }

    #[test]
    fn what_is_counted_is_what_is_built() {
        for (model, layers) in [
            (Model::lenet(), Layers::lenet()),
            (Model::resnet18(1), Layers::resnet18(1)),
            (Model::resnet18(5), Layers::resnet18(5)),
            (Model::new("dense stack".to_owned(), &dense()), dense()),
        ] {
            let model = model.unwrap();
            assert_eq!(model.layers.len(), layers.len(), "{}", model.name);
            for (index, layer) in model.layers.iter().enumerate() {
                let built = layers.build(index..index + 1, 0, DType::F32, &Device::Cpu).unwrap();
                let built = &built.weights().parameters;
                let bytes: Vec<usize> = built.iter().map(Named::bytes).collect();
                assert_eq!(layer.parameters, bytes, "{}, layer {index}", model.name);
                let built = built.iter().map(|it| (it.name.as_str(), it.tensor.dims()));
                let counted = layers.parameters(index..index + 1).unwrap();
                assert!(counted.iter().map(|it| (it.name.as_str(), &*it.shape)).eq(built));
            }
        }
    }

    /// Its weights would take 11 GB. Parameters are a polynomial of second degree of the width.
    #[test]
    fn a_model_that_is_too_large_to_be_built_is_counted() {
        let parameters = |width| Model::resnet18(width).unwrap().bytes() / 4;
        let [one, two, three] = [1, 2, 3].map(parameters);
        let (slope, curve) = (two - one, three + one - 2 * two);
        let started = std::time::Instant::now();
        assert_eq!(parameters(1024), one + 1023 * slope + 1023 * 1022 / 2 * curve);
        assert!(started.elapsed().as_secs() < 5, "{:?}", started.elapsed());
    }

    #[test]
    fn the_estimate_of_memory_counts_the_same_parameters() {
        let counted = |model: Result<Model>| model.unwrap().bytes() / DType::F32.size_in_bytes();
        assert_eq!(NetworkSize::lenet().parameters, counted(Model::lenet()));
        for width in [1, 5, 64, 1024] {
            assert_eq!(NetworkSize::resnet18(width).parameters, counted(Model::resnet18(width)));
        }
        let stack = NetworkSize::dense(&[6, 17, 13, 11, 9, 10]).parameters;
        assert_eq!(stack, counted(Model::new("dense stack".to_owned(), &dense())));
    }

    #[test]
    fn lenets_operations_by_hand() {
        let lenet = Model::lenet().unwrap();
        let by_hand = [26 * 26 * 20 * 9, 9 * 9 * 50 * 20 * 25, 0, 800 * 128, 128 * 10];
        let operations: Vec<f64> = lenet.layers.iter().map(|layer| layer.operations).collect();
        assert_eq!(operations, by_hand.map(|multiplications| 2.0 * f64::from(multiplications)));
        assert_eq!(lenet.bytes(), 4 * (180 + 20 + 25_000 + 50 + 102_400 + 128 + 1280 + 10));
    }

    #[test]
    fn resnets_operations_are_those_that_are_published() {
        // 11,173,962 parameters on three planes in and ten classes out; here there is one plane in.
        let resnet = Model::resnet18(64).unwrap();
        assert_eq!(resnet.bytes() / 4, 11_173_962 - 2 * 64 * 9);
        // A 3×3 convolution of 64 planes has 28·28·64·64·9 = 28.9 million multiplications, and each group as
        // many in each of its four, but for rounding up the odd sizes and for halving on entry.
        let convolution = 2.0 * 28.0 * 28.0 * 64.0 * 64.0 * 9.0;
        let ratio = resnet.operations() / convolution;
        assert!((15.0..17.0).contains(&ratio), "{ratio}");
    }

    #[test]
    fn a_bucket_is_full_when_its_first_layer_is_done() {
        let layer = |bytes: &[usize]| Layer { parameters: bytes.to_vec(), operations: 0.0 };
        let layers = vec![layer(&[3, 6]), layer(&[]), layer(&[2, 9]), layer(&[2, 1])];
        let model = Model { name: String::new(), layers };
        let caps = BucketCaps { first: 4, others: 10 };
        let bucket = |ready, bytes| Bucket { ready, bytes };
        assert_eq!(
            model.buckets(caps, &[5.0, 1.0, 3.0, 1.0]),
            [bucket(0.1, 3.0), bucket(0.4, 9.0), bucket(1.0, 8.0), bucket(1.0, 3.0)]
        );
    }
}
