//! Communication does begin during the backward pass, the course's and candle's. (How much of it hides there is a
//! measurement: stage 5's `--timeline` tells it of a run.)

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape};
use candle_nn::init::Init;
use concise_wrapper::Error;
use ops::backward::{is_recorded, record_copy};
use ops::{cross_entropy, linear};
use params_and_allreduce::communicator;
use params_and_allreduce::forward;

use crate::prelude::*;

/// Far longer than a message takes, and what the test takes where none comes.
const PATIENCE: Duration = Duration::from_secs(3);

/// A communicator that raises a flag at its first message in the background.
struct Watched {
    link: SharedCommunicator,
    in_background: bool,
    sent: Arc<AtomicBool>,
}

impl Communicator for Watched {
    forward!(link: rank, world_size, device, recv);

    fn send(&self, to: usize, tensor: &Tensor) -> std::result::Result<(), communicator::Error> {
        if self.in_background {
            self.sent.store(true, Ordering::SeqCst);
        }
        self.link.send(to, tensor)
    }

    fn background(&self) -> std::result::Result<SharedCommunicator, communicator::Error> {
        let (link, sent) = (self.link.background()?, Arc::clone(&self.sent));
        Ok(Arc::new(Self { link, in_background: true, sent }))
    }
}

/// The identity; its backward pass waits for the flag, and notes whether it came.
struct WaitsInBackward {
    sent: Arc<AtomicBool>,
    came: Arc<AtomicBool>,
}

impl WaitsInBackward {
    fn wait(&self) {
        let started = Instant::now();
        while !self.sent.load(Ordering::SeqCst) && started.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.came.store(self.sent.load(Ordering::SeqCst), Ordering::SeqCst);
    }
}

impl CustomOp1 for WaitsInBackward {
    fn name(&self) -> &'static str {
        "waits in backward"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        Ok((x.clone(), layout.shape().clone()))
    }

    fn bwd(&self, _x: &Tensor, _y: &Tensor, grad: &Tensor) -> Result<Option<Tensor>> {
        self.wait();
        Ok(Some(grad.clone()))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pass {
    Ours,
    Candles,
}

struct TwoLayers {
    first: Tensor,
    second: Tensor,
    pass: Pass,
    sent: Arc<AtomicBool>,
    came: Arc<AtomicBool>,
}

impl ModuleT for TwoLayers {
    fn forward_t(&self, x: &Tensor, _: bool) -> Result<Tensor> {
        let wait = WaitsInBackward { sent: Arc::clone(&self.sent), came: Arc::clone(&self.came) };
        match self.pass {
            Pass::Ours => {
                let no_bias = Tensor::zeros(4, x.dtype(), x.device())?;
                let layer = |x: &Tensor, weight| linear(x, weight, &no_bias);
                let y = layer(x, &self.first)?;
                let y = record_copy("waits in backward", &y, [&y], move |_, grad| {
                    wait.wait();
                    Ok([Some(grad.clone())])
                })?;
                layer(&y, &self.second)
            }
            Pass::Candles => x.matmul(&self.first)?.apply_op1(wait)?.matmul(&self.second),
        }
    }
}

/// Whether the last layer's bucket was sent before the first layer's backward.
fn sent_during_backward(pass: Pass, overlap: bool) -> Vec<bool> {
    let plan = DevicePlan::slices(2).unwrap();
    let outcomes = run_ranks(&plan, WAIT, |rank| {
        let (sent, came) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
        let build = {
            let (sent, came) = (Arc::clone(&sent), Arc::clone(&came));
            move |vb: &candle_nn::VarBuilder<'_>, _: &_| {
                let init = Init::Const(0.5);
                Ok(TwoLayers {
                    first: vb.get_with_hints((4, 4), "first", init)?,
                    second: vb.get_with_hints((4, 4), "second", init)?,
                    pass,
                    sent: Arc::clone(&sent),
                    came: Arc::clone(&came),
                })
            }
        };
        let network = Network::new(1, DType::F32, rank.device(), build)?;
        let watched: SharedCommunicator =
            Arc::new(Watched { link: rank.into(), in_background: false, sent: Arc::clone(&sent) });
        // A bucket for each layer.
        let caps = BucketCaps { first: 64, others: 64 };
        let reduction = Reduction::Buckets { caps, algorithm: Algorithm::OneShot, overlap };
        let model = Ddp::new(network, watched, reduction)?;
        let x = Tensor::ones((2, 4), DType::F32, rank.device())?;
        let labels = Tensor::new(&[0u32, 3], rank.device())?;
        let loss = cross_entropy(&model.forward(&x)?, &labels)?;
        assert_eq!(is_recorded(&loss), pass == Pass::Ours);
        let gradients = model.gradients(&loss)?;
        assert_eq!(gradients.len(), 2);
        Ok::<_, Error>(came.load(Ordering::SeqCst))
    });
    outcomes.unwrap()
}

#[test]
fn the_last_layers_gradients_travel_before_the_first_layers_exist() {
    for pass in [Pass::Ours, Pass::Candles] {
        assert_eq!(sent_during_backward(pass, true), [true, true], "{pass:?}");
    }
}

#[test]
fn without_overlap_they_wait() {
    for pass in [Pass::Ours, Pass::Candles] {
        assert_eq!(sent_during_backward(pass, false), [false, false], "{pass:?}");
    }
}
