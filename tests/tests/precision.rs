//! Mixed precision: LeNet and ResNet-18 with layers in bf16, on the CPU, where bf16 is rounded as a GPU's
//! tensor cores round. (`gpu` compares what a GPU does in bf16, and `wrappers` the bits of several ranks.)
//!
//! bf16 has eight binary digits, so a rounding changes a number by at most 2⁻⁸ of it ([`ROUNDING`]).
//!
//! **Forward**, from the images to the logits, the rounded results of n operations follow each other. To first
//! order their errors add up to at most n·2⁻⁸.
//!
//! **Backward** something else counts more: a relu passes a gradient or does not, by a sign. Two normal numbers
//! that differ by δ of their deviation have different signs with probability arctan(δ)/π ≈ δ/π. Half of a
//! gradient's elements pass; so those that pass by mistake, or fail to, are 2δ/π of its square, at each of r
//! relus. That makes √(2rδ/π) of the gradient, with the error of the logits as δ.

use std::f64::consts::PI;

use candle_core::{Module as _, Result};
use concise_wrapper::weights::Weights;
use concise_wrapper::{Error, Precision};
use course_tests::distance::{distance, values};

use crate::prelude::*;

/// What rounding to bf16 changes a number by, at most, as a part of it.
const ROUNDING: f64 = 1.0 / 256.0;

const SAMPLES: usize = 16;

fn resnet18(dtype: DType) -> Network<ResNet18> {
    Network::new(3, dtype, &Device::Cpu, |vb, norms| ResNet18::new(8, norms, vb)).unwrap()
}

fn batch(samples: usize) -> Batch {
    let images = noise((samples, 1, 28, 28), 300).unwrap().to_dtype(DType::F32).unwrap();
    let labels: Vec<u32> = (0..).take(samples).map(|i| (i * 7 + 3) % 10).collect();
    Batch { images, labels: Tensor::new(labels, &Device::Cpu).unwrap() }
}

/// `of` shards of a batch, and of them those in `held`.
fn share(held: std::ops::Range<usize>, of: usize) -> LocalBatch {
    local_batch(&batch(SAMPLES), of, held).unwrap()
}

fn rounded(tensor: &Tensor) -> Tensor {
    tensor.to_dtype(DType::BF16).unwrap().to_dtype(tensor.dtype()).unwrap()
}

/// How many elements of a tensor are no bf16 numbers, as a share.
fn beyond_bf16(tensor: &Tensor) -> f64 {
    let (exact, rounded) = (values(tensor), values(&rounded(tensor)));
    let beyond = exact.iter().zip(&rounded).filter(|(exact, rounded)| exact != rounded).count();
    beyond as f64 / exact.len() as f64
}

/// Makes sure that a step in bf16 is one in f32 but for rounding: `roundings` from the images to the logits,
/// `relus` on the way.
fn check_step<M: ModuleT>(network: fn(DType) -> Network<M>, roundings: f64, relus: f64) {
    let (mixed, single) = (network(DType::BF16), network(DType::F32));
    let Batch { images, .. } = batch(SAMPLES);
    let logits = [&mixed, &single].map(|network| network.forward_training(&images).unwrap());
    let forward = distance([&logits[0]], [&logits[1]]);
    assert!(forward <= roundings * ROUNDING, "logits: {forward:.1e}");
    // Less than a single rounding would leave would be f32.
    assert!(forward > ROUNDING / 8.0, "logits: {forward:.1e} is f32's rounding");
    for (mixed, single) in Model::weights(&mixed).buffers.iter().zip(&single.weights().buffers) {
        let statistics = distance([&mixed.tensor], [&single.tensor]);
        assert!(statistics <= roundings * ROUNDING, "{}: {statistics:.1e}", mixed.name);
    }

    let whole = share(0..1, 1);
    let steps = [&mixed, &single].map(|network| network.backward(&whole).unwrap());
    let losses = steps.each_ref().map(|step| step.sums.clone().read().unwrap().loss);
    let loss = (losses[0] / losses[1] - 1.0).abs();
    assert!(loss <= roundings * ROUNDING, "loss: {loss:.1e}");
    let [of_mixed, of_single] = steps.each_ref().map(|step| &step.gradients);
    let bound = (2.0 * relus * forward / PI).sqrt();
    let backward = distance(of_mixed, of_single);
    println!("bf16 from f32: logits {forward:.3}, gradient {backward:.2}");
    assert!(backward <= bound, "gradients: {backward:.2}, and {bound:.2} is allowed");
    // By tensor, the many of a weight; in a few numbers of a batch norm, large terms cancel.
    let names = Model::weights(&mixed).parameters.iter();
    for (Named { name, .. }, (mixed, single)) in names.zip(of_mixed.iter().zip(of_single)) {
        let backward = distance([mixed], [single]);
        assert!(mixed.rank() == 1 || backward <= 2.0 * bound, "gradient of {name}: {backward:.2}");
    }
}

