//! NCCL: NVIDIA's own collectives, between GPUs.
//!
//! GPU kernels send directly from one GPU's memory to another's. All ranks join together, each with its own GPU, and leave
//! together: a slower rank may still read a rank's memory.
//!
//! [`NcclRank`] gives ranks that have messages NCCL's all-reduce. A [`World`] has processes that a launcher such as `torchrun`
//! has started: they have collectives and no messages, which is enough for DDP. The file `connection.rs` has the thread that
//! calls NCCL, streams and time limits, and `world.rs` processes without messages.

mod connection;
mod world;

use std::ffi::c_char;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use candle_core::{Device, Error as TensorError, Tensor};
use cudarc::nccl::result::NcclError;
use cudarc::nccl::safe::Id;
use devices::Handover;
use harness::lock::locked;
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::{Communicator, Error, SharedCommunicator};
use params_and_allreduce::forward;

use crate::text::values;
use connection::Connection;
pub use world::{Rank, World};

/// One rank whose native all-reduce is NCCL's. NCCL does not compare shapes. The order of its additions depends on the number of
/// ranks, and on the way in which their GPUs are connected. After an error there are no more sums.
pub struct NcclRank {
    messages: SharedCommunicator,
    device: Device,
    timeout: Duration,
    /// `None` before the first sum, for which all ranks join.
    connection: Mutex<Option<Connection>>,
}

impl NcclRank {
    /// Makes a rank that joins NCCL at its first sum, and waits at most `timeout` for a sum. Everything else goes over
    /// `messages`. All ranks pass a barrier before one of them drops its rank: a slower rank may still read its memory.
    pub fn new(messages: SharedCommunicator, timeout: Duration) -> Self {
        let device = messages.device().clone();
        Self { messages, device, timeout, connection: Mutex::default() }
    }

    /// The connection. The first call joins: all ranks make it together. Fails when a rank's device is no GPU or two ranks share
    /// one, and when NCCL cannot connect the ranks in time.
    fn connection(&self) -> Result<Connection, Error> {
        let mut joined = locked(&self.connection);
        if let Some(connection) = &*joined {
            return Ok(connection.clone());
        }
        let place = (self.messages.rank(), self.messages.world_size());
        let Device::Cuda(gpu) = &self.device else {
            return Err(Error::Other("NCCL adds up tensors on GPUs: use --device cuda".to_owned()));
        };
        // A GPU's number is not enough: every machine counts from 0, and so does a process that has some of the GPUs.
        let gpu = gpu.cuda_stream().context().uuid().map_err(TensorError::wrap)?.bytes.to_vec();
        // Rank 0 makes an identifier for all.
        let id = if place.0 == 0 { Id::new().map_err(nccl)?.internal().to_vec() } else { vec![] };
        let (gpus, ids): (Vec<_>, Vec<Vec<c_char>>) =
            values(&*self.messages, &(gpu, id))?.into_iter().unzip();
        if let Some((one, other)) = sharers(&gpus) {
            return Err(Error::Other(format!(
                "ranks {one} and {other} share a GPU, and NCCL needs one for each rank: use no more devices than there are \
                 GPUs, or another all-reduce"
            )));
        }
        let id = ids[0].as_slice().try_into().map_err(TensorError::wrap)?;
        let connection = Connection::open(&self.device, place, Id::uninit(id), self.timeout)?;
        Ok(joined.insert(connection).clone())
    }
}

impl Communicator for NcclRank {
    forward!(messages: rank, world_size, device, send, recv);

    fn background(&self) -> Result<SharedCommunicator, Error> {
        let (messages, device) = (self.messages.background()?, self.device.clone());
        Ok(Arc::new(Self { device, ..Self::new(messages, self.timeout) }))
    }

    fn all_reduce_handed_over(
        &self,
        tensor: Handover,
        algorithm: Algorithm,
    ) -> Result<Tensor, Error> {
        match algorithm {
            Algorithm::Native => self.connection()?.all_reduce(tensor),
            _ => self.messages.all_reduce_handed_over(tensor, algorithm),
        }
    }

    fn native_all_reduce(&self, tensor: &Tensor) -> Result<Tensor, Error> {
        self.connection()?.collective(None, tensor)
    }

    fn world_rank(&self, rank: usize) -> usize {
        self.messages.world_rank(rank)
    }
}

/// The first two ranks that have the same GPU.
fn sharers<T: PartialEq>(gpus: &[T]) -> Option<(usize, usize)> {
    let earlier = |rank: usize| gpus[..rank].iter().position(|gpu| *gpu == gpus[rank]);
    (0..gpus.len()).find_map(|rank| Some((earlier(rank)?, rank)))
}

fn nccl(error: NcclError) -> TensorError {
    TensorError::Msg(format!("NCCL: {:?}", error.0))
}

#[cfg(test)]
mod tests {
    use devices::DevicePlan;
    use params_and_allreduce::thread::run_ranks;

    use super::*;

    #[test]
    fn slices_of_the_cpu_are_refused() {
        let wait = Duration::from_secs(60);
        let failure = run_ranks(&DevicePlan::slices(2).unwrap(), wait, |rank| {
            NcclRank::new(rank.into(), wait).native_all_reduce(&Tensor::new(1f32, rank.device())?)
        });
        let message = failure.unwrap_err().to_string();
        assert!(message.contains("NCCL adds up tensors on GPUs"), "{message}");
    }

    #[test]
    fn two_ranks_on_one_gpu_are_found() {
        assert_eq!(sharers(&[0, 1, 2]), None);
        assert_eq!(sharers(&[0, 1, 0, 1]), Some((0, 2)));
        assert_eq!(sharers(&[3, 1, 1]), Some((1, 2)));
    }
}
