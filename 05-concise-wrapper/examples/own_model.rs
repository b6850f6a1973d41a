//! A model of one's own, trained on two devices: `cargo run --release -p concise-wrapper --example own_model`.

use candle_core::{DType, Tensor};
use concise_wrapper::ddp::{Ddp, Reduction};
use concise_wrapper::optimiser::{Momentum, Sgd};
use concise_wrapper::{Error, Model as _, Network};
use params_and_allreduce::communicator::Communicator as _;
use params_and_allreduce::thread::{DEFAULT_TIMEOUT, run_ranks};
use single_gpu::device::{DeviceKind, DevicePlan};
use single_gpu::ops::cross_entropy;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let devices = DevicePlan::new(DeviceKind::Auto, 2, None)?;
    // ANCHOR: own
    // This closure runs once for every rank, on a thread of its own.
    let losses = run_ranks(&devices, DEFAULT_TIMEOUT, |rank| {
        let network = Network::new(1, DType::F32, rank.device(), |vb, _| {
            Ok(candle_nn::seq()
                .add(candle_nn::linear(4, 8, vb.pp("hidden"))?)
                .add(candle_nn::Activation::Relu)
                .add(candle_nn::linear(8, 2, vb.pp("out"))?))
        })?;
        let model = Ddp::new(network, rank, Reduction::default())?; // the one line
        let mut sgd = Sgd::new(Momentum { momentum: 0.9, weight_decay: 0.0 });
        // This rank's three samples; the others have others.
        let inputs = Tensor::full(rank.rank() as f32, (3, 4), rank.device())?;
        let labels = Tensor::full(rank.rank() as u32, 3, rank.device())?;
        let mut losses = Vec::new();
        for _ in 0..20 {
            let loss = cross_entropy(&model.forward(&inputs)?, &labels)?;
            let gradients = model.gradients(&loss)?; // summed over all ranks
            sgd.step(model.weights(), &gradients, 0.1, 3 * rank.world_size())?;
            losses.push(loss.to_scalar::<f32>()? / 3.0);
        }
        Ok::<_, Error>(losses)
    })?;
    // ANCHOR_END: own
    for (rank, losses) in losses.iter().enumerate() {
        println!("rank {rank}: loss {:.3} before, {:.3} after", losses[0], losses[19]);
    }
    Ok(())
}
