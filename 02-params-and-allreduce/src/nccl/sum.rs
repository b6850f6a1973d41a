//! NCCL's sum as an operation of candle's, which hands out the memory behind a tensor.

use std::ops::Range;

use candle_core::cuda_backend::CudaStorageSlice as Slice;
use candle_core::{CpuStorage, CudaStorage, CustomOp1, Layout, Result, Shape, bail};
use cudarc::driver::{CudaSlice, DeviceRepr, ValidAsZeroBits};
use cudarc::nccl::safe::{Comm, NcclType, ReduceOp};

use super::{driver, nccl};

/// The sum over all ranks of a connection: queued on its stream, not waited for.
pub(super) struct Sum<'a>(pub(super) &'a Comm);

impl CustomOp1 for Sum<'_> {
    fn name(&self) -> &'static str {
        "nccl all-reduce"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        bail!("{}: the tensor is in CPU memory", self.name())
    }

    fn cuda_fwd(&self, storage: &CudaStorage, layout: &Layout) -> Result<(CudaStorage, Shape)> {
        let Some((start, end)) = layout.contiguous_offsets() else {
            bail!("{}: expected a contiguous tensor", self.name());
        };
        let slice = match &storage.slice {
            Slice::F32(values) => Slice::F32(self.of(values, start..end)?),
            Slice::F64(values) => Slice::F64(self.of(values, start..end)?),
            Slice::F16(values) => Slice::F16(self.of(values, start..end)?),
            Slice::BF16(values) => Slice::BF16(self.of(values, start..end)?),
            _ => bail!("{}: works on f32, f64, f16 and bf16", self.name()),
        };
        Ok((CudaStorage { slice, device: storage.device.clone() }, layout.shape().clone()))
    }
}

impl Sum<'_> {
    fn of<T: NcclType + DeviceRepr + ValidAsZeroBits>(
        &self,
        values: &CudaSlice<T>,
        shown: Range<usize>,
    ) -> Result<CudaSlice<T>> {
        let mine = values.slice(shown);
        let mut sum = self.0.stream().alloc_zeros(mine.len()).map_err(driver)?;
        self.0.all_reduce(&mine, &mut sum, &ReduceOp::Sum).map_err(nccl)?;
        Ok(sum)
    }
}
