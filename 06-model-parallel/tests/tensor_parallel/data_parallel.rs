//! Data parallelism of tensor-parallel groups: stage 5's wrapper around a network in parts.
//!
//! Four ranks, two replicas of two parts each:
//!
//! ```text
//!                 part 0    part 1
//! replica 0       rank 0    rank 1    → a tensor-parallel group, on the first shard
//! replica 1       rank 2    rank 3    → another, on the second
//!                   ↓         ↓
//!                 ranks that add up the gradients of one part
//! ```

use std::ops::Range;
use std::sync::Arc;

use candle_core::{DType, Device, Shape, Tensor};
use concise_wrapper::ddp::{Lines, Reduction};
use concise_wrapper::optimiser::{Momentum, Sgd};
use concise_wrapper::shares::Shares;
use concise_wrapper::{Ddp, Error, Model};
use model_parallel::tensor_parallel::dense::DenseStack;
use model_parallel::tensor_parallel::{Group, Parts};
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::{self, Communicator, SharedCommunicator};
use single_gpu::data::loader::Epochs as _;
use single_gpu::data::{Dataset, PIXELS};
use single_gpu::difference::largest_difference;
use single_gpu::weights_hash::WeightsHash;

use super::networks::{Named, dense, images, in_parts};
use super::on_ranks_with;

const PARTS: usize = 2;
const WIDTHS: &[usize] = &[PIXELS, 15, 9, 10];

/// Some of the ranks, as a world of their own.
struct Subset {
    all: SharedCommunicator,
    members: Vec<usize>,
}

impl Subset {
    fn of(all: SharedCommunicator, members: Vec<usize>) -> SharedCommunicator {
        Arc::new(Self { all, members })
    }
}

impl Communicator for Subset {
    fn rank(&self) -> usize {
        self.members.iter().position(|&member| member == self.all.rank()).unwrap()
    }

    fn world_size(&self) -> usize {
        self.members.len()
    }

    fn device(&self) -> &Device {
        self.all.device()
    }

    fn send(&self, to: usize, tensor: &Tensor) -> Result<(), communicator::Error> {
        self.all.send(self.members[to], tensor)
    }

    fn recv(
        &self,
        from: usize,
        shape: &Shape,
        dtype: DType,
    ) -> Result<Tensor, communicator::Error> {
        self.all.recv(self.members[from], shape, dtype)
    }
}

fn three_steps(model: &impl Model) -> Result<(), Error> {
    let data: Dataset = images();
    let shares = Shares::new(&data, 7, 5, DType::F64, model.hosts());
    let mut sgd = Sgd::new(Momentum { momentum: 0.9, weight_decay: 0.0 });
    for share in shares.epoch(1).take(3) {
        let share = share.unwrap();
        let step = model.backward(&share)?;
        sgd.step(model.weights(), &step.gradients, 0.1, share.samples)?;
    }
    Ok(())
}

#[test]
fn replicas_of_a_network_in_parts_are_one_device() {
    let network = dense(WIDTHS, 3);
    three_steps(&network).unwrap();
    let expected = network.weights().snapshot().unwrap();
    let outcomes: Vec<Named> = on_ranks_with(4, Algorithm::Ring, |rank, _| {
        let (replica, part) = (rank.rank() / PARTS, rank.rank() % PARTS);
        let replicas: Range<usize> = 0..rank.world_size() / PARTS;
        let Lines { main, background, timeout } = rank.into();
        let row = (0..PARTS).map(|part| replica * PARTS + part).collect();
        let group = Group::new(Subset::of(Arc::clone(&main), row), Algorithm::Ring);
        let build = |parts: &Parts<'_>| DenseStack::new(WIDTHS, parts);
        let (network, layout) = in_parts(&group, &build)?.into_network();
        let column: Vec<usize> = replicas.map(|replica| replica * PARTS + part).collect();
        let column = |line| Subset::of(line, column.clone());
        let lines = Lines { main: column(main), background: column(background), timeout };
        let model = Ddp::new(network, lines, Reduction::default())?;
        three_steps(&model)?;
        Ok(layout.whole(model.weights())?)
    });
    let hash = |weights: &Named| WeightsHash::new(weights).unwrap();
    for weights in &outcomes {
        assert_eq!(hash(weights), hash(&outcomes[0]));
        let difference = largest_difference(weights, &expected).unwrap();
        assert!(difference < 1e-10, "{difference:.1e}");
    }
}
