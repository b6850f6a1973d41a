//! The wrappers of stage 5 against one device: LeNet and ResNet-18, over five steps.
//!
//! In f64 only the order of additions differs. Over five steps with a batch norm that divides by a small
//! batch's deviation that is amplified, and still stays below 1e-8 (design: law 2). Batches do not divide
//! evenly, and the last is smaller than the number of ranks.
//!
//! With `TEST_DEVICE=cuda` what is compared with one device, or with other numbers of devices, runs on GPUs, which
//! replicas share if there are too few; the one device is the CPU.

mod devices;
mod engine;
mod odd_ranks;
mod own_networks;

use concise_wrapper::Error;

use crate::prelude::*;

/// Three steps an epoch, of 7, 7 and 2 samples.
const BATCH: usize = 7;
const STEPS: usize = 5;

fn images() -> Dataset {
    noisy_images(400..400 + 2 * BATCH as u64 + 2)
}

/// Trains for five steps; what comes out: weights, and the sums of the steps.
fn five_steps(model: &impl Model, dtype: DType) -> Result<(Snapshot, Vec<BatchSums>), Error> {
    let shares = ShardLoader::new(&images(), BATCH, 5, dtype, model.hosts());
    let mut sgd = Sgd::new(Momentum { momentum: 0.9, weight_decay: 1e-3 });
    let mut sums = Vec::new();
    let epochs = (1..).flat_map(|epoch| shares.epoch(epoch)).take(STEPS);
    for share in epochs {
        let LocalBatch { samples, .. } = share.as_ref().unwrap();
        let step = model.backward(share.as_ref().unwrap())?;
        sgd.step(model.weights(), &step.gradients, 0.05, *samples)?;
        sums.push(step.sums.read()?);
    }
    model.evaluate(&images())?;
    Ok((model.weights().snapshot()?, sums))
}

/// The same on `ranks` ranks: what every rank comes to, which must be the same.
fn ddp<M: ModuleT + Send + Sync + 'static>(
    network: &Network<M>,
    ranks: usize,
    reduction: Reduction,
    synchronise: bool,
) -> (Snapshot, Vec<BatchSums>) {
    let dtype = network.dtype();
    let mut outcomes = run_ranks(&plan(ranks), WAIT, |rank| {
        let model = Ddp::new(network.replica(rank.device())?, rank, reduction)?;
        let model = if synchronise { model.synchronise_norms()? } else { model };
        if let Reduction::Buckets { .. } = reduction {
            assert!(ranks == 1 || model.buckets() >= 4, "{} buckets", model.buckets());
        }
        five_steps(&model, dtype)
    })
    .unwrap();
    let hash = |(weights, _): &(Snapshot, _)| WeightsHash::new(weights).unwrap();
    let first = hash(&outcomes[0]);
    assert!(outcomes.iter().all(|outcome| hash(outcome) == first), "all replicas are equal");
    outcomes.swap_remove(0)
}

fn assert_close(
    (a, sums): &(Snapshot, Vec<BatchSums>),
    b: &(Snapshot, Vec<BatchSums>),
    bound: f64,
) {
    let difference = largest_difference(a, &b.0).unwrap();
    assert!(difference < bound, "{difference:.1e}");
    for (a, b) in sums.iter().zip(&b.1) {
        assert_eq!((a.samples, a.correct), (b.samples, b.correct));
        assert!((a.loss - b.loss).abs() <= bound * b.loss.abs(), "{a:?} {b:?}");
    }
}

// ANCHOR: ddp_is_one_device
#[test]
fn ddp_with_synchronised_norms_is_one_device() {
    let alone = five_steps(&resnet18(DType::F64), DType::F64).unwrap();
    for ranks in [1, 2, 3, 4] {
        for (algorithm, overlap) in [(Algorithm::Ring, true), (Algorithm::OneShot, false)] {
            let reduction = many_buckets(algorithm, overlap);
            let several = ddp(&resnet18(DType::F64), ranks, reduction, true);
            assert_close(&several, &alone, 1e-8);
        }
    }
}
// ANCHOR_END: ddp_is_one_device

#[test]
fn with_local_norms_it_is_not() {
    let alone = five_steps(&resnet18(DType::F64), DType::F64).unwrap();
    let several = ddp(&resnet18(DType::F64), 2, many_buckets(Algorithm::Ring, true), false);
    let difference = largest_difference(&several.0, &alone.0).unwrap();
    // Statistics of three or four images in place of seven: nothing that rounding could explain.
    assert!(difference > 1e-2, "{difference:.1e}");
}

