//! Ranks that an engine connects, all of them at once, with no messages between two: what NCCL is to processes that
//! a launcher started. Here the engine is made of threads.

use std::sync::{Arc, Mutex};

use candle_core::Shape;
use params_and_allreduce::communicator;
use params_and_allreduce::forward;
use params_and_allreduce::thread;

use super::*;
use crate::prelude::*;

/// The engine: it moves its tensors over a connection that nobody else uses, and notes each sum.
struct OfAll {
    line: SharedCommunicator,
    which: Line,
    sums: Arc<Mutex<Vec<Line>>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line {
    Main,
    Background,
}

impl Communicator for OfAll {
    forward!(line: rank, world_size, device);

    fn send(&self, _: usize, _: &Tensor) -> Result<(), communicator::Error> {
        Err(communicator::Error::Other("the engine has no messages".to_owned()))
    }

    fn recv(&self, _: usize, _: &Shape, _: DType) -> Result<Tensor, communicator::Error> {
        Err(communicator::Error::Other("the engine has no messages".to_owned()))
    }

    fn background(&self) -> Result<SharedCommunicator, communicator::Error> {
        let (line, sums) = (self.line.background()?, Arc::clone(&self.sums));
        Ok(Arc::new(Self { line, which: Line::Background, sums }))
    }

    fn all_reduce(&self, tensor: &Tensor, _: Algorithm) -> Result<Tensor, communicator::Error> {
        self.sums.lock().unwrap().push(self.which);
        self.line.all_reduce(tensor, Algorithm::Tree)
    }

    fn broadcast(&self, tensor: &Tensor, root: usize) -> Result<Tensor, communicator::Error> {
        self.line.broadcast(tensor, root)
    }

    fn all_gather(&self, chunk: &Tensor, len: usize) -> Result<Tensor, communicator::Error> {
        self.line.all_gather(chunk, len)
    }

    fn barrier(&self) -> Result<(), communicator::Error> {
        self.line.barrier()
    }
}

fn of_all(rank: &thread::Rank) -> SharedCommunicator {
    noted(rank).0
}

/// The same, and which of the two connections made each of the rank's sums.
fn noted(rank: &thread::Rank) -> (SharedCommunicator, Arc<Mutex<Vec<Line>>>) {
    let sums = Arc::<Mutex<Vec<Line>>>::default();
    let main = OfAll { line: rank.into(), which: Line::Main, sums: Arc::clone(&sums) };
    (Arc::new(main), sums)
}

#[test]
fn ddp_needs_no_messages() {
    let of_resnet18 = five_steps(&resnet18(DType::F64), DType::F64).unwrap();
    let of_lenet = five_steps(&lenet(DType::F64), DType::F64).unwrap();
    for ranks in [2, 3] {
        let reduction = many_buckets(Algorithm::Native, true);
        let several = run_ranks(&DevicePlan::slices(ranks).unwrap(), WAIT, |rank| {
            let with_norms = Ddp::new(resnet18(DType::F64), of_all(rank), reduction)?;
            let without_norms = Ddp::new(lenet(DType::F64), of_all(rank), reduction)?;
            Ok::<_, Error>([
                five_steps(&with_norms.synchronise_norms()?, DType::F64)?,
                five_steps(&without_norms, DType::F64)?,
            ])
        });
        for [with_norms, without] in several.unwrap() {
            assert_close(&with_norms, &of_resnet18, 1e-8);
            assert_close(&without, &of_lenet, 1e-10);
        }
    }
}

/// Sums of two lines at once would be queued in another order on each GPU.
#[test]
fn statistics_and_buckets_are_never_summed_at_once() {
    let reduction = many_buckets(Algorithm::Native, true);
    let seen = run_ranks(&DevicePlan::slices(2).unwrap(), WAIT, |rank| {
        let (rank, sums) = noted(rank);
        let model = Ddp::new(resnet18(DType::F32), rank, reduction)?.synchronise_norms()?;
        let buckets = model.buckets();
        five_steps(&model, DType::F32)?;
        let sums = std::mem::take(&mut *sums.lock().unwrap());
        Ok::<_, Error>((buckets, sums))
    });
    for (buckets, sums) in seen.unwrap() {
        let runs = sums.chunk_by(|one, next| one == next);
        let of_buckets: Vec<usize> =
            runs.filter(|run| run[0] == Line::Background).map(<[Line]>::len).collect();
        assert!(buckets > 2, "{buckets}");
        assert_eq!(of_buckets, [buckets; STEPS]);
    }
}

#[test]
fn what_needs_messages_says_so() {
    let network = lenet(DType::F32);
    let failure = run_ranks(&DevicePlan::slices(2).unwrap(), WAIT, |rank| {
        let reduction = Reduction::Reproducible { shards: 2 };
        let model = Ddp::new(network.replica(rank.device())?, of_all(rank), reduction)?;
        five_steps(&model, DType::F32)
    });
    let told = failure.unwrap_err().to_string();
    assert!(told.contains("the engine has no messages"), "{told}");
}
