//! What ranks tell each other over their links before NCCL connects them, and when they part.

use candle_core::{DType, Device, Shape, Tensor};
use cudarc::nccl::safe::Id;

use super::nccl;
use crate::communicator::{Communicator, Error};

/// Bytes of the identifier that rank 0 draws.
const ID_BYTES: usize = 128;

/// Every rank's number, known to every rank. Nobody has all of them before everybody has called this.
pub(super) fn exchange(links: &impl Communicator, mine: u32) -> Result<Vec<u32>, Error> {
    let number = |value: u32| Tensor::new(&[value], &Device::Cpu);
    if links.rank() > 0 {
        links.send(0, &number(mine)?)?;
        let all = links.recv(0, &Shape::from(links.world_size()), DType::U32)?;
        return Ok(all.to_vec1()?);
    }
    let mut all = vec![mine];
    for other in 1..links.world_size() {
        all.extend(links.recv(other, &Shape::from(1), DType::U32)?.to_vec1::<u32>()?);
    }
    let list = Tensor::new(all.as_slice(), &Device::Cpu)?;
    (1..links.world_size()).try_for_each(|other| links.send(other, &list))?;
    Ok(all)
}

/// The first two ranks that have the same GPU.
pub(super) fn sharers(ordinals: &[u32]) -> Option<(usize, usize)> {
    let earlier = |rank: usize| ordinals[..rank].iter().position(|o| *o == ordinals[rank]);
    (0..ordinals.len()).find_map(|rank| Some((earlier(rank)?, rank)))
}

/// An identifier drawn by rank 0, the same on every rank.
pub(super) fn shared_id(links: &impl Communicator) -> Result<Id, Error> {
    if links.rank() == 0 {
        let id = Id::new().map_err(nccl)?;
        let bytes = id.internal().map(|byte| byte.to_ne_bytes()[0]);
        let message = Tensor::new(&bytes, &Device::Cpu)?;
        (1..links.world_size()).try_for_each(|other| links.send(other, &message))?;
        return Ok(id);
    }
    let message = links.recv(0, &Shape::from(ID_BYTES), DType::U8)?.to_vec1::<u8>()?;
    let mut id = [0; ID_BYTES];
    for (place, byte) in id.iter_mut().zip(message) {
        *place = std::ffi::c_char::from_ne_bytes([byte]);
    }
    Ok(Id::uninit(id))
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;
    use std::time::Duration;

    use single_gpu::device::{DeviceKind, DevicePlan};

    use super::*;
    use crate::thread::{Rank, run_ranks};

    #[test]
    fn every_rank_learns_every_number() {
        for ranks in [1, 2, 5] {
            let plan = DevicePlan::new(DeviceKind::Cpu, ranks, NonZeroUsize::new(1)).unwrap();
            let number = |rank: &Rank<'_>| exchange(rank, 10 + rank.rank() as u32);
            let numbers = run_ranks(&plan, Duration::from_secs(60), number);
            let expected: Vec<u32> = (10..).take(ranks).collect();
            assert_eq!(numbers.unwrap(), vec![expected; ranks]);
        }
    }

    #[test]
    fn two_ranks_on_one_gpu_are_found() {
        assert_eq!(sharers(&[0, 1, 2]), None);
        assert_eq!(sharers(&[0, 1, 0, 1]), Some((0, 2)));
        assert_eq!(sharers(&[3, 1, 1]), Some((1, 2)));
    }
}
