//! Messages: memory that MPI reads or writes in the background, and headers.
//!
//! A tensor is sent as a header, its type and shape, and then its bytes. Both are transfers.

#![expect(unsafe_code, reason = "MPI uses memory longer than a borrow of it can last")]

use std::{fmt, mem, slice};

use ::mpi::Tag;
use ::mpi::collective::SystemOperation;
use ::mpi::request::{Request, StaticScope};
use ::mpi::topology::{Process, SimpleCommunicator};
use ::mpi::traits::{CommunicatorCollectives as _, Destination as _, Equivalence, Source as _};
use candle_core::DType::{self, BF16, F16, F32, F64, I16, I32, I64, U8, U32};

/// The most elements of one request: MPI counts them in 31 bits.
const PART: usize = 1 << 30;

/// A request for a part of a transfer's memory.
type PartRequest<T> = Request<'static, [T], StaticScope>;

/// Memory, and the requests by which MPI reads or writes it.
pub(super) struct Transfer<T: 'static> {
    requests: Vec<PartRequest<T>>,
    written: Vec<T>,
    /// Kept until MPI has read it.
    _read: Vec<T>,
}

impl<T> Transfer<T> {
    /// Starts the requests that `start` makes: MPI reads from `read`, and writes to `written`.
    fn new(
        read: Vec<T>,
        mut written: Vec<T>,
        start: impl FnOnce(&'static [T], &'static mut [T]) -> Vec<PartRequest<T>>,
    ) -> Self {
        // SAFETY: only the requests use these slices. The transfer keeps both vectors, which do not grow, and waits for its
        // requests before it frees or returns memory.
        let requests = unsafe {
            start(
                slice::from_raw_parts(read.as_ptr(), read.len()),
                slice::from_raw_parts_mut(written.as_mut_ptr(), written.len()),
            )
        };
        Self { requests, written, _read: read }
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
    fn drop(&mut self) {
        self.requests.drain(..).for_each(Request::wait_without_status);
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
            let start =
                |(addends, sum)| world.immediate_all_reduce_into(StaticScope, addends, sum, plus());
            parts.map(start).collect()
        })
    }
}

/// The types of elements, by the number that a header has for them.
const TYPES: [DType; 9] = [U8, U32, I16, I32, I64, BF16, F16, F32, F64];

/// The type and shape of a tensor, whose bytes follow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) dtype: DType,
    pub(super) dims: Vec<usize>,
}

impl Header {
    /// The number of the element type, then the dimensions. `None` for a type that is never sent.
    pub(super) fn encode(&self) -> Option<Vec<u8>> {
        let dtype = TYPES.iter().position(|&dtype| dtype == self.dtype)?;
        Some(encode_words([dtype].iter().chain(&self.dims)))
    }

    /// Returns `None` if the sender is another program.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let words = decode_words(bytes);
        let (&dtype, dims) = words.split_first()?;
        let dtype = *TYPES.get(dtype)?;
        // No memory holds more bytes.
        dims.iter().try_fold(dtype.size_in_bytes(), |bytes, &size| bytes.checked_mul(size))?;
        Some(Self { dtype, dims: dims.to_vec() })
    }

    /// The number of bytes that follow.
    pub(super) fn following_bytes(&self) -> usize {
        self.dims.iter().product::<usize>() * self.dtype.size_in_bytes()
    }
}

impl fmt::Display for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {:?}", self.dtype, self.dims)
    }
}

pub(super) fn encode_words<'a>(words: impl IntoIterator<Item = &'a usize>) -> Vec<u8> {
    words.into_iter().flat_map(|&word| (word as u64).to_ne_bytes()).collect()
}

pub(super) fn decode_words(bytes: &[u8]) -> Vec<usize> {
    bytes.as_chunks().0.iter().map(|&word| u64::from_ne_bytes(word) as usize).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_header_can_be_read() {
        let all = TYPES.map(|dtype| Header { dtype, dims: vec![2, 0, 3] });
        let scalar = Header { dtype: DType::F32, dims: vec![] };
        for header in all.into_iter().chain([scalar]) {
            assert_eq!(Header::decode(&header.encode().unwrap()), Some(header));
        }
    }

    #[test]
    fn anything_else_cannot() {
        let no_type = encode_words(&[TYPES.len(), 2]);
        let no_memory = encode_words(&[8, usize::MAX, 2]);
        for bytes in [&[][..], b"hello", &no_type, &no_memory] {
            assert_eq!(Header::decode(bytes), None, "{bytes:?}");
        }
        assert_eq!(Header { dtype: DType::F8E4M3, dims: vec![] }.encode(), None);
    }
}
