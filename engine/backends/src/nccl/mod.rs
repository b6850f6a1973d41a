//! NCCL: NVIDIA's own all-reduce, between GPUs.
//!
//! It adds as the ring and the tree do, but GPU kernels do the sending, straight from one GPU's memory
//! to another's. What it asks for in return:
//!
//! - **Everyone joins together.** Rank 0 draws an identifier, the others get it over the links that the
//!   ranks have already, and each makes its end of the connection *in the thread that drives its GPU*.
//! - **One GPU each.** NCCL refuses two ranks on one GPU, so that is found out, and said, beforehand.
//! - **Everyone leaves together.** A rank's buffers may still be read by a slower one.
//!
//! [`with_nccl`] sees to all three. The end of the connection is neither `Send` nor `Sync`, and need not
//! be: on a GPU a rank works in its own thread from beginning to end.
//!
//! # NCCL alone
//!
//! Processes that a launcher such as `torchrun` started have no links to send an identifier over. NCCL can introduce
//! them itself ([`World`]), and then it is all that they have: sums and broadcasts, made by all ranks together, and no
//! messages between two. That is enough for distributed data parallel.
//!
//! | file | its idea |
//! | --- | --- |
//! | `connection` | one end: a stream of its own, and a wait with a time limit |
//! | `collective` | sum and broadcast as operations of candle's |
//! | `join` | what ranks tell each other before they are connected |
//! | `world` | processes that a launcher started |
//! | `line`, `post` | an end that any thread may use, and the thread that it lives in |
//!
//! # When a rank dies
//!
//! NCCL does not notice: the others' kernels wait for it for ever. So each sum is waited for here, with a
//! time limit, and then the connection is torn down, which ends the kernels. That costs one wait of the
//! CPU per sum, and the error cannot name the rank that is missing;
//! [`run_ranks`](crate::thread::run_ranks) can, because it sees who failed first. One gap remains:
//! joining has no time limit. Every rank has shown itself over the links just before, so a rank would
//! have to die within that moment.

mod collective;
mod connection;
mod join;
mod line;
mod post;
mod world;

use std::time::Duration;

use candle_core::{DType, Device, Shape, Tensor};
use cudarc::driver::DriverError;
use cudarc::nccl::result::NcclError;

use crate::collective::barrier;
use crate::communicator::{Communicator, Engine, Error, Received};
use collective::Kind;
use connection::Connection;
use join::{exchange, shared_id, sharers};
pub use line::Line;
pub use world::{ConnectError, Rank, World};

/// Runs `work` with ranks that are connected through NCCL; all ranks of the world call this together.
///
/// `links` connect the ranks already, and go on carrying their messages. A sum that is not there after
/// `timeout` is an error.
///
/// # Errors
///
/// When a rank's device is no GPU or two ranks share one, when NCCL cannot connect them, and the errors
/// of `work`. After an error this rank leaves at once.
pub fn with_nccl<C: Communicator, R, E: From<Error>>(
    links: &C,
    timeout: Duration,
    work: impl FnOnce(&NcclRank<'_, C>) -> Result<R, E>,
) -> Result<R, E> {
    let rank = NcclRank::join(links, timeout)?;
    let outcome = work(&rank)?;
    links.barrier()?;
    Ok(outcome)
}

/// One rank whose all-reduce is NCCL's; everything else goes over its links.
pub struct NcclRank<'a, C> {
    links: &'a C,
    connection: Connection,
}

impl<'a, C: Communicator> NcclRank<'a, C> {
    fn join(links: &'a C, timeout: Duration) -> Result<Self, Error> {
        let Device::Cuda(device) = links.device() else {
            return Err(failure("NCCL adds up tensors on GPUs: use --device cuda".to_owned()));
        };
        // A number is not enough to tell GPUs apart: every machine counts from 0, and so does a process that was
        // given some GPUs of a machine.
        let uuid = device.cuda_stream().context().uuid().map_err(driver)?.bytes;
        let gpus = exchange(links, uuid.map(|byte| byte.to_ne_bytes()[0]))?;
        if let Some((one, other)) = sharers(&gpus) {
            return Err(failure(format!(
                "ranks {one} and {other} share a GPU, and NCCL needs one for each rank: use no more devices than \
                 there are GPUs, or another all-reduce"
            )));
        }
        let (rank, world_size) = (links.rank(), links.world_size());
        let connection = Connection::join(device, rank, world_size, shared_id(links)?, timeout)?;
        Ok(Self { links, connection })
    }

    /// The sum of all ranks' tensors, on every rank; it is there when this returns.
    ///
    /// All ranks call this together, with tensors of one shape and type (f32, f64, f16 or bf16): NCCL
    /// does not compare them. The order of adding is NCCL's choice, and depends on how many ranks there
    /// are and on how their GPUs are connected.
    ///
    /// # Errors
    ///
    /// When the tensor is not on this rank's GPU or of another type, when NCCL reports a failure, or when
    /// the other ranks have not done their part in time. After an error there are no more sums.
    pub fn all_reduce(&self, tensor: &Tensor) -> Result<Tensor, Error> {
        self.connection.run(tensor, Kind::Sum)
    }
}

impl<C: Communicator> Communicator for NcclRank<'_, C> {
    fn rank(&self) -> usize {
        self.links.rank()
    }

    fn world_size(&self) -> usize {
        self.links.world_size()
    }

    fn device(&self) -> &Device {
        self.links.device()
    }

    fn world_rank(&self, rank: usize) -> usize {
        self.links.world_rank(rank)
    }

    fn send(&self, to: usize, tensor: &Tensor) -> Result<(), Error> {
        self.links.send(to, tensor)
    }

    fn share(&self, to: usize, tensor: &Tensor) -> Result<(), Error> {
        self.links.share(to, tensor)
    }

    fn lend(&self, to: usize, tensor: &Tensor) -> Result<(), Error> {
        self.links.lend(to, tensor)
    }

    fn reclaim(&self) -> Result<(), Error> {
        self.links.reclaim()
    }

    fn recv(&self, from: usize, shape: &Shape, dtype: DType) -> Result<Tensor, Error> {
        self.links.recv(from, shape, dtype)
    }

    fn borrow(&self, from: usize, shape: &Shape, dtype: DType) -> Result<Received, Error> {
        self.links.borrow(from, shape, dtype)
    }

    fn native_all_reduce(&self, engine: Engine, tensor: &Tensor) -> Result<Tensor, Error> {
        match engine {
            Engine::Nccl => self.all_reduce(tensor),
            Engine::Mpi => self.links.native_all_reduce(engine, tensor),
        }
    }
}

fn failure(message: String) -> Error {
    Error::Other(message)
}

fn nccl(error: NcclError) -> candle_core::Error {
    candle_core::Error::Msg(format!("NCCL: {:?}", error.0))
}

fn driver(error: DriverError) -> candle_core::Error {
    candle_core::Error::wrap(error)
}

#[cfg(test)]
mod tests {
    use devices::DevicePlan;

    use super::*;
    use crate::thread::run_ranks;

    const WAIT: Duration = Duration::from_secs(60);

    #[test]
    fn slices_of_the_cpu_are_refused() {
        let failure = run_ranks(&DevicePlan::slices(2).unwrap(), WAIT, |rank| {
            with_nccl(rank, WAIT, |_| Ok::<_, Error>(()))
        });
        let message = failure.unwrap_err().to_string();
        assert!(message.contains("NCCL adds up tensors on GPUs"), "{message}");
    }
}
