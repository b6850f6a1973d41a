//! Networks and data of one's own: what is not the course's works as well, or is refused by name.

use ::ops::{conv2d, cross_entropy, flatten};
use candle_core::{D, Module as _};
use candle_nn::{VarBuilder, ops, rotary_emb};
use concise_wrapper::Error;
use concise_wrapper::batch_norm::{BatchNorm, Norms};

use crate::prelude::*;

const CLASSES: usize = 5;
const SHAPE: [usize; 3] = [3, 6, 4];

struct Small {
    kernel: Tensor,
    norm: BatchNorm,
    head: candle_nn::Linear,
}

impl Small {
    fn new(norms: &Norms, vb: &VarBuilder<'_>) -> candle_core::Result<Self> {
        let init = candle_nn::Init::Randn { mean: 0.0, stdev: 0.3 };
        Ok(Self {
            kernel: vb.get_with_hints((4, SHAPE[0], 3, 3), "kernel", init)?,
            norm: BatchNorm::new(4, true, norms, &vb.pp("norm"))?,
            head: candle_nn::linear(4 * SHAPE[1] * SHAPE[2], CLASSES, vb.pp("head"))?,
        })
    }
}

impl ModuleT for Small {
    fn forward_t(&self, x: &Tensor, train: bool) -> candle_core::Result<Tensor> {
        let x = self.norm.forward_t(&conv2d(x, &self.kernel, None, 1, 1)?, train)?;
        self.head.forward(&flatten(&x)?)
    }
}

fn small() -> Network<Small> {
    Network::new(1, DType::F64, &Device::Cpu, |vb, norms| Small::new(norms, vb)).unwrap()
}

fn colours(count: usize, salt: usize) -> Dataset {
    let pixel = |i: usize| ((i * i * 7 + i * salt) % 251) as u8;
    let pixels = (0..count * SHAPE.iter().product::<usize>()).map(pixel).collect();
    let labels = (0..count).map(|image| ((image * 3 + salt) % CLASSES) as u8).collect();
    Dataset::of_shape(pixels, SHAPE, labels, CLASSES).unwrap()
}

fn trained(model: &impl Model) -> Result<Snapshot, Error> {
    let (train_images, test) = (colours(17, 31), colours(6, 57));
    let data = LoadedData { name: "colours".to_owned(), train: train_images, test };
    // Batches of 7, 7 and 3.
    let options = TrainOptions { epochs: 2, batch_size: 7, learning_rate: 0.05, seed: 1 };
    let sgd = &mut Sgd::new(Momentum { momentum: 0.9, weight_decay: 1e-3 });
    let silent = &mut Report::silent();
    let trained = train(model, &data, &options, (sgd, 0), None, silent, |_| Ok(()))?;
    Ok(trained.weights)
}

#[test]
fn images_of_any_shape_are_trained_on_as_on_one_device() {
    let expected = trained(&small()).unwrap();
    for ranks in [2, 3] {
        let found = run_ranks(&DevicePlan::slices(ranks).unwrap(), WAIT, |rank| {
            trained(&Ddp::new(small(), rank, Reduction::default())?.synchronise_norms()?)
        });
        for weights in found.unwrap() {
            let difference = largest_difference(&weights, &expected).unwrap();
            assert!(difference < 1e-10, "{ranks} ranks: {difference:.1e}");
        }
    }
    let by_shard = |ranks| {
        let hashes = run_ranks(&DevicePlan::slices(ranks).unwrap(), WAIT, |rank| {
            let model = Ddp::new(small(), rank, Reduction::Reproducible { shards: 4 })?;
            Ok::<_, Error>(WeightsHash::new(&trained(&model)?)?)
        });
        hashes.unwrap()[0]
    };
    assert_eq!([by_shard(2), by_shard(3)], [by_shard(1); 2]);
}

