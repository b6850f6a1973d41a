//! What a step sends is what the formula says, for every algorithm of ours.

use candle_core::{DType, ModuleT, Result as TensorResult};
use concise_wrapper::Model as _;
use datasets::PIXELS;
use datasets::loader::Epochs as _;
use model_parallel::tensor_parallel::dense::DenseStack;
use model_parallel::tensor_parallel::lenet::{Channels, LeNet};
use model_parallel::tensor_parallel::{Exchange, Parts};
use params_and_allreduce::Algorithm;
use split_batch::loader::ShardLoader;
use split_batch::loader::Shards;

use super::networks::{images, in_parts};
use super::on_ranks_with;

const BATCH: usize = 5;

fn check<M: ModuleT + 'static>(
    exchanges: &[Exchange],
    ranks: usize,
    build: impl Fn(&Parts<'_>) -> TensorResult<M> + Clone + Send + Sync + 'static,
) {
    for algorithm in Algorithm::OURS {
        let sent = on_ranks_with(ranks, algorithm, |rank, group| {
            let model = in_parts(&group, &build)?;
            let shares = ShardLoader::new(&images(), BATCH, 5, DType::F64, Shards::WHOLE);
            let share = shares.epoch(1).next().unwrap().unwrap();
            let before = rank.traffic().bytes;
            model.backward(&share)?;
            Ok(rank.traffic().bytes - before)
        });
        // Whether to go on: one number.
        let step = [exchanges, &[Exchange::AllReduce { elements: 1 }]].concat();
        for (rank, &sent) in sent.iter().enumerate() {
            let expected = Exchange::sent(&step, algorithm, ranks, rank).unwrap();
            assert_eq!(sent, 8 * expected as u64, "rank {rank} of {ranks}, {algorithm}");
        }
    }
}

#[test]
fn a_step_sends_what_the_formula_says() {
    for ranks in [1, 2, 3, 4] {
        for channels in [Channels::Gathered, Channels::Summed] {
            let exchanges = LeNet::exchanges(channels, BATCH);
            check(&exchanges, ranks, move |parts| LeNet::new(channels, parts));
        }
        for widths in [&[PIXELS, 33, 10][..], &[PIXELS, 14, 17, 10], &[PIXELS, 12, 9, 11, 10]] {
            let exchanges = DenseStack::exchanges(widths, BATCH);
            check(&exchanges, ranks, move |parts| DenseStack::new(widths, parts));
        }
    }
}

#[test]
fn the_formulas_are_the_literatures() {
    let sum = Exchange::AllReduce { elements: 1200 };
    for rank in 0..4 {
        // 2(n − 1)/n.
        assert_eq!(sum.sends(Algorithm::Ring, 4, rank), Some(2 * 1200 * 3 / 4));
        assert_eq!(sum.sends(Algorithm::Ring, 1, 0), Some(0));
        assert_eq!(sum.sends(Algorithm::Native, 4, rank), None);
    }
    // One layer by columns and one by rows: one all-reduce forward. With another pair before, one backward too.
    assert_eq!(DenseStack::exchanges(&[8, 6, 4], 3), [Exchange::AllReduce { elements: 12 }]);
    assert_eq!(DenseStack::exchanges(&[8, 6, 4, 6, 2], 3).len(), 3);
}
