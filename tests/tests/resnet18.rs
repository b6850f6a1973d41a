//! ResNet-18 against PyTorch: a forward and a backward pass in training, evaluation, five steps.
//!
//! In f64 only the order of additions differs: 1e-10. In f32 rounding takes PyTorch's own gradients some
//! distance from its f64 ones, tensor by tensor, and the fixture tells how far. Another order of additions
//! draws other rounding errors of the same size; a tensor's largest of many is rarely more than a few times
//! another's. So ours may be ten times as far, and at least 1e-5.

use candle_core::{Module as _, Result};

use crate::prelude::*;

fn network(fixture: &Fixture, dtype: DType) -> Result<Network<ResNet18>> {
    let [width, _] = fixture.tensor_geometry()?;
    let network =
        Network::new(1, dtype, &Device::Cpu, move |vb, norms| ResNet18::new(width, norms, vb))?;
    let value = |(position, Named { name, tensor }): (u64, &Named)| {
        let values = noise(tensor.shape(), 200 + position)?;
        let values = if tensor.rank() > 1 {
            let inputs: usize = tensor.dims()[1..].iter().product();
            (values * (2.0 / (inputs as f64).sqrt()))?
        } else if name.ends_with("weight") {
            ((values * 0.25)? + 1.0)?
        } else {
            (values * 0.25)?
        };
        Ok((name.clone(), values.to_dtype(dtype)?))
    };
    let values = (0..).zip(&network.weights().parameters).map(value).collect::<Result<Vec<_>>>()?;
    network.weights().set(&values)?;
    Ok(network)
}

trait Geometry {
    fn tensor_geometry(&self) -> Result<[usize; 2]>;
}

impl Geometry for Fixture {
    fn tensor_geometry(&self) -> Result<[usize; 2]> {
        let numbers = self.get("geometry")?.to_vec1::<i64>()?;
        Ok([numbers[0] as usize, numbers[1] as usize])
    }
}

fn share(step: u64, samples: usize, dtype: DType) -> Result<LocalBatch> {
    let images = noise((samples, 1, 28, 28), 300 + step)?.to_dtype(dtype)?;
    let labels: Vec<u32> = (0..).take(samples).map(|i| (i * 7 + 3 + step as u32) % 10).collect();
    let labels = Tensor::new(labels, &Device::Cpu)?;
    Ok(LocalBatch { shards: vec![Batch { images, labels }], samples })
}

fn compare(fixture: &Fixture, name: &str, value: &Tensor, bound: f64) -> Result<()> {
    let error = relative_difference(value, fixture.get(name)?)?;
    assert!(error <= bound, "{name}: {error:.1e}, and {bound:.1e} is allowed");
    Ok(())
}

fn check_training(dtype: DType) -> Result<()> {
    let fixture = Fixture::resnet18()?;
    let [_, samples] = fixture.tensor_geometry()?;
    let bound = |name: &str| -> Result<f64> {
        if dtype == DType::F64 {
            return Ok(1e-10);
        }
        let theirs = fixture.get(&format!("f32/{name}"))?.to_vec1::<f64>()?[0];
        Ok((10.0 * theirs).max(1e-5))
    };
    let model = network(&fixture, dtype)?;
    let share = share(0, samples, dtype)?;
    let images = &share.shards[0].images;

    let logits = network(&fixture, dtype)?.forward_training(images)?;
    compare(&fixture, "train/logits", &logits, bound("logits")?)?;
    let step = model.backward(&share).unwrap();
    let loss = Tensor::new(&[step.sums.read()?.loss], &Device::Cpu)?;
    compare(&fixture, "train/loss", &loss, bound("logits")?)?;
    let parameters = &model.weights().parameters;
    assert_eq!(parameters.len(), 62);
    for (Named { name, .. }, gradient) in parameters.iter().zip(&step.gradients) {
        compare(&fixture, &format!("train/grad/{name}"), gradient, bound(name)?)?;
    }
    assert_eq!(model.weights().buffers.len(), 40);
    for Named { name, tensor } in &model.weights().buffers {
        compare(&fixture, &format!("train/buffer/{name}"), tensor, bound("logits")?)?;
    }
    compare(&fixture, "eval/logits", &model.forward(images)?, bound("logits")?)
}

#[test]
fn in_f64_training_is_pytorchs() {
    check_training(DType::F64).unwrap();
}

#[test]
fn in_f32_training_is_as_near_as_pytorchs() {
    check_training(DType::F32).unwrap();
}

#[test]
fn five_steps_with_momentum_and_decay_are_pytorchs() {
    let fixture = Fixture::resnet18().unwrap();
    let [_, samples] = fixture.tensor_geometry().unwrap();
    let model = network(&fixture, DType::F64).unwrap();
    let mut sgd = Sgd::new(Momentum { momentum: 0.9, weight_decay: 5e-4 });
    let schedule = Schedule { rate: 0.1, warm_up: 3 };
    let rates = fixture.get("steps/rates").unwrap().to_vec1::<f64>().unwrap();
    for (step, expected) in rates.iter().enumerate() {
        let rate = schedule.rate(step);
        assert!((rate - expected).abs() < 1e-15, "rate {rate} at step {step}, not {expected}");
        let share = share(step as u64, samples, DType::F64).unwrap();
        let gradients = model.backward(&share).unwrap().gradients;
        sgd.step(model.weights(), &gradients, rate, samples).unwrap();
    }
    let compare_all = |kind: &str, named: &[Named]| {
        for Named { name, tensor } in named {
            compare(&fixture, &format!("steps/{kind}/{name}"), tensor, 1e-8).unwrap();
        }
    };
    compare_all("parameter", &model.weights().parameters);
    compare_all("buffer", &model.weights().buffers);
}
