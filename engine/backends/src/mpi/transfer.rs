//! Memory that MPI reads or writes in the background.
//!
//! A message has a *header* and then, apart from a farewell, the bytes of a tensor. Both are transfers.

#![expect(unsafe_code, reason = "MPI uses memory longer than a borrow of it can last")]

use std::{mem, slice};

use ::mpi::Tag;
use ::mpi::collective::SystemOperation;
use ::mpi::request::{Request, StaticScope};
use ::mpi::topology::{Process, SimpleCommunicator};
use ::mpi::traits::{CommunicatorCollectives as _, Destination as _, Equivalence, Source as _};
use candle_core::DType;

/// The most elements of one request: MPI counts them in 31 bits.
const PART: usize = 1 << 30;

/// Memory, and the requests by which MPI reads or writes it.
pub(super) struct Transfer<T: 'static> {
    requests: Vec<Request<'static, [T], StaticScope>>,
    memory: Vec<T>,
    /// The addends of an all-reduce, whose sum MPI writes to `memory`.
    _addends: Vec<T>,
}

impl Transfer<u8> {
    /// Starts to send bytes, in parts.
    pub(super) fn send(to: &Process<'_>, bytes: Vec<u8>, tag: Tag) -> Self {
        let mut requests = Vec::new();
        for part in bytes.chunks(PART) {
            // SAFETY: the transfer keeps `bytes` as its memory.
            let part = unsafe { unbounded(part) };
            requests.push(to.immediate_send_with_tag(StaticScope, part, tag));
        }
        Self { requests, memory: bytes, _addends: Vec::new() }
    }

    /// Starts to receive bytes, in the parts in which they are sent.
    pub(super) fn receive(from: &Process<'_>, len: usize, tag: Tag) -> Self {
        let mut memory = vec![0; len];
        let mut requests = Vec::new();
        for part in memory.chunks_mut(PART) {
            // SAFETY: the transfer keeps `memory`.
            let part = unsafe { unbounded_mut(part) };
            requests.push(from.immediate_receive_into_with_tag(StaticScope, part, tag));
        }
        Self { requests, memory, _addends: Vec::new() }
    }
}

impl<T: Equivalence + Clone + Default> Transfer<T> {
    /// Starts MPI's all-reduce.
    pub(super) fn all_reduce(world: &SimpleCommunicator, addends: Vec<T>) -> Self {
        let mut memory = vec![T::default(); addends.len()];
        let mut requests = Vec::new();
        for (addends, sum) in addends.chunks(PART).zip(memory.chunks_mut(PART)) {
            // SAFETY: the transfer keeps both `addends` and `memory`.
            let (addends, sum) = unsafe { (unbounded(addends), unbounded_mut(sum)) };
            let plus = SystemOperation::sum();
            requests.push(world.immediate_all_reduce_into(StaticScope, addends, sum, plus));
        }
        Self { requests, memory, _addends: addends }
    }
}

impl<T> Transfer<T> {
    /// Returns whether MPI has finished. Every call lets MPI make progress.
    pub(super) fn is_complete(&mut self) -> bool {
        while let Some(request) = self.requests.pop() {
            if let Err(unfinished) = request.test() {
                self.requests.push(unfinished);
                return false;
            }
        }
        true
    }

    /// Waits until MPI has finished, and returns the memory.
    pub(super) fn into_memory(mut self) -> Vec<T> {
        self.wait();
        mem::take(&mut self.memory)
    }

    fn wait(&mut self) {
        self.requests.drain(..).for_each(Request::wait_without_status);
    }
}

impl<T> Drop for Transfer<T> {
    fn drop(&mut self) {
        self.wait();
    }
}

/// Returns a slice without the limit of its borrow.
///
/// # Safety
///
/// The slice is a part of a [`Transfer`]'s vectors. They do not grow, and a transfer waits for MPI before it frees them.
unsafe fn unbounded<T>(part: &[T]) -> &'static [T] {
    // SAFETY: the caller keeps the memory as long as the only user, a request, exists.
    unsafe { slice::from_raw_parts(part.as_ptr(), part.len()) }
}

/// Does the same for memory that MPI writes to.
///
/// # Safety
///
/// As for [`unbounded`]. Nothing else reads or writes the memory until MPI has finished.
unsafe fn unbounded_mut<T>(part: &mut [T]) -> &'static mut [T] {
    // SAFETY: as above, and the request is the only user.
    unsafe { slice::from_raw_parts_mut(part.as_mut_ptr(), part.len()) }
}

/// The types of elements, by the number that a header has for them.
const TYPES: [DType; 9] = [
    DType::U8,
    DType::U32,
    DType::I16,
    DType::I32,
    DType::I64,
    DType::BF16,
    DType::F16,
    DType::F32,
    DType::F64,
];

/// The first word of a farewell.
const FAREWELL: u64 = u64::MAX;

/// The beginning of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Header {
    /// The bytes of a tensor follow.
    Tensor { dtype: DType, dims: Vec<usize> },
    /// The sender's work is done.
    Farewell,
}

impl Header {
    /// The number of the element type, then the dimensions. `None` for a type that is never sent.
    pub(super) fn encode(&self) -> Option<Vec<u8>> {
        Some(match self {
            Self::Farewell => encode_words([FAREWELL]),
            Self::Tensor { dtype, dims } => {
                let dtype = TYPES.iter().position(|it| it == dtype)? as u64;
                encode_words([dtype].into_iter().chain(dims.iter().map(|&size| size as u64)))
            }
        })
    }

    /// The number of bytes that follow.
    pub(super) fn following_bytes(&self) -> usize {
        match self {
            Self::Farewell => 0,
            Self::Tensor { dtype, dims } => dims.iter().product::<usize>() * dtype.size_in_bytes(),
        }
    }

    /// Returns `None` if the sender is another program.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let words = decode_words(bytes);
        let (&first, dims) = words.split_first()?;
        if first == FAREWELL {
            return Some(Self::Farewell);
        }
        let dtype = *TYPES.get(usize::try_from(first).ok()?)?;
        let dims: Vec<usize> = dims.iter().map(|&size| size as usize).collect();
        // No memory holds more bytes.
        dims.iter().try_fold(dtype.size_in_bytes(), |bytes, &size| bytes.checked_mul(size))?;
        Some(Self::Tensor { dtype, dims })
    }
}

pub(super) fn encode_words(words: impl IntoIterator<Item = u64>) -> Vec<u8> {
    words.into_iter().flat_map(u64::to_ne_bytes).collect()
}

pub(super) fn decode_words(bytes: &[u8]) -> Vec<u64> {
    bytes.as_chunks().0.iter().map(|&word| u64::from_ne_bytes(word)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_header_can_be_read() {
        let all = TYPES.map(|dtype| Header::Tensor { dtype, dims: vec![2, 0, 3] });
        let scalar = Header::Tensor { dtype: DType::F32, dims: vec![] };
        for header in all.into_iter().chain([scalar, Header::Farewell]) {
            assert_eq!(Header::decode(&header.encode().unwrap()), Some(header));
        }
    }

    #[test]
    fn anything_else_cannot() {
        let no_type = encode_words([TYPES.len() as u64, 2]);
        let no_memory = encode_words([8, u64::MAX, 2]);
        for bytes in [&[][..], b"hello", &no_type, &no_memory] {
            assert_eq!(Header::decode(bytes), None, "{bytes:?}");
        }
        assert_eq!(Header::Tensor { dtype: DType::F8E4M3, dims: vec![] }.encode(), None);
    }
}