/// Ranks compare their settings before they train. Other differences show in a step, or in the epoch that a rank does not train.
#[test]
fn a_rank_whose_loop_is_another_is_named() {
    let data = LoadedData { name: "noise".to_owned(), train: images(), test: images() };
    let plain = TrainOptions { epochs: 2, batch_size: BATCH, learning_rate: 0.05, seed: 5 };
    let network = lenet(DType::F64);
    for (last, broadcasts, named) in [
        (TrainOptions { seed: 6, ..plain }, false, "rank 1 has seed 6, rank 0 has 5: start all"),
        (TrainOptions { epochs: 1, ..plain }, false, "rank 1 returned early, and rank 0 still"),
        (plain, true, "rank 0 sent F64 [], but rank 1 expected F64"),
    ] {
        let failure = run_ranks(&DevicePlan::slices(2).unwrap(), WAIT, |rank| {
            let model = Ddp::new(network.replica(rank.device())?, rank, Reduction::default())?;
            let options = if rank.rank() == 0 { &plain } else { &last };
            let (sgd, silent) = (&mut Sgd::new(Momentum::default()), &mut Report::silent());
            train(&model, &data, options, (sgd, 0), None, silent, |_| {
                if broadcasts && rank.rank() == 0 {
                    rank.broadcast(&Tensor::zeros((), DType::F64, rank.device())?, 0)?;
                }
                Ok(())
            })
        });
        let told = failure.err().map(|failure| failure.to_string()).unwrap_or_default();
        assert!(told.contains(named), "{told:?}");
    }
}

#[test]
fn without_norms_ddp_is_one_device() {
    let alone = five_steps(&lenet(DType::F64), DType::F64).unwrap();
    for ranks in [2, 3, 4] {
        let several = ddp(&lenet(DType::F64), ranks, many_buckets(Algorithm::Tree, true), false);
        assert_close(&several, &alone, 1e-10);
    }
}

#[test]
fn data_parallel_is_one_device() {
    let alone = five_steps(&resnet18(DType::F64), DType::F64).unwrap();
    for ranks in [1, 2, 3, 4] {
        let model = DataParallel::new(resnet18(DType::F64), &plan(ranks), WAIT).unwrap();
        let model = model.synchronise_norms().unwrap();
        assert_close(&five_steps(&model, DType::F64).unwrap(), &alone, 1e-8);
    }
    let alone = five_steps(&lenet(DType::F64), DType::F64).unwrap();
    let model = DataParallel::new(lenet(DType::F64), &plan(3), WAIT).unwrap();
    assert_close(&five_steps(&model, DType::F64).unwrap(), &alone, 1e-10);
}

#[test]
fn by_shard_the_bits_do_not_depend_on_the_ranks() {
    // Shards of one image and none at all at the end of an epoch.
    let reduction = Reduction::Reproducible { shards: 8 };
    let hash = |ranks, dtype| {
        let (weights, _) = ddp(&resnet18(dtype), ranks, reduction, false);
        WeightsHash::new(&weights).unwrap()
    };
    let alone = hash(1, DType::F32);
    for ranks in [2, 3, 4, 8] {
        assert_eq!(hash(ranks, DType::F32), alone, "{ranks} ranks");
    }
    let lenet_hash = |ranks| {
        let (weights, _) = ddp(&lenet(DType::F32), ranks, reduction, false);
        WeightsHash::new(&weights).unwrap()
    };
    assert_eq!(lenet_hash(1), lenet_hash(4));
    // Otherwise the above would prove nothing: cut otherwise, the bits are others.
    let five = ddp(&resnet18(DType::F32), 1, Reduction::Reproducible { shards: 5 }, false);
    assert_ne!(WeightsHash::new(&five.0).unwrap(), alone);
    // On a slice of the CPU bf16 is slower than f32, and right.
    if let (Err(error), false) = (plan(1).check_bf16(), plan(1).is_of_slices()) {
        return eprintln!("SKIPPED: {error}");
    }
    let mixed = hash(1, DType::BF16);
    assert_eq!([2, 4].map(|ranks| hash(ranks, DType::BF16)), [mixed; 2]);
    assert_ne!(mixed, alone);
}

#[test]
fn accumulated_gradients_are_those_of_one_backward_pass() {
    let batch = images().batch(&(0..6).collect::<Vec<u32>>(), DType::F64).unwrap();
    let whole = LocalBatch { shards: vec![batch.clone()], samples: 6 };
    let expected = lenet(DType::F64).backward(&whole).unwrap().gradients;
    for ranks in [1, 2] {
        let outcomes = run_ranks(&plan(ranks), WAIT, |rank| {
            let reduction = many_buckets(Algorithm::Ring, true);
            let model = Ddp::new(lenet(DType::F64).replica(rank.device())?, rank, reduction)?;
            let batch = batch.to_device(rank.device())?;
            let mut gradients = Vec::new();
            // Twice, so that what was accumulated the first time must be gone the second.
            for _ in 0..2 {
                let own = 6 / ranks;
                let first = rank.rank() * own;
                let loss = |start: usize, count: usize| {
                    let cut = |tensor: &Tensor| tensor.narrow(0, start, count);
                    let logits = model.forward(&cut(&batch.images)?)?;
                    Ok::<_, Error>(ops::cross_entropy(&logits, &cut(&batch.labels)?)?)
                };
                model.accumulate(&loss(first, 1)?)?;
                gradients = model.gradients(&loss(first + 1, own - 1)?)?;
            }
            Ok::<_, Error>(on_the_cpu(&gradients)?)
        });
        for gradients in outcomes.unwrap() {
            for (found, expected) in gradients.iter().zip(&expected) {
                let apart = ops::difference::relative_difference(found, expected).unwrap();
                assert!(apart < 1e-12, "{apart:.1e}");
            }
        }
    }
}