#[test]
fn a_step_of_lenet_is_that_of_f32_but_for_rounding() {
    // The images; twice weights, convolution and pooling; twice weights and product.
    check_step(lenet, 1.0 + 2.0 * 3.0 + 2.0 * 2.0, 3.0);
}

#[test]
fn a_step_of_resnet18_is_that_of_f32_but_for_rounding() {
    // The images; weights, convolution and norm; eight blocks of twice that and an addition; the mean; weights, and the
    // product with its bias.
    check_step(resnet18, 1.0 + 3.0 + 8.0 * 7.0 + 1.0 + 2.0, 17.0);
}

#[test]
fn what_is_kept_and_what_is_added_up_is_f32() {
    let model = resnet18(DType::BF16);
    assert_eq!(model.precision(), Precision::from(DType::BF16));
    let mut sgd = Sgd::new(Momentum { momentum: 0.9, weight_decay: 1e-3 });
    for _ in 0..2 {
        let step = model.backward(&share(0..1, 1)).unwrap();
        assert!(step.gradients.iter().all(|gradient| gradient.dtype() == DType::F32));
        sgd.step(model.weights(), &step.gradients, 0.1, SAMPLES).unwrap();
    }
    let Weights { parameters, buffers, .. } = model.weights();
    let velocities = sgd.state(model.weights()).unwrap();
    assert_eq!(velocities.len(), 62);
    let tensors = parameters.iter().chain(buffers).map(|named| (&named.name, &named.tensor));
    for (name, tensor) in tensors.chain(velocities.iter().map(|(name, velocity)| (name, velocity)))
    {
        assert_eq!(tensor.dtype(), DType::F32, "{name}");
        // Of numbers with 24 digits one in 2¹⁶ has its last 16 zero.
        assert!(beyond_bf16(tensor) > 0.9, "{name} was rounded to bf16 on its way");
    }
    // Evaluation too.
    assert_eq!(model.forward(&batch(2).images).unwrap().dtype(), DType::F32);
}

#[test]
fn layers_are_given_bf16() {
    struct Told;
    impl ModuleT for Told {
        fn forward_t(&self, x: &Tensor, _: bool) -> Result<Tensor> {
            assert_eq!(x.dtype(), DType::BF16);
            Ok(x.clone())
        }
    }
    let network = Network::new(1, DType::BF16, &Device::Cpu, |vb, _| {
        let weight = vb.get((2, 3), "weight")?;
        assert_eq!(weight.dtype(), DType::BF16);
        // Shared by two layers, it is one parameter.
        assert_eq!(vb.get((2, 3), "weight")?.id(), weight.id());
        Ok(Told)
    });
    let network = network.unwrap();
    assert_eq!(network.weights().parameters.len(), 1);
    let x = Tensor::ones((1, 1), DType::F32, &Device::Cpu).unwrap();
    assert_eq!(network.forward_training(&x).unwrap().dtype(), DType::F32);
}

