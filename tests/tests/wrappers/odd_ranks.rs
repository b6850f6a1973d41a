//! Ranks that are not like the others, or begin with other weights.

use concise_wrapper::Error;

use super::{BATCH, five_steps, images};
use crate::prelude::*;

/// A network whose last parameter is only used where it is told so.
struct Partly {
    used: Tensor,
    unused: Tensor,
    use_both: bool,
}

impl ModuleT for Partly {
    fn forward_t(&self, x: &Tensor, _: bool) -> candle_core::Result<Tensor> {
        let x = x.flatten_from(1)?.matmul(&self.used)?;
        if self.use_both { x.matmul(&self.unused) } else { Ok(x) }
    }
}

fn partly(use_both: bool) -> Network<Partly> {
    let build = move |vb: &candle_nn::VarBuilder<'_>, _: &_| {
        let init = candle_nn::Init::Randn { mean: 0.0, stdev: 0.1 };
        Ok(Partly {
            used: vb.get_with_hints((784, 10), "used", init)?,
            unused: vb.get_with_hints((10, 10), "unused", init)?,
            use_both,
        })
    };
    Network::new(1, DType::F32, &Device::Cpu, build).unwrap()
}

#[test]
fn a_gradient_that_is_missing_on_one_rank_is_named() {
    let failure = run_ranks(&DevicePlan::slices(3).unwrap(), WAIT, |rank| {
        let number = rank.rank();
        let model = Ddp::new(partly(number != 1), rank, Reduction::default())?;
        five_steps(&model, DType::F32).map(drop)
    });
    let failure = failure.unwrap_err();
    assert_eq!(failure.rank, 1, "{failure}");
    assert!(failure.to_string().contains("parameter unused has no gradient"), "{failure}");
}

#[test]
fn what_a_failed_backward_pass_leaves_behind_is_added_to_no_other() {
    for ranks in [1, 2] {
        let told = run_ranks(&DevicePlan::slices(ranks).unwrap(), WAIT, |rank| {
            let model = Ddp::new(partly(false), rank, Reduction::default())?;
            let shares = ShardLoader::new(&images(), BATCH, 5, DType::F32, model.hosts());
            let share = shares.epoch(1).next().unwrap()?;
            let loss = || Ok::<_, Error>(model.forward(&share.shards[0].images)?.sum_all()?);
            let first = model.accumulate(&loss()?).unwrap_err().to_string();
            Ok::<_, Error>([first, model.gradients(&loss()?).unwrap_err().to_string()])
        });
        for [first, then] in told.unwrap() {
            assert!(first.contains("parameter unused has no gradient"), "{first}");
            assert!(then.contains("an earlier backward pass has failed"), "{then}");
        }
    }
}

#[test]
fn a_backward_pass_that_nobody_asked_for_changes_no_gradient() {
    for ranks in [1, 2] {
        let told = run_ranks(&DevicePlan::slices(ranks).unwrap(), WAIT, |rank| {
            let model = Ddp::new(partly(true), rank, Reduction::default())?;
            let shares = ShardLoader::new(&images(), BATCH, 5, DType::F32, model.hosts());
            let share = shares.epoch(1).next().unwrap()?;
            let loss = || Ok::<_, Error>(model.forward(&share.shards[0].images)?.sum_all()?);
            let gradients = |stray: bool| {
                if stray {
                    // As where another loss is sent through this network: of a probe, or of a generator.
                    loss()?.backward()?;
                }
                let gradients = model.gradients(&loss()?)?;
                let numbers = |gradient: &Tensor| gradient.flatten_all()?.to_vec1::<f32>();
                Ok::<_, Error>(gradients.iter().map(numbers).collect::<Result<Vec<_>, _>>()?)
            };
            Ok::<_, Error>([gradients(true)?, gradients(false)?, gradients(true)?])
        });
        for [before, none, between] in told.unwrap() {
            assert!(before == none && between == none, "{ranks} ranks");
        }
    }
}

