//! Models that come and go where NCCL adds up.

use candle_core::DType;
use concise_wrapper::ddp::bucket::BucketCaps;
use concise_wrapper::ddp::{Ddp, Reduction};
use concise_wrapper::lenet::LeNet;
use concise_wrapper::{Model as _, Network, native};
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::Communicator as _;
use params_and_allreduce::thread::run_ranks;
use split_batch::loader::LocalBatch;

use super::{SAMPLES, WAIT, garments, gpus};

/// A rank's next model joins on the line on which the last one's thread takes leave: their messages must not meet.
#[test]
fn models_come_and_go_on_one_line() {
    let Some(plan) = gpus(2) else { return };
    if plan.note().is_some() {
        return eprintln!("SKIPPED: NCCL wants a GPU for each of two ranks");
    }
    let reduction = Reduction::Buckets {
        caps: BucketCaps { first: 2_000, others: 40_000 },
        algorithm: Algorithm::Native,
        overlap: true,
    };
    let batch = garments(DType::F32);
    let losses = run_ranks(&plan, WAIT, |rank| {
        let share =
            LocalBatch { shards: vec![batch.to_device(rank.device())?], samples: 2 * SAMPLES };
        let mut losses = Vec::new();
        for _ in 0..6 {
            let network = Network::new(1, DType::F32, rank.device(), |vb, _| LeNet::new(vb))?;
            let model = Ddp::new(network, native(rank.into(), WAIT), reduction)?;
            // Buckets of the first pass follow it, those of the second go beside it.
            for _ in 0..2 {
                losses.push(model.backward(&share)?.sums.read()?.loss);
            }
        }
        Ok::<_, concise_wrapper::Error>(losses)
    });
    let losses = losses.unwrap().concat();
    assert!(losses.iter().all(|loss| *loss == losses[0]), "{losses:?}");
}
