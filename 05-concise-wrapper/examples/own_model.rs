//! A model of one's own, trained on two devices: `cargo run --release -p concise-wrapper --example own_model`.

// ANCHOR: program
use candle_core::{DType, Module as _, Tensor};
use concise_wrapper::ddp::{Ddp, Reduction};
use concise_wrapper::optimizer::{Momentum, Optimizer as _, Sgd};
use concise_wrapper::{Error, Model as _, Network};
use devices::{DeviceKind, DevicePlan};
use ops::cross_entropy;
use params_and_allreduce::communicator::Communicator as _;
use params_and_allreduce::thread::{DEFAULT_TIMEOUT, run_ranks};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    harness::cli::prepare(); // before anything else: each device computes on its own cores
    let devices = DevicePlan::new(DeviceKind::Auto, 2, None)?;
    // Each rank runs this closure, on its thread.
    let losses = run_ranks(&devices, DEFAULT_TIMEOUT, |rank| {
        let network = Network::new(1, DType::F32, rank.device(), |vb, _| {
            Ok(candle_nn::seq()
                .add(candle_nn::linear(4, 8, vb.pp("hidden"))?)
                .add(candle_nn::Activation::Relu)
                .add(candle_nn::linear(8, 2, vb.pp("out"))?))
        })?;
        let model = Ddp::new(network, rank, Reduction::default())?; // the one line
        let mut sgd = Sgd::new(Momentum { momentum: 0.9, weight_decay: 0.0 });
        // Each rank trains on three samples of one class.
        let samples = |class: usize| -> Result<_, Error> {
            let inputs = Tensor::full(class as f32, (3, 4), rank.device())?;
            Ok((inputs, Tensor::full(class as u32, 3, rank.device())?))
        };
        let (mine, others) = (samples(rank.rank())?, samples(1 - rank.rank())?);
        let loss_of_others = || -> Result<_, Error> {
            let loss = cross_entropy(&model.network().forward(&others.0)?, &others.1)?;
            Ok(loss.to_scalar::<f32>()? / 3.0)
        };
        let before = loss_of_others()?;
        for _ in 0..20 {
            let loss = cross_entropy(&model.forward(&mine.0)?, &mine.1)?;
            let gradients = model.gradients(&loss)?; // summed over all ranks
            sgd.step(model.weights(), &gradients, 0.1, 3 * rank.world_size())?;
        }
        Ok::<_, Error>((before, loss_of_others()?))
    })?;
    for (rank, (before, after)) in losses.iter().enumerate() {
        let other = 1 - rank;
        println!(
            "rank {rank}: loss of rank {other}'s samples {before:.3} before, {after:.3} after"
        );
    }
    match losses.iter().all(|(before, after)| after < before) {
        true => println!("Each rank has learned from the other rank's gradients."),
        false => println!("A rank has not learned from the other rank's gradients."),
    }
    Ok(())
}
// ANCHOR_END: program
