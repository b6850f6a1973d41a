//! Memory that MPI reads or writes in the background.

#![expect(unsafe_code, reason = "MPI uses memory longer than a borrow of it can last")]

use std::{mem, slice};

use ::mpi::Tag;
use ::mpi::collective::SystemOperation;
use ::mpi::request::{Request, StaticScope};
use ::mpi::topology::{Process, SimpleCommunicator};
use ::mpi::traits::{CommunicatorCollectives as _, Destination as _, Equivalence, Source as _};

/// The most elements of one request: MPI counts them in 31 bits.
const PART: usize = 1 << 30;

/// A request for a part of a transfer's memory.
type PartRequest<T> = Request<'static, [T], StaticScope>;

/// A message or a sum on its way: its memory, and the requests by which MPI reads or writes this memory.
pub(super) struct Transfer<T: 'static> {
    requests: Vec<PartRequest<T>>,
    read: Vec<T>,
    written: Vec<T>,
}

impl<T> Transfer<T> {
    /// Starts the requests that `start` makes: MPI reads from `read`, and writes to `written`.
    fn new(
        read: Vec<T>,
        mut written: Vec<T>,
        start: impl FnOnce(&'static [T], &'static mut [T]) -> Vec<PartRequest<T>>,
    ) -> Self {
        // SAFETY: only the requests use these slices. The transfer owns both vectors and does not change them. It returns
        // or frees them after its requests have finished, and otherwise never.
        let requests = unsafe {
            start(
                slice::from_raw_parts(read.as_ptr(), read.len()),
                slice::from_raw_parts_mut(written.as_mut_ptr(), written.len()),
            )
        };
        Self { requests, read, written }
    }

    /// Returns the memory that MPI has written, once, if MPI has finished. Every call lets MPI make progress.
    pub(super) fn finished(&mut self) -> Option<Vec<T>> {
        while let Some(request) = self.requests.pop() {
            if let Err(unfinished) = request.test() {
                self.requests.push(unfinished);
                return None;
            }
        }
        Some(mem::take(&mut self.written))
    }
}

impl<T> Drop for Transfer<T> {
    /// Leaks the memory of unfinished requests: MPI still uses it.
    fn drop(&mut self) {
        if !self.requests.is_empty() {
            mem::forget((mem::take(&mut self.read), mem::take(&mut self.written)));
            self.requests.drain(..).for_each(mem::forget);
        }
    }
}

impl Transfer<u8> {
    /// Starts to send bytes, in parts. Without bytes, nothing is sent.
    pub(super) fn send(to: &Process<'_>, tag: Tag, bytes: Vec<u8>) -> Self {
        let send = |part| to.immediate_send_with_tag(StaticScope, part, tag);
        Self::new(bytes, Vec::new(), |bytes, _| bytes.chunks(PART).map(send).collect())
    }

    /// Starts to receive bytes, in the parts in which they are sent.
    pub(super) fn receive(from: &Process<'_>, tag: Tag, len: usize) -> Self {
        let receive = |part| from.immediate_receive_into_with_tag(StaticScope, part, tag);
        Self::new(Vec::new(), vec![0; len], |_, all| all.chunks_mut(PART).map(receive).collect())
    }
}

impl<T: Equivalence + Clone + Default> Transfer<T> {
    /// Starts MPI's all-reduce.
    pub(super) fn all_reduce(world: &SimpleCommunicator, addends: Vec<T>) -> Self {
        let sum = vec![T::default(); addends.len()];
        Self::new(addends, sum, |addends, sum| {
            let parts = addends.chunks(PART).zip(sum.chunks_mut(PART));
            let plus = SystemOperation::sum;
            let start = |(own, sum)| world.immediate_all_reduce_into(StaticScope, own, sum, plus());
            parts.map(start).collect()
        })
    }
}