#[test]
fn updates_too_small_for_bf16_accumulate() {
    const SMALL: f64 = 1.0 / 1024.0;
    let scalar =
        |value: f64, dtype| Tensor::full(value as f32, (1, 1), &Device::Cpu)?.to_dtype(dtype);
    // That is what weights in bf16 would do: the next number after 1 is 1 + 1/128.
    let one = scalar(1.0, DType::BF16).unwrap();
    assert_eq!(values(&(&one + scalar(SMALL, DType::BF16).unwrap()).unwrap()), [1.0]);

    let network = Network::new(1, DType::BF16, &Device::Cpu, |vb, _| {
        candle_nn::linear_no_bias(1, 1, vb.clone())
    });
    let network = network.unwrap();
    let weight = ("weight".to_owned(), scalar(1.0, DType::F32).unwrap());
    network.weights().set(&[weight]).unwrap();
    let mut sgd = Sgd::new(Momentum::default());
    let mut seen = Vec::new();
    for _ in 0..8 {
        // Its logit is its weight, as the layer has it.
        let logit = network.forward_training(&scalar(1.0, DType::F32).unwrap()).unwrap();
        seen.extend(values(&logit));
        sgd.step(network.weights(), &[scalar(-1.0, DType::F32).unwrap()], SMALL, 1).unwrap();
    }
    let kept = values(network.weights().get("weight").unwrap());
    assert_eq!(kept, [1.0 + 8.0 * SMALL], "what was learnt");
    let next = 1.0 + 1.0 / 128.0;
    assert_eq!(seen, [1.0, 1.0, 1.0, 1.0, 1.0, next, next, next], "what the layer has of it");
    assert_eq!(values(&network.forward(&scalar(1.0, DType::F32).unwrap()).unwrap()), [next]);
}

#[test]
fn buckets_add_up_in_f32() {
    let own = |rank: usize| resnet18(DType::BF16).backward(&share(rank..rank + 1, 2)).unwrap();
    let gradients = [own(0).gradients, own(1).gradients];
    let reduction = many_buckets(Algorithm::Ring, true);
    let outcomes = run_ranks(&DevicePlan::slices(2).unwrap(), WAIT, |rank| {
        let (network, number) = (resnet18(DType::BF16).replica(rank.device())?, rank.rank());
        let model = Ddp::new(network, rank, reduction)?;
        assert!(model.buckets() >= 4);
        Ok::<_, Error>(model.backward(&share(number..number + 1, 2))?.gradients)
    });
    let mut beyond = 0;
    for sums in outcomes.unwrap() {
        for ((sum, first), second) in sums.iter().zip(&gradients[0]).zip(&gradients[1]) {
            assert_eq!(values(sum), values(&(first + second).unwrap()), "to the last bit");
            beyond += usize::from(beyond_bf16(sum) > 0.1);
        }
    }
    // Otherwise a sum in bf16 would have passed.
    assert!(beyond > 62, "{beyond} sums have digits that bf16 has not");
}

#[test]
fn data_parallel_rounds_its_replicas_weights_anew() {
    let mut hashes = Vec::new();
    let mut train = |model: &dyn Model| {
        let mut sgd = Sgd::new(Momentum { momentum: 0.9, weight_decay: 0.0 });
        for _ in 0..3 {
            let step = model.backward(&share(0..1, 1)).unwrap();
            sgd.step(model.weights(), &step.gradients, 0.1, SAMPLES).unwrap();
        }
        hashes.push(WeightsHash::new(&model.weights().snapshot().unwrap()).unwrap());
    };
    train(&resnet18(DType::BF16));
    train(
        &DataParallel::new(resnet18(DType::BF16), &DevicePlan::slices(1).unwrap(), WAIT).unwrap(),
    );
    assert_eq!(hashes[0], hashes[1]);
}

#[test]
fn a_rank_in_another_precision_is_told_so() {
    let started = run_ranks(&DevicePlan::slices(2).unwrap(), WAIT, |rank| {
        let dtype = if rank.rank() == 0 { DType::F32 } else { DType::BF16 };
        Ddp::new(lenet(dtype).replica(rank.device())?, rank, Reduction::default()).map(drop)
    });
    let told = started.unwrap_err().to_string();
    let expected = "rank 1 has precision bf16, rank 0 has f32: start all ranks alike";
    assert!(told.contains(expected), "{told}");
}