#[test]
fn a_rank_without_images_takes_part_in_a_loop_of_ones_own() {
    let batch = colours(3, 31).batch(&[0, 1, 2], DType::F64).unwrap();
    let network = small();
    let loss = cross_entropy(&network.forward_training(&batch.images).unwrap(), &batch.labels);
    let expected = network.gradients(&loss.unwrap()).unwrap();
    let found = run_ranks(&DevicePlan::slices(3).unwrap(), WAIT, |rank| {
        // Two images, one, none.
        let (begin, count) = [(0, 2), (2, 1), (0, 0)][rank.rank()];
        let images = batch.images.narrow(0, begin, count)?.copy()?;
        let labels = batch.labels.narrow(0, begin, count)?.copy()?;
        let model = Ddp::new(small(), rank, Reduction::default())?.synchronise_norms()?;
        if count == 0 {
            let told = model.forward(&images).unwrap_err().to_string();
            assert!(told.contains("there are no images here"), "{told}");
        }
        let loss = model.loss(&images, |logits| cross_entropy(logits, &labels))?;
        model.gradients(&loss)
    });
    for gradients in found.unwrap() {
        for (found, expected) in gradients.iter().zip(&expected) {
            assert!(relative_difference(found, expected).unwrap() < 1e-12);
        }
    }
}

struct Words(candle_nn::Embedding);

impl ModuleT for Words {
    fn forward_t(&self, words: &Tensor, _: bool) -> candle_core::Result<Tensor> {
        self.0.forward(words)?.sum(D::Minus2)
    }
}

#[test]
fn numbers_that_are_looked_up_stay_numbers() {
    let words = Tensor::new(&[[3_u32, 1, 3]], &Device::Cpu).unwrap();
    for dtype in [DType::F64, DType::BF16] {
        let gradients = run_ranks(&DevicePlan::slices(2).unwrap(), WAIT, |rank| {
            let network = Network::new(1, dtype, &Device::Cpu, |vb, _| {
                Ok(Words(candle_nn::embedding(5, 2, vb.pp("words"))?))
            })?;
            let model = Ddp::new(network, rank, Reduction::default())?;
            // The other rank has no sentence.
            let mine = words.narrow(0, 0, 1 - rank.rank())?.copy()?;
            let gradients = model.gradients(&model.loss(&mine, Tensor::sum_all)?)?;
            Ok::<_, Error>(gradients[0].to_dtype(DType::F64)?.to_vec2::<f64>()?)
        });
        let counts = [0.0, 1.0, 0.0, 2.0, 0.0].map(|count| vec![count; 2]).to_vec();
        assert_eq!(gradients.unwrap(), [counts.clone(), counts], "{dtype:?}");
    }
}

#[test]
fn parameters_of_two_types_are_refused_by_name() {
    let failure = run_ranks(&DevicePlan::slices(2).unwrap(), WAIT, |rank| {
        let network = Network::new(1, DType::F32, &Device::Cpu, |vb, _| {
            let first = candle_nn::linear(4, 3, vb.pp("first"))?;
            let second = candle_nn::linear(3, 2, vb.to_dtype(DType::F64).pp("second"))?;
            Ok(candle_nn::seq().add(first).add(second))
        })?;
        Ddp::new(network, rank, Reduction::default()).map(drop)
    });
    let told = failure.unwrap_err().to_string();
    assert!(told.contains("second.weight is f64, and first.weight f32: in buckets"), "{told}");
}

/// One that normalises by its own images, whatever it is told.
struct Stock(candle_nn::BatchNorm);

impl ModuleT for Stock {
    fn forward_t(&self, x: &Tensor, train: bool) -> candle_core::Result<Tensor> {
        self.0.forward_t(x, train)?.flatten_from(1)
    }
}

fn stock() -> Network<Stock> {
    let build = |vb: &VarBuilder<'_>, _: &Norms| {
        Ok(Stock(candle_nn::batch_norm(2, candle_nn::BatchNormConfig::default(), vb.pp("bn"))?))
    };
    Network::new(1, DType::F64, &Device::Cpu, build).unwrap()
}

#[test]
fn a_type_that_no_layer_computes_in_is_refused() {
    for dtype in [DType::F16, DType::U8] {
        let build = |vb: &VarBuilder<'_>, _: &Norms| candle_nn::linear(3, 2, vb.clone());
        let told = Network::new(1, dtype, &Device::Cpu, build).map(drop).unwrap_err().to_string();
        assert!(told.contains("layers compute in f32, f64 or bf16, not in "), "{told}");
    }
}

