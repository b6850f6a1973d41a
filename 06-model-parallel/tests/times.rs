//! Times, in a program of its own: other tests would take the processor away.
//!
//! Layers that sleep wait for time and not for a core, so four stages run on two cores.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the right answer")]

#[allow(dead_code, reason = "other tests use all of it")]
#[path = "../../tests/src/layers.rs"]
mod layers;
#[allow(unused_imports, reason = "other tests use all of it")]
mod prelude;
#[allow(dead_code, reason = "other tests use all of it")]
#[path = "pipelines/training.rs"]
mod training;

use std::thread::sleep;

use candle_core::{CpuStorage, Result, Storage};
use harness::statistics::median;
use model_parallel::layers::Builder;
use model_parallel::partition::{Setting, each, measure};
use ops::backward::{backward_from, backward_in_halves, record_in_halves};
use ops::conv2d;

use prelude::*;
use training::{Case, checked};

const STAGES: usize = 4;
const MICRO_BATCHES: usize = 8;

/// A forward pass, and each half of a backward pass, of one of eight layers.
const PASS: Duration = Duration::from_millis(10);

/// A layer that sleeps in every pass. The first one also has a weight on the way to its input, so that its input has a
/// gradient, as that of every other layer has.
struct Sleeping {
    scale: Option<Tensor>,
    weight: Tensor,
}

impl ModuleT for Sleeping {
    fn forward_t(&self, x: &Tensor, train: bool) -> Result<Tensor> {
        let x = match &self.scale {
            Some(scale) => linear(x, scale, &Tensor::zeros(CLASSES, DType::F64, x.device())?)?,
            None => x.clone(),
        };
        if train {
            sleep(PASS);
        }
        let values = x.flatten_all()?.to_vec1::<f64>()?;
        let storage = Storage::Cpu(CpuStorage::F64(values));
        let weight = self.weight.zeros_like()?;
        record_in_halves("sleep", storage, x.shape(), [&x, &self.weight], move |_, dy, wanted| {
            let half = |wanted: bool, gradient: &Tensor| {
                wanted.then(|| {
                    sleep(PASS);
                    gradient.clone()
                })
            };
            Ok([half(wanted.input, dy), half(wanted.weights, &weight)])
        })
    }
}

fn case() -> Case {
    let layers = (0..2 * STAGES).fold(Layers::default(), |layers, number| {
        layers.then(move |builder| {
            let vb = builder.vb;
            let name = |what| format!("sleeping{number}.{what}");
            let first = number == 0;
            let scale = first.then(|| vb.get((CLASSES, CLASSES), &name("scale"))).transpose()?;
            Ok(Sleeping { scale, weight: vb.get(1, &name("weight"))? })
        })
    });
    Case { rate: 0.0, ..Case::new("sleeping layers", layers, &[CLASSES]) }
}

/// The bubble of a schedule: predicted from measured layers, and the median of all steps but the first.
fn bubbles(kind: Kind) -> (f64, f64) {
    let case = case();
    let parts = STAGES * kind.chunks();
    let layers = case.layers.len() / parts;
    let cut: Vec<_> = (0..parts).map(|part| part * layers..(part + 1) * layers).collect();
    let setting = Setting { sample: case.sample, rows: 1, tries: 5, parts: 1 };
    let (units, mut sgd) = (each(case.layers.len()), Sgd::new(Momentum::default()));
    let costs = measure(&case.layers, &units, setting, DType::F64, &Device::Cpu, &mut sgd).unwrap();
    let checked = checked(kind, STAGES, MICRO_BATCHES);
    let predicted = checked.simulate(&Cost::of_parts(&costs, &cut), 0.0).unwrap().bubble();
    let (.., stages) = case.pipeline(&checked, &cut, MICRO_BATCHES);
    let of_step = |step: usize| {
        Timeline::joined(stages.iter().map(|stage| stage.steps[step].clone())).bubble()
    };
    (predicted, median((1..case.steps).map(of_step)))
}

#[test]
fn the_bubble_of_each_schedule_is_the_predicted_one() {
    let kinds = [Kind::OneFOneB, Kind::Interleaved { chunks: 2 }, Kind::ZbH1];
    let bubbles = kinds.map(|kind| {
        let (predicted, measured) = bubbles(kind);
        println!("{kind}: {predicted:.3} predicted, {measured:.3} measured");
        assert!((predicted - measured).abs() < 0.05, "{kind}: {predicted} and {measured}");
        measured
    });
    let [one_f_one_b, interleaved, zb_h1] = bubbles;
    assert!(zb_h1 < one_f_one_b && interleaved < one_f_one_b, "{bubbles:?}");
}

/// A stack of convolutions: one half is about as long as the other.
#[test]
fn the_first_half_takes_three_quarters_of_the_whole_at_most() {
    let layers = (0..3).fold(Layers::default(), |layers, number| {
        layers.then(move |builder: &Builder<'_>| {
            let weight = builder.vb.get((32, 32, 3, 3), &format!("convolution{number}.weight"))?;
            Ok(move |x: &Tensor| conv2d(x, &weight, None, 1, 1))
        })
    });
    let network = layers.build(0..3, 1, DType::F32, &Device::Cpu).unwrap();
    let x = Tensor::randn(0f32, 1.0, (64, 32, 14, 14), &Device::Cpu).unwrap();
    let y = network.forward_training(&Var::from_tensor(&x).unwrap()).unwrap();
    let gradient = y.ones_like().unwrap();
    let ratios = (0..15).map(|_| {
        let start = Instant::now();
        backward_from(&y, &gradient).unwrap();
        let whole = start.elapsed().as_secs_f64();
        let start = Instant::now();
        let (_, second) = backward_in_halves(&y, &gradient).unwrap();
        let first = start.elapsed().as_secs_f64();
        second.run().unwrap();
        first / whole
    });
    let ratio = median(ratios);
    println!("the first half takes {ratio:.2} of a whole backward pass");
    assert!(ratio <= 0.75, "{ratio}");
}
