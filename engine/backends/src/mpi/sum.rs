//! MPI's own all-reduce.

use std::sync::mpsc::Sender;

use ::mpi::collective::SystemOperation;
use ::mpi::request::scope;
use ::mpi::topology::SimpleCommunicator;
use ::mpi::traits::{CommunicatorCollectives as _, Equivalence};

/// The most numbers of one of MPI's sums: it counts them in 31 bits.
const MOST: usize = 1 << 30;

/// A sum that all ranks make together: this rank's numbers, and who waits for the sum.
#[derive(Debug)]
pub(super) enum Sum {
    F32 { mine: Vec<f32>, to: Sender<Vec<f32>> },
    F64 { mine: Vec<f64>, to: Sender<Vec<f64>> },
}

impl Sum {
    /// Adds up, and calls `meanwhile` until the sum is there.
    pub(super) fn make(self, world: &SimpleCommunicator, meanwhile: impl FnMut()) {
        // Who waited may have given up by the time that the sum is there.
        match self {
            Self::F32 { mine, to } => drop(to.send(add_up(world, &mine, meanwhile))),
            Self::F64 { mine, to } => drop(to.send(add_up(world, &mine, meanwhile))),
        }
    }
}

fn add_up<T: Equivalence + Default + Clone>(
    world: &SimpleCommunicator,
    mine: &[T],
    mut meanwhile: impl FnMut(),
) -> Vec<T> {
    let mut sum = vec![T::default(); mine.len()];
    for (mine, sum) in mine.chunks(MOST).zip(sum.chunks_mut(MOST)) {
        scope(|scope| {
            let plus = SystemOperation::sum();
            let mut request = world.immediate_all_reduce_into(scope, mine, sum, plus);
            while let Err(unfinished) = request.test() {
                request = unfinished;
                meanwhile();
            }
        });
    }
    sum
}
