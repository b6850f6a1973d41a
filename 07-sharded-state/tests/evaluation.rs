//! Under every strategy, an evaluation has the sums of one device.

use candle_core::Device;
use concise_wrapper::counted::Counted;
use concise_wrapper::weights::Snapshot;
use concise_wrapper::{Error, Model as _};
use datasets::{CLASSES, Dataset, PIXELS};
use harness::records::BatchSums;
use model_parallel::execute::unit::Unit;
use model_parallel::layers::Layers;
use model_parallel::{Executor, UNBOUNDED, check};
use params_and_allreduce::communicator::{Alone, Communicator as _};
use params_and_allreduce::thread::Rank;
use sharded_state::{Sharing, Strategy};
use single_gpu::evaluate::BATCH;

use crate::cases::{CASE, Case, Net, Updates, images, on_ranks};
use crate::numbers::without_recomputation;

/// The sums after the steps of the case, and the weights.
fn evaluated(
    case: &Case,
    strategy: Strategy,
    rank: &Rank,
    data: &Dataset,
) -> Result<(BatchSums, Snapshot), Error> {
    let comm = Counted::new(rank);
    let checked = check(case.schedule(strategy), UNBOUNDED).unwrap();
    if strategy.sharing == Sharing::Ddp {
        let executor = case.executor_of_whole(rank.device(), &comm, &checked)?;
        let sums = sums(case, &executor, &comm, data)?;
        return Ok((sums, executor.weights().snapshot()?));
    }
    let executor = case.executor_of_chunks(rank.device(), &comm, &checked)?;
    let sums = sums(case, &executor, &comm, data)?;
    let units = executor.units().map(|unit| unit.whole()).collect::<Result<Vec<_>, _>>()?;
    Ok((sums, units.concat()))
}

fn sums<U: Unit>(
    case: &Case,
    executor: &Executor<U>,
    comm: &Counted,
    data: &Dataset,
) -> Result<BatchSums, Error> {
    let mut optimizer = case.updates.optimizer();
    case.steps(executor, &mut *optimizer, comm)?;
    executor.evaluate(data)?;
    // Nothing of the first evaluation is left.
    case.steps(executor, &mut *optimizer, comm)?;
    executor.evaluate(data)
}

/// Five batches are two, two and one on three ranks. Of one batch, two ranks get nothing.
#[test]
fn every_strategy_evaluates_as_one_device() {
    let dense = Net::Dense(&[PIXELS, 9, 11, CLASSES]);
    let lenet = Net::Made(Layers::lenet, &[1, 28, 28]);
    let resnet = Net::Made(|| Layers::resnet18(2), &[1, 28, 28]);
    for (net, count) in [
        (dense, 4 * BATCH + 3),
        (dense, 20 * BATCH),
        (dense, 3),
        (lenet, BATCH + 1),
        (resnet, BATCH + 1),
    ] {
        let data = images(count);
        for strategy in without_recomputation() {
            for ranks in 1..=3 {
                let (samples, updates) = (6, Updates::Momentum);
                let case = Case { net, ranks, samples, updates, steps: 1, ..CASE };
                let ended = on_ranks(ranks, |rank| evaluated(&case, strategy, rank, &data));
                let ended = ended.unwrap();
                let alone = case
                    .network(0..case.units(), &Alone(Device::Cpu).into(), &Device::Cpu)
                    .unwrap();
                alone.weights().set(&ended[0].1).unwrap();
                let expected = alone.evaluate(&data).unwrap();
                for (sums, _) in ended {
                    assert_eq!(sums, expected, "{net:?}, {count}, {strategy:?}, {ranks} ranks");
                }
            }
        }
    }
}
