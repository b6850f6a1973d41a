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

use candle_core::DType;
use concise_wrapper::ddp::Reduction;
use concise_wrapper::optimizer::{Momentum, Sgd};
use concise_wrapper::weights::Snapshot;
use concise_wrapper::{Error, Model};
use datasets::loader::Epochs as _;
use datasets::{CLASSES, Dataset, PIXELS, SAMPLE};
use model_parallel::held::Whole as _;
use model_parallel::mesh::{Axis, Mesh};
use model_parallel::tensor_parallel::dense::DenseStack;
use model_parallel::tensor_parallel::{Group, Parts, Replicated};
use ops::difference::largest_difference;
use ops::weights_hash::WeightsHash;
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::{Communicator as _, SharedCommunicator};
use split_batch::loader::ShardLoader;

use super::networks::{dense, images, in_parts};
use super::on_ranks_with;

const WIDTHS: &[usize] = &[PIXELS, 15, 9, 10];

fn three_steps(model: &impl Model) -> Result<(), Error> {
    let data: Dataset = images();
    let shares = ShardLoader::new(&data, 7, 5, DType::F64, model.hosts());
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
    // A batch for each replica.
    let (pixels, labels) = (images().pixels().repeat(17), images().labels().repeat(17));
    let many = Dataset::of_shape(pixels, SAMPLE, labels, CLASSES).unwrap();
    let answers = network.evaluate(&many).unwrap().unwrap();
    let mesh: Mesh = "2x1x2".parse().unwrap();
    let outcomes: Vec<Snapshot> = on_ranks_with(4, Algorithm::Ring, |rank, _| {
        let all: SharedCommunicator = rank.into();
        let group = Group::new(mesh.along(&all, Axis::Tensor)?, Algorithm::Ring);
        let build = |parts: &Parts<'_>| DenseStack::new(WIDTHS, parts);
        let model = Replicated::new(in_parts(&group, &build)?, &all, mesh, Reduction::default())?;
        three_steps(&model)?;
        let evaluated = model.evaluate(&many)?;
        assert_eq!(evaluated.is_some(), rank.rank() == 0);
        if let Some(sums) = evaluated {
            assert_eq!((sums.samples, sums.correct), (answers.samples, answers.correct));
            assert!((sums.loss / answers.loss - 1.0).abs() < 1e-10);
        }
        let weights = model.weights().snapshot()?;
        let whole = model.whole(weights)?;
        assert_eq!(whole.is_some(), rank.rank() % 2 == 0);
        Ok(whole.unwrap_or_default())
    });
    let outcomes: Vec<Snapshot> = outcomes.into_iter().filter(|whole| !whole.is_empty()).collect();
    assert_eq!(outcomes.len(), 2);
    let hash = |weights: &Snapshot| WeightsHash::new(weights).unwrap();
    for weights in &outcomes {
        assert_eq!(hash(weights), hash(&outcomes[0]));
        let difference = largest_difference(weights, &expected).unwrap();
        assert!(difference < 1e-10, "{difference:.1e}");
    }
}
