//! Tensor parallelism against one device: operations, layers, networks in training, and what they send.
//!
//! All in f64, where only the order of additions differs: a sum over k ranks is a sum of k partial sums.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the right answer")]

mod finite_differences;
mod initial;
mod layers;
mod mappings;
mod networks;
mod refusals;
mod traffic;

use single_gpu::init;

use crate::prelude::*;

const SEED: u64 = 3;
const WAIT: Duration = Duration::from_secs(60);

/// Runs `work` on `ranks` one-core slices; the results in rank order.
fn on_ranks<R: Send>(
    ranks: usize,
    work: impl Fn(&Rank, &SharedCommunicator) -> Result<R, Error> + Sync,
) -> Vec<R> {
    let plan = DevicePlan::slices(ranks).unwrap();
    let work = |rank: &Rank| work(rank, &rank.into());
    run_ranks(&plan, WAIT, work).unwrap_or_else(|failure| panic!("{failure}"))
}

/// A variable of noise, N(0, 1), that depends on its name alone.
fn noise(name: &str, shape: &[usize]) -> Var {
    init::normal(name, shape, 1.0, 1, DType::F64, &Device::Cpu).unwrap().value
}

/// A constant of noise.
fn fixed(name: &str, shape: &[usize]) -> Tensor {
    noise(name, shape).as_detached_tensor()
}

fn bits(tensor: &Tensor) -> Vec<u64> {
    let values = tensor.flatten_all().unwrap().to_vec1::<f64>().unwrap();
    values.into_iter().map(f64::to_bits).collect()
}

/// Sums of the same numbers in another order.
#[track_caller]
fn assert_close(a: &Tensor, b: &Tensor) {
    let difference = relative_difference(a, b).unwrap();
    assert!(difference < 1e-13, "{difference:.1e}: {a} is not {b}");
}

#[track_caller]
fn assert_same_bits<'a>(mut tensors: impl Iterator<Item = &'a Tensor>) {
    let first = tensors.next().unwrap();
    assert!(tensors.all(|other| bits(other) == bits(first)), "all ranks have the same bits");
}