#[test]
fn a_batch_norm_that_cannot_be_synchronised_is_refused() {
    let refused = |result: Result<(), Error>| {
        let told = result.unwrap_err().to_string();
        assert!(told.contains("bn.running_mean is of a layer that normalises by itself"), "{told}");
    };
    let done = run_ranks(&DevicePlan::slices(1).unwrap(), WAIT, |rank| {
        let by_shard = Reduction::Reproducible { shards: 2 };
        refused(Ddp::new(stock(), rank, by_shard).map(drop));
        // Each rank by its own images: that is what it does.
        let model = Ddp::new(stock(), rank, Reduction::default())?;
        refused(model.synchronise_norms().map(drop));
        Ok::<_, Error>(())
    });
    done.unwrap();
    let model = DataParallel::new(stock(), &DevicePlan::slices(1).unwrap(), WAIT).unwrap();
    refused(model.synchronise_norms().map(drop));
}

#[test]
fn an_optimizer_is_of_one_network() {
    let dense = |outputs| {
        let build = move |vb: &VarBuilder<'_>, _: &Norms| candle_nn::linear(3, outputs, vb.clone());
        Network::new(1, DType::F64, &Device::Cpu, build).unwrap()
    };
    let mut sgd = Sgd::new(Momentum { momentum: 0.9, weight_decay: 0.0 });
    let mut step = |network: &Network<candle_nn::Linear>| {
        let weights = Network::weights(network);
        let ones = weights.parameters.iter().map(|named| named.tensor.ones_like());
        let ones = ones.collect::<candle_core::Result<Vec<_>>>().unwrap();
        sgd.step(weights, &ones, 0.1, 1).map_err(|error| error.to_string())
    };
    step(&dense(2)).unwrap();
    step(&dense(2)).unwrap();
    let told = step(&dense(4)).unwrap_err();
    assert!(told.contains("this optimizer's state is of another network"), "{told}");
}

/// What chapter 5 says of them. Where a newer candle has mended one, this fails, and the page has to follow.
#[test]
#[expect(clippy::disallowed_methods, reason = "it is about that method")]
fn some_layers_of_candle_do_not_train_as_they_should() {
    let x = Tensor::arange(0_f32, 16.0, &Device::Cpu).unwrap().reshape((1, 1, 4, 4)).unwrap();
    let x = candle_core::Var::from_tensor(&x).unwrap();
    let gradient = |y: &Tensor| {
        let grads = y.sum_all().unwrap().backward().unwrap();
        let total = |gradient: &Tensor| gradient.sum_all().unwrap().to_scalar::<f32>().unwrap();
        grads.get(&x).map(total)
    };
    // Four windows, each with a largest entry, whose gradient is 1.
    assert_eq!(gradient(&x.max_pool2d(2).unwrap()), Some(4.0 / 4.0));
    let weight = Tensor::ones(4, DType::F32, &Device::Cpu).unwrap();
    let bias = weight.zeros_like().unwrap();
    let norm = candle_nn::LayerNorm::new(weight.clone(), bias.clone(), 1e-5);
    assert_eq!(gradient(&norm.forward(&x).unwrap()), None);
    let rms_norm = candle_nn::RmsNorm::new(weight.clone(), 1e-5);
    assert_eq!(gradient(&rms_norm.forward(&x).unwrap()), None);
    assert_eq!(gradient(&ops::softmax_last_dim(&x).unwrap()), None);
    let [cos, sin] = [0.6_f32, 0.8].map(|of| Tensor::full(of, (4, 2), &Device::Cpu).unwrap());
    assert_eq!(gradient(&rotary_emb::rope(&x, &cos, &sin).unwrap()), None);
    // What to use in their place has one.
    for y in [
        ops::layer_norm_slow(&x, &weight, &bias, 1e-5),
        rms_norm.forward_diff(&x),
        ops::softmax(&x, D::Minus1),
        rotary_emb::rope_slow(&x, &cos, &sin),
    ] {
        assert!(gradient(&y.unwrap()).is_some());
    }
}
