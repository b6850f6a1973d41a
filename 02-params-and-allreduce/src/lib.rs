//! Stage 2: what several devices need beyond one.
//!
//! Two things, and everything in data parallelism is built on them: every device gets its own copy of
//! the parameters, and the devices add their gradients up so that all hold the same sum.
//!
//! | module | what it teaches |
//! | --- | --- |
//! | [`params`] | a replica is a *copy*: `get_params` |
//! | [`communicator`] | rank, world size, send, receive, and how a failure is told |
//! | [`all_reduce`] | everyone contributes a tensor, everyone gets the sum: one-shot, naive, tree, ring |
//! | [`collective`] | broadcast, reduce-scatter, all-gather, barrier |
//! | [`mod@add_and_copy`] | what an all-reduce in one memory has to do at the least |
//! | [`thread`] | devices as threads of one process: one thread drives one device |
//! | [`launcher`] | where a launcher such as `torchrun` has put this process |
//! | `mpi` (a feature) | ranks as processes, on one machine or many |
//! | [`mpirun`] | whether this process is one of several that were started together |
//! | `nccl` (a feature) | NVIDIA's own all-reduce, between GPUs |
//!
//! Collectives are written once, over point-to-point messages, and run wherever those do.
//!
//! Left out here: which numbers are added up, and when. That is stage 4.

pub mod add_and_copy;
pub mod all_reduce;
pub mod collective;
pub mod communicator;
pub mod launcher;
#[cfg(feature = "mpi")]
pub mod mpi;
pub mod mpirun;
#[cfg(feature = "nccl")]
pub mod nccl;
pub mod params;
pub mod thread;

pub use all_reduce::{Algorithm, allreduce};
pub use params::get_params;
