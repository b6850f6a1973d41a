//! DDP on processes: the same bits as on threads. The test starts this program again under `mpirun`. Those of the
//! program as processes are in [`processes`].

#![cfg(feature = "mpi")]

#[path = "../../tests/src/mpirun.rs"]
mod mpirun;
mod processes;

use std::env;
use std::time::Duration;

use backends::mpi;
use candle_core::{DType, Device};
use concise_wrapper::ddp::Reduction;
use concise_wrapper::ddp::bucket::BucketCaps;
use concise_wrapper::lenet::LeNet;
use concise_wrapper::optimizer::{Momentum, Optimizer as _, Sgd};
use concise_wrapper::{Ddp, Error, Model, Network};
use datasets::loader::Epochs as _;
use datasets::{Split, synthetic};
use devices::DevicePlan;
use model_state::weights_hash::WeightsHash;
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::SharedCommunicator;
use params_and_allreduce::thread::run_ranks;
use split_batch::loader::ShardLoader;

/// Nobody waits this long, unless something is wrong.
const WAIT: Duration = Duration::from_secs(60);

/// Says to a process that it is one rank.
const RANK: &str = "DDP_UNDER_MPIRUN";

/// Trains for two epochs of three steps, the last of them smaller; what the weights come to.
fn hash(rank: impl Into<SharedCommunicator>, reduction: Reduction) -> Result<WeightsHash, Error> {
    const BATCH: usize = 8;
    let count = 2 * BATCH + 5;
    let data = synthetic::dataset(Split::Train, count);
    let network = Network::new(3, DType::F32, &Device::Cpu, |vb, _| LeNet::new(vb))?;
    let model = Ddp::new(network, rank, reduction)?;
    let shares = ShardLoader::new(&data, BATCH, 5, DType::F32, model.hosts());
    let mut sgd = Sgd::new(Momentum { momentum: 0.9, weight_decay: 1e-3 });
    for share in (1..3).flat_map(|epoch| shares.epoch(epoch)) {
        let share = share?;
        let step = model.backward(&share)?;
        sgd.step(model.weights(), &step.gradients, 0.05, share.samples)?;
    }
    Ok(WeightsHash::new(&model.weights().snapshot()?)?)
}

fn buckets(algorithm: Algorithm) -> Reduction {
    let caps = BucketCaps { first: 2_000, others: 40_000 };
    Reduction::Buckets { caps, algorithm, overlap: true }
}

#[test]
#[ignore = "one rank of a job: the other test starts it under mpirun"]
fn one_rank() {
    if env::var_os(RANK).is_none() {
        return eprintln!("SKIPPED: one rank of a job that nobody started");
    }
    let world = mpi::connect(WAIT).unwrap();
    let plan = DevicePlan::slices(world.devices_here).unwrap();
    world.run(&plan, |_, rank| {
        let ranks = plan.len();
        let mine = |reduction| hash(rank.clone(), reduction);
        let threads = |ranks, reduction| {
            run_ranks(&DevicePlan::slices(ranks).unwrap(), WAIT, |rank| hash(rank, reduction))
                .unwrap()
                .swap_remove(0)
        };
        for algorithm in Algorithm::OURS {
            assert_eq!(
                mine(buckets(algorithm))?,
                threads(ranks, buckets(algorithm)),
                "{algorithm}"
            );
        }
        let by_shard = Reduction::Reproducible { shards: 4 };
        assert_eq!(mine(by_shard)?, threads(1, by_shard), "by shard, one device");
        // MPI's order of adding is its own; of two numbers there is only one.
        let mpi = mine(buckets(Algorithm::Native))?;
        assert!(ranks > 2 || mpi == threads(ranks, buckets(Algorithm::Ring)), "MPI's own sum");
        Ok::<_, Error>(())
    });
}

#[test]
fn ddp_on_processes_gives_the_bits_that_threads_give() {
    for ranks in [2, 3] {
        let Some(mpirun) = mpirun::mpirun(&format!("DDP on {ranks} processes")) else { return };
        let output = assert_cmd::Command::from_std(mpirun)
            .args(["-n", &ranks.to_string()])
            .arg(env::current_exe().unwrap())
            .args(["--ignored", "--exact", "one_rank", "--nocapture"])
            .envs([(RANK, "1"), ("RUST_BACKTRACE", "0")])
            .timeout(2 * WAIT)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(output.status.success(), "{ranks} ranks:\n{text}");
        assert_eq!(text.matches("1 passed").count(), ranks, "every rank takes part:\n{text}");
    }
}
