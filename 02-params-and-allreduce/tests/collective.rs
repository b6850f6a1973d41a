//! All collectives, as values.

use candle_core::Tensor;
use params_and_allreduce::Algorithm;
use params_and_allreduce::all_reduce::two_levels;
use params_and_allreduce::collectives::chunk_range;
use params_and_allreduce::communicator::{Error, SharedCommunicator};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collective {
    AllReduce(Algorithm),
    /// On two or three hosts if the number of ranks allows it, otherwise one rank on each.
    TwoLevels,
    ReduceScatter,
    AllGather,
    Broadcast,
    Barrier,
}

pub const COLLECTIVES: [Collective; 9] = [
    Collective::AllReduce(Algorithm::OneShot),
    Collective::AllReduce(Algorithm::Naive),
    Collective::AllReduce(Algorithm::Tree),
    Collective::AllReduce(Algorithm::Ring),
    Collective::TwoLevels,
    Collective::ReduceScatter,
    Collective::AllGather,
    Collective::Broadcast,
    Collective::Barrier,
];

impl Collective {
    /// The collectives that pass numbers on.
    pub fn of_numbers() -> impl Iterator<Item = Self> {
        COLLECTIVES.into_iter().filter(|&collective| collective != Self::Barrier)
    }

    /// Takes part with a flat tensor, of which an all-gather takes this rank's chunk. A barrier returns the tensor.
    pub fn apply(
        self,
        comm: &SharedCommunicator,
        mine: &Tensor,
        root: usize,
    ) -> Result<Tensor, Error> {
        match self {
            Self::AllReduce(algorithm) => comm.all_reduce(mine, algorithm),
            Self::TwoLevels => {
                let ranks = comm.world_size();
                let hosts = [2, 3].into_iter().find(|it| ranks.is_multiple_of(*it));
                two_levels(comm, ranks / hosts.unwrap_or(ranks), mine, Algorithm::Ring)
            }
            Self::ReduceScatter => comm.reduce_scatter(mine),
            Self::AllGather => {
                let chunk = chunk_range(mine.elem_count(), comm.world_size(), comm.rank());
                comm.all_gather(&mine.narrow(0, chunk.start, chunk.len())?, mine.elem_count())
            }
            Self::Broadcast => comm.broadcast(mine, root),
            Self::Barrier => comm.barrier().map(|()| mine.clone()),
        }
    }
}
