//! A tensor that is put together from others, one after another.

use candle_core::{Device, Result, Storage, Tensor, WithDType, bail};

/// Numbers in a row that grows, in CPU memory.
///
/// candle joins tensors only when all of them are there, and the first may have left the cache by then.
pub(super) struct Row<T>(Vec<T>);

impl<T: WithDType> Row<T> {
    /// An empty row with room for `len` numbers.
    pub(super) fn with_capacity(len: usize) -> Self {
        Self(Vec::with_capacity(len))
    }

    /// Copies the numbers of a contiguous CPU tensor to the row's end.
    pub(super) fn append(&mut self, tensor: &Tensor) -> Result<()> {
        let (storage, layout) = tensor.storage_and_layout();
        let (Storage::Cpu(storage), Some((start, end))) = (&*storage, layout.contiguous_offsets())
        else {
            bail!("expected a contiguous tensor in CPU memory, got {tensor:?}");
        };
        self.0.extend_from_slice(&storage.as_slice::<T>()?[start..end]);
        Ok(())
    }

    /// The row: `[numbers]`.
    pub(super) fn into_tensor(self) -> Result<Tensor> {
        let len = self.0.len();
        Tensor::from_vec(self.0, len, &Device::Cpu)
    }
}