/// After an error on all ranks, and after an error on one rank before it has sent anything.
#[test]
fn a_step_can_be_repeated() {
    for ranks in [2, 3] {
        let repeated = run_ranks(&DevicePlan::slices(ranks).unwrap(), WAIT, |rank| {
            let number = rank.rank();
            let network = Network::new(1, DType::F32, &Device::Cpu, |vb, _| LeNet::new(vb))?;
            let model = Ddp::new(network, rank, Reduction::default())?;
            let shares = ShardLoader::new(&images(), BATCH, 5, DType::F32, model.hosts());
            let share = || shares.epoch(1).next().unwrap();
            let expected = model.backward(&share()?)?.gradients;
            let mut infinite = share()?;
            if number == 1 {
                infinite.shards[0].images = (&infinite.shards[0].images * f64::NAN)?;
            }
            let told = model.backward(&infinite).map(drop).unwrap_err().to_string();
            assert!(told.contains("rank 1"), "{told}");
            if number == 0 {
                let mut narrow = share()?;
                narrow.shards[0].images = narrow.shards[0].images.narrow(3, 0, 20)?;
                assert!(model.backward(&narrow).is_err());
            }
            let again = model.backward(&share()?)?.gradients;
            let equal = expected.iter().zip(&again).map(|(expected, again)| {
                let values = |tensor: &Tensor| tensor.flatten_all()?.to_vec1::<f32>();
                Ok(values(expected)? == values(again)?)
            });
            Ok::<_, Error>(equal.collect::<candle_core::Result<Vec<_>>>()?)
        });
        assert!(repeated.unwrap().concat().iter().all(|equal| *equal), "{ranks} ranks");
    }
}

#[test]
fn another_structure_on_one_rank_is_refused() {
    let failure = run_ranks(&DevicePlan::slices(3).unwrap(), WAIT, |rank| {
        let width = if rank.rank() == 2 { 3 } else { 2 };
        let network =
            Network::new(1, DType::F32, &Device::Cpu, move |vb, n| ResNet18::new(width, n, vb))?;
        Ddp::new(network, rank, Reduction::default()).map(drop)
    });
    let failure = failure.unwrap_err().to_string();
    let expected = "rank 2 has tensor conv1.weight F32 [3, 1, 3, 3], rank 0 has F32 [2, 1, 3, 3]";
    assert!(failure.contains(expected), "{failure}");
}

#[test]
fn all_ranks_begin_with_the_weights_of_rank_0() {
    let weights = run_ranks(&DevicePlan::slices(3).unwrap(), WAIT, |rank| {
        let seed = rank.rank() as u64;
        let network = Network::new(seed, DType::F32, &Device::Cpu, |vb, _| LeNet::new(vb))?;
        let model = Ddp::new(network, rank, Reduction::default())?;
        Ok::<_, Error>(WeightsHash::new(&model.weights().snapshot()?)?)
    });
    let weights = weights.unwrap();
    let of_rank_0 = Network::new(0, DType::F32, &Device::Cpu, |vb, _| LeNet::new(vb)).unwrap();
    let expected = WeightsHash::new(&Network::weights(&of_rank_0).snapshot().unwrap()).unwrap();
    assert_eq!(weights, [expected; 3]);
}

/// Rank 1's images are not numbers; what all ranks say.
fn with_images_that_are_no_numbers(
    reduction: Reduction,
    broken: impl Fn(usize) -> bool + Sync,
) -> Vec<String> {
    let told = run_ranks(&DevicePlan::slices(3).unwrap(), WAIT, |rank| {
        let model = Ddp::new(resnet18(DType::F32).replica(rank.device())?, rank, reduction)?;
        let shares = ShardLoader::new(&images(), BATCH, 5, DType::F32, model.hosts());
        let mut share = shares.epoch(1).next().unwrap()?;
        if broken(rank.rank()) {
            for shard in &mut share.shards {
                shard.images = (&shard.images * f64::NAN)?;
            }
        }
        Ok::<_, Error>(match model.backward(&share) {
            Ok(step) => step.sums.read()?.loss.to_string(),
            Err(error) => error.to_string(),
        })
    });
    told.unwrap()
}

#[test]
fn all_ranks_name_the_one_whose_loss_is_not_a_number() {
    let by_shard = Reduction::Reproducible { shards: 4 };
    for reduction in [Reduction::default(), by_shard] {
        let told = with_images_that_are_no_numbers(reduction, |rank| rank == 1);
        for told in told {
            assert!(told.starts_with("the loss of rank 1's images is not finite"), "{told}");
        }
        // Where all are alike it is nobody's fault: the training loop knows more about that.
        assert_eq!(with_images_that_are_no_numbers(reduction, |_| true), ["NaN"; 3]);
    }
}
