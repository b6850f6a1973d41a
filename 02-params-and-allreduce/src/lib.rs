//! Stage 2: copies of parameters, and sums over devices.
//!
//! Data parallelism needs two things beyond one device. Every device gets its own copy of the parameters, and the devices
//! add up their gradients, so all devices hold the same sum. Read in this order:
//!
//! | module | content |
//! | --- | --- |
//! | [`params`] | a replica is a *copy*: `get_params` |
//! | `examples/channels.rs` | the smallest communicator: channels between threads |
//! | [`communicator`] | the trait: `send`, `recv` and collectives; errors; groups of ranks |
//! | [`all_reduce`] | every rank contributes a tensor, and every rank gets the sum: naive, one-shot, tree, ring, two levels |
//! | [`collectives`] | who owns a tensor; broadcast, reduce-scatter, all-gather, barrier |
//! | [`thread`] | the communicator of the course: mailboxes, ranks that fail, time limits |
//! | [`host_link`] | hosts on one machine, with a slow link between them |
//! | [`add_and_copy`] | the least work of an all-reduce in one memory |
//! | [`bandwidth`] | the table of bandwidths that the chapter's program prints |
//!
//! The engine's crate `backends` implements the trait for MPI and NCCL.

pub mod add_and_copy;
pub mod bandwidth;
pub mod communicator;
pub mod host_link;
pub mod params;
pub mod thread;

pub use communicator::all_reduce::{self, Algorithm};
pub use communicator::collectives;
pub use params::get_params;
