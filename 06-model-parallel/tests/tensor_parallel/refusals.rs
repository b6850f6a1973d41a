//! What makes no sense is refused, and a rank that fails is named.

use super::{WAIT, on_ranks};
use crate::pipelines::training::{checked_on, images, on_the_mesh};
use crate::prelude::*;

fn failure(
    ranks: usize,
    work: impl Fn(&Rank, &SharedCommunicator) -> Result<(), Error> + Sync,
) -> String {
    let plan = DevicePlan::slices(ranks).unwrap();
    let work = |rank: &Rank| work(rank, &rank.into());
    run_ranks(&plan, WAIT, work).unwrap_err().to_string()
}

fn build(layers: &Layers, seed: u64, group: &SharedCommunicator) -> Result<(), Error> {
    layers.build_part(0..layers.len(), seed, DType::F32, &Device::Cpu, group).map(drop)
}

#[test]
fn more_ranks_than_features_are_refused_by_name() {
    for (widths, refusal) in [
        ([784, 2, 10], "dense0.weight: 2 features cannot be cut into 3 parts: use fewer ranks"),
        ([2, 3, 2], ""),
        ([784, 1, 3], "dense0.weight: 1 feature cannot be cut into 3 parts: use fewer ranks"),
    ] {
        let layers = Layers::dense(&widths).unwrap();
        let checked = layers.check_parts(3);
        if refusal.is_empty() {
            // A layer by columns needs few inputs, and a layer by rows few outputs.
            checked.unwrap();
            continue;
        }
        assert_eq!(checked.unwrap_err().to_string(), refusal);
        let told = failure(3, |_, group| build(&layers, 1, group));
        assert!(told.contains(refusal), "{told}");
    }
    for (layers, name) in
        [(Layers::lenet(), "LeNet"), (Layers::resnet18(2), "ResNet-18 of width 2")]
    {
        let told = layers.check_parts(2).unwrap_err().to_string();
        assert_eq!(told, format!("{name} is split in stages only"));
    }
}

#[test]
fn ranks_that_were_not_started_alike_are_told() {
    let told = failure(2, |rank, group| {
        build(&Layers::dense(&[784, 8, 10])?, 1 + rank.rank() as u64, group)
    });
    assert_eq!(told, "rank 1 failed: rank 1 has seed 2, rank 0 has 1: start all ranks alike");
    // 9 or 8 hidden features: rank 0's part is of 5 or of 4, and rank 1's of 4 in either case.
    let told =
        failure(2, |rank, group| build(&Layers::dense(&[784, 9 - rank.rank(), 10])?, 1, group));
    let expected = "rank 1 failed: rank 1 has tensor dense0.weight [784, 8]";
    assert!(told.starts_with(expected), "{told}");
}

/// In the middle of a step, with all others waiting for its term of a sum.
#[test]
fn a_rank_that_fails_is_named() {
    let layers = Layers::dense(&[PIXELS, 9, 10]).unwrap();
    let (mesh, settings) = (Mesh::tensor(3), Settings::IMAGES);
    let checked = checked_on(mesh, Kind::Naive, 1);
    let told = failure(3, |rank, _| {
        let (layers, sample) = ((&layers, ""), (&SAMPLE[..], DType::F64));
        let (model, _) = on_the_mesh(rank, mesh, &checked, layers, sample, settings)?;
        if rank.rank() == 1 {
            return Err(candle_core::Error::Msg("disk full".to_owned()).into());
        }
        model.evaluate(&images(16)).map(drop)
    });
    assert_eq!(told, "rank 1 failed: disk full");
}

#[test]
fn a_replica_has_the_values_of_its_network() {
    let layers = Layers::dense(&[784, 8, 10]).unwrap();
    on_ranks(2, |_, group| {
        let network = layers.build_part(0..2, 1, DType::F64, &Device::Cpu, group)?;
        let weight = network.weights().get("dense0.weight").unwrap();
        overwrite(weight, &weight.detach().affine(2.0, 0.0)?)?;
        let replica = network.replica(network.device())?;
        let [mine, replicas] =
            [&network, &replica].map(|network| network.weights().snapshot().unwrap());
        assert_eq!(largest_difference(&replicas, &mine)?, 0.0);
        Ok(())
    });
}
