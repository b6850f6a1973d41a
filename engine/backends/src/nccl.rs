//! NCCL: NVIDIA's own collectives, between GPUs.
//!
//! GPU kernels send directly from one GPU's memory to another's. All ranks join together, each with its own GPU, and leave
//! together: a slower rank may still read a rank's memory.
//!
//! [`with_nccl`] gives ranks that have messages NCCL's all-reduce. A [`World`] has processes that a launcher such as `torchrun`
//! has started: they have collectives and no messages, which is enough for DDP. The file `connection.rs` has the thread that
//! calls NCCL, streams and time limits, and `world.rs` processes without messages.

mod connection;
mod world;

use std::ffi::c_char;
use std::ops::Deref;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use candle_core::{Device, Error as TensorError, Tensor};
use cudarc::nccl::result::NcclError;
use cudarc::nccl::safe::Id;
use harness::lock::locked;
use params_and_allreduce::communicator::{Communicator, Error, SharedCommunicator};
use params_and_allreduce::forward;

use connection::Connection;
pub use world::{Rank, World};

/// Runs `work` with ranks whose native all-reduce is NCCL's. All ranks call this together. Everything else goes over
/// `messages`. A rank waits at most `timeout` for an all-reduce, and for all ranks to join. Fails when a rank's device is no
/// GPU, two ranks share one, NCCL cannot connect the ranks, or `work` fails. After an error this rank leaves at once.
pub fn with_nccl<C, R, E>(
    messages: &C,
    timeout: Duration,
    work: impl FnOnce(&NcclRank<&C>) -> Result<R, E>,
) -> Result<R, E>
where
    C: Communicator + ?Sized,
    E: From<Error>,
{
    let rank = NcclRank::new(messages, timeout);
    rank.connection()?;
    let outcome = work(&rank)?;
    rank.leave()?;
    Ok(outcome)
}

/// One rank whose native all-reduce is NCCL's. NCCL does not compare shapes. The order of its additions depends on the number of
/// ranks, and on the way in which their GPUs are connected. After an error there are no more sums.
pub struct NcclRank<M> {
    messages: M,
    timeout: Duration,
    /// `None` before the first sum, for which all ranks join.
    connection: Mutex<Option<Connection>>,
}

impl<M: Deref<Target: Communicator>> NcclRank<M> {
    /// Makes a rank that joins NCCL at its first sum. All ranks leave together. Any thread may use the result.
    pub fn new(messages: M, timeout: Duration) -> Self {
        Self { messages, timeout, connection: Mutex::default() }
    }

    /// The connection. The first call joins: all ranks make it together. Fails when a rank's device is no GPU or two ranks share
    /// one, and when NCCL cannot connect the ranks in time.
    fn connection(&self) -> Result<Connection, Error> {
        let mut joined = locked(&self.connection);
        if let Some(connection) = &*joined {
            return Ok(connection.clone());
        }
        let messages = &*self.messages;
        let (device, place) = (messages.device(), (messages.rank(), messages.world_size()));
        let Device::Cuda(gpu) = device else {
            return Err(Error::Other("NCCL adds up tensors on GPUs: use --device cuda".to_owned()));
        };
        // A GPU's number is not enough: every machine counts from 0, and so does a process that has some of the GPUs.
        let uuid = gpu.cuda_stream().context().uuid().map_err(TensorError::wrap)?;
        let gpus = exchange(messages, uuid.bytes.map(|byte| byte.to_ne_bytes()[0]))?;
        if let Some((one, other)) = sharers(&gpus) {
            return Err(Error::Other(format!(
                "ranks {one} and {other} share a GPU, and NCCL needs one for each rank: use no more devices than there are \
                 GPUs, or another all-reduce"
            )));
        }
        // Rank 0 makes an identifier for all.
        let own = if place.0 == 0 { *Id::new().map_err(nccl)?.internal() } else { [0; 128] };
        let ids = exchange(messages, own.map(|byte| byte.to_ne_bytes()[0]))?;
        let id = Id::uninit(ids[0].map(|byte| c_char::from_ne_bytes([byte])));
        let connection = Connection::open(device, place, id, self.timeout)?;
        Ok(joined.insert(connection).clone())
    }

    /// Leaves NCCL once all ranks have called this: a slower rank may still read this rank's memory. There are no more sums.
    fn leave(&self) -> Result<(), Error> {
        self.messages.barrier()?;
        self.connection()?.leave();
        Ok(())
    }
}

impl<M: Deref<Target: Communicator> + Send + Sync> Communicator for NcclRank<M> {
    forward!(messages: rank, world_size, device, send, recv);

    fn background(&self) -> Result<SharedCommunicator, Error> {
        Ok(Arc::new(NcclRank::new(self.messages.background()?, self.timeout)))
    }

    fn native_all_reduce(&self, tensor: &Tensor) -> Result<Tensor, Error> {
        self.connection()?.collective(None, tensor)
    }

    fn world_rank(&self, rank: usize) -> usize {
        self.messages.world_rank(rank)
    }
}

/// Returns the bytes of all ranks.
fn exchange<const N: usize>(
    messages: &(impl Communicator + ?Sized),
    own: [u8; N],
) -> Result<Vec<[u8; N]>, Error> {
    let own = Tensor::new(&own, messages.device())?;
    let all = messages.all_gather(&own, messages.world_size() * N)?;
    Ok(all.to_vec1::<u8>()?.as_chunks().0.to_vec())
}

/// The first two ranks that have the same GPU.
fn sharers(gpus: &[[u8; 16]]) -> Option<(usize, usize)> {
    let earlier = |rank: usize| gpus[..rank].iter().position(|gpu| *gpu == gpus[rank]);
    (0..gpus.len()).find_map(|rank| Some((earlier(rank)?, rank)))
}

fn nccl(error: NcclError) -> TensorError {
    TensorError::Msg(format!("NCCL: {:?}", error.0))
}

#[cfg(test)]
mod tests {
    use devices::DevicePlan;
    use params_and_allreduce::thread::{Rank, run_ranks};

    use super::*;

    const WAIT: Duration = Duration::from_secs(60);

    #[test]
    fn slices_of_the_cpu_are_refused() {
        let failure = run_ranks(&DevicePlan::slices(2).unwrap(), WAIT, |rank| {
            with_nccl(rank, WAIT, |_| Ok::<_, Error>(()))
        });
        let message = failure.unwrap_err().to_string();
        assert!(message.contains("NCCL adds up tensors on GPUs"), "{message}");
    }

    #[test]
    fn every_rank_learns_every_gpu() {
        for ranks in [1, 2, 5] {
            let plan = DevicePlan::slices(ranks).unwrap();
            let gpu = |rank: &Rank| exchange(rank, [10 + rank.rank() as u8; 16]);
            let gpus = run_ranks(&plan, WAIT, gpu);
            let expected: Vec<[u8; 16]> = (10..).take(ranks).map(|byte| [byte; 16]).collect();
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
