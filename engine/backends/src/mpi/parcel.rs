//! A tensor on its way between processes: a note, and bytes.

use candle_core::{DType, Device, Result, Tensor};
use devices::move_view;
use safetensors::View;

use super::note::Note;

/// The most bytes of one of MPI's messages: it counts them in 31 bits.
const PART: usize = 1 << 30;

/// Something to send.
#[derive(Debug)]
pub(super) struct Parcel {
    pub(super) to: usize,
    /// A [`Note`] as text.
    pub(super) note: Vec<u8>,
    /// The bytes of the tensor that the note announces.
    pub(super) bytes: Vec<u8>,
}

impl Parcel {
    /// A note without a tensor.
    pub(super) fn note(to: usize, note: &Note) -> Self {
        Self { to, note: note.to_string().into_bytes(), bytes: Vec::new() }
    }

    /// A tensor's present value; from a GPU it passes through the host.
    pub(super) fn tensor(to: usize, tensor: &Tensor) -> Result<Self> {
        let tensor = move_view(&tensor.detach(), &Device::Cpu)?;
        let note = Note::Tensor { dtype: tensor.dtype(), dims: tensor.dims().to_vec() };
        Ok(Self { bytes: tensor.data().into_owned(), ..Self::note(to, &note) })
    }
}

/// The pieces in which bytes are sent, and received.
pub(super) fn parts(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    bytes.chunks(PART)
}

/// [`parts`], to be written to.
pub(super) fn parts_mut(bytes: &mut [u8]) -> impl Iterator<Item = &mut [u8]> {
    bytes.chunks_mut(PART)
}

/// What has come from another rank.
#[derive(Debug)]
pub(super) enum Arrival {
    Tensor {
        dtype: DType,
        dims: Vec<usize>,
        bytes: Vec<u8>,
    },
    /// Nothing that this program sends.
    Unreadable {
        text: String,
    },
}

impl Arrival {
    /// How many bytes follow a note; `None` where that is no number of bytes.
    pub(super) fn len(dtype: DType, dims: &[usize]) -> Option<usize> {
        let size = dtype.size_in_bytes();
        dims.iter().try_fold(size, |bytes, size| bytes.checked_mul(*size))
    }

    /// Element type and shape, as a person reads them.
    pub(super) fn description(&self) -> String {
        match self {
            Self::Tensor { dtype, dims, .. } => format!("{dtype:?} {dims:?}"),
            Self::Unreadable { text } => format!("{text:?}, which is no tensor of this program"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parcel_has_the_bytes_of_what_the_tensor_shows() {
        let whole = Tensor::arange(0u32, 12, &Device::Cpu).unwrap().reshape((3, 4)).unwrap();
        let view = whole.t().unwrap().narrow(0, 1, 2).unwrap();
        let parcel = Parcel::tensor(5, &view).unwrap();
        assert_eq!((parcel.to, parcel.note.as_slice()), (5, &b"tensor u32 2 3"[..]));
        let expected: Vec<u8> =
            [1u32, 5, 9, 2, 6, 10].into_iter().flat_map(u32::to_ne_bytes).collect();
        assert_eq!(parcel.bytes, expected);
    }

    #[test]
    fn sizes_that_no_memory_has_are_noticed() {
        assert_eq!(Arrival::len(DType::F64, &[3, 0, 5]), Some(0));
        assert_eq!(Arrival::len(DType::F64, &[3, 5]), Some(120));
        assert_eq!(Arrival::len(DType::F64, &[usize::MAX, 2]), None);
    }
}
