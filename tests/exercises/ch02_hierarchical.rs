//! Chapter 2, `book/src/ch02b-ranks.md`: all-reduce with few bytes between hosts.
//!
//! Check your answer: `cargo course check ch02_hierarchical`

use candle_core::Tensor;
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::{Communicator, Error, Group, SharedCommunicator};

/// Adds up the tensors of all ranks, and sends few bytes between hosts.
///
/// Each host has `ranks_per_host` ranks with consecutive numbers, and `comm` connects all ranks. Two hosts with two ranks each:
///
/// ```text
///           host 0              host 1
///           rank 0    rank 1    rank 2    rank 3
/// before    1    2    10   20   100  200  1000 2000
/// after     1111 2222 1111 2222 1111 2222 1111 2222
/// ```
///
/// [`Group::new`]`(comm.clone(), members)` makes a communicator of some of the ranks. Every member makes the group with the same list. The
/// group has its own ranks, from 0, and all collectives: [`reduce_scatter`](Communicator::reduce_scatter),
/// [`all_gather`](Communicator::all_gather), [`all_reduce`](Communicator::all_reduce), ….
///
/// | name | what | shape |
/// | --- | --- | --- |
/// | `tensor` | the tensor of this rank; all ranks have the same shape and element type | any |
/// | result | the sum over all ranks, in its own memory, the same bits on every rank | the same |
///
/// The check tests these properties, with h hosts:
///
/// - Any number of hosts, any number of ranks on each, and any number of elements. One rank on each host, or one host, is a world
///   too.
/// - A host sends 2(h − 1)/h of the tensor to other hosts, and no more: the share of one rank in a ring of h ranks. If
///   something cannot be divided, parts differ by one element.
/// - The ranks of a host share this work: each of them sends an equal part of these bytes.
///
/// Fails with the error of a group or of a collective.
pub fn hierarchical(
    comm: &SharedCommunicator,
    ranks_per_host: usize,
    tensor: &Tensor,
) -> Result<Tensor, Error> {
    // TODO: make a group of the ranks of this host, and a group with one rank of each host; then add up in two levels.
    todo!("all-reduce with few bytes between hosts")
}

// The check of this answer. Leave this line as it is.
exercises::check!(ch02_hierarchical, hierarchical, run);
