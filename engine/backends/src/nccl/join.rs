//! What ranks tell each other over their links before NCCL connects them, and when they part.

use candle_core::Tensor;
use cudarc::nccl::safe::Id;

use super::nccl;
use crate::collective::{all_gather, broadcast};
use crate::communicator::{Communicator, Error};

/// Bytes of the identifier that rank 0 draws.
const ID_BYTES: usize = 128;

/// What names a GPU everywhere, on whatever machine.
pub(super) type Uuid = [u8; 16];

/// Every rank's GPU, known to every rank.
pub(super) fn exchange(links: &impl Communicator, mine: Uuid) -> Result<Vec<Uuid>, Error> {
    const BYTES: usize = size_of::<Uuid>();
    let mine = Tensor::new(&mine, links.device())?;
    let all = links.all_gather(&mine, links.world_size() * BYTES)?.to_vec1::<u8>()?;
    Ok(all.chunks(BYTES).map(|gpu| std::array::from_fn(|byte| gpu[byte])).collect())
}

/// The first two ranks that have the same GPU.
pub(super) fn sharers(gpus: &[Uuid]) -> Option<(usize, usize)> {
    let earlier = |rank: usize| gpus[..rank].iter().position(|gpu| *gpu == gpus[rank]);
    (0..gpus.len()).find_map(|rank| Some((earlier(rank)?, rank)))
}

/// An identifier drawn by rank 0, the same on every rank.
pub(super) fn shared_id(links: &impl Communicator) -> Result<Id, Error> {
    let mine = match links.rank() {
        0 => Id::new().map_err(nccl)?.internal().map(|byte| byte.to_ne_bytes()[0]),
        _ => [0; ID_BYTES],
    };
    let mine = Tensor::new(&mine, links.device())?;
    let bytes = links.broadcast(&mine, 0)?.to_vec1::<u8>()?;
    let byte = |place: usize| std::ffi::c_char::from_ne_bytes([bytes[place]]);
    Ok(Id::uninit(std::array::from_fn(byte)))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use devices::DevicePlan;

    use super::*;
    use crate::thread::{Rank, run_ranks};

    #[test]
    fn every_rank_learns_every_gpu() {
        for ranks in [1, 2, 5] {
            let plan = DevicePlan::slices(ranks).unwrap();
            let gpu = |rank: &Rank<'_>| exchange(rank, [10 + rank.rank() as u8; 16]);
            let gpus = run_ranks(&plan, Duration::from_secs(60), gpu);
            let expected: Vec<Uuid> = (10..).take(ranks).map(|byte| [byte; 16]).collect();
            assert_eq!(gpus.unwrap(), vec![expected; ranks]);
        }
    }

    #[test]
    fn two_ranks_on_one_gpu_are_found() {
        let of = |bytes: &[u8]| sharers(&bytes.iter().map(|byte| [*byte; 16]).collect::<Vec<_>>());
        assert_eq!(of(&[0, 1, 2]), None);
        assert_eq!(of(&[0, 1, 0, 1]), Some((0, 2)));
        assert_eq!(of(&[3, 1, 1]), Some((1, 2)));
    }
}
