//! NCCL's collectives as operations of candle's, which hands out the memory behind a tensor.

use std::ops::Range;

use candle_core::cuda_backend::CudaStorageSlice as Slice;
use candle_core::{CpuStorage, CudaDevice, CudaStorage, CustomOp1, Layout, Result, Shape, bail};
use cudarc::driver::{CudaSlice, DeviceRepr, ValidAsZeroBits};
use cudarc::nccl::safe::{Comm, NcclType, ReduceOp};

use super::{driver, nccl};

/// What all ranks of a connection do together: queued on its stream, not waited for.
pub(super) struct Collective<'a> {
    pub(super) comm: &'a Comm,
    pub(super) kind: Kind,
}

/// Which collective.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    /// The sum of all ranks' tensors.
    Sum,
    /// The tensor of the rank `root`.
    Broadcast { root: usize },
}

impl CustomOp1 for Collective<'_> {
    fn name(&self) -> &'static str {
        match self.kind {
            Kind::Sum => "NCCL's sum",
            Kind::Broadcast { .. } => "NCCL's broadcast",
        }
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        bail!("{}: the tensor is in CPU memory", self.name())
    }

    fn cuda_fwd(&self, storage: &CudaStorage, layout: &Layout) -> Result<(CudaStorage, Shape)> {
        let Some((start, end)) = layout.contiguous_offsets() else {
            bail!("{}: expected a contiguous tensor", self.name());
        };
        let shown = start..end;
        let device = &storage.device;
        let slice = match (&storage.slice, self.kind) {
            (Slice::F32(values), _) => Slice::F32(self.of(device, values, shown)?),
            (Slice::F64(values), _) => Slice::F64(self.of(device, values, shown)?),
            (Slice::F16(values), _) => Slice::F16(self.of(device, values, shown)?),
            (Slice::BF16(values), _) => Slice::BF16(self.of(device, values, shown)?),
            (Slice::U8(values), Kind::Broadcast { .. }) => {
                Slice::U8(self.of(device, values, shown)?)
            }
            (Slice::U32(values), Kind::Broadcast { .. }) => {
                Slice::U32(self.of(device, values, shown)?)
            }
            (Slice::I64(values), Kind::Broadcast { .. }) => {
                Slice::I64(self.of(device, values, shown)?)
            }
            (_, Kind::Sum) => bail!("{}: works on f32, f64, f16 and bf16", self.name()),
            _ => bail!("{}: works on floats, u8, u32 and i64", self.name()),
        };
        Ok((CudaStorage { slice, device: device.clone() }, layout.shape().clone()))
    }
}

impl Collective<'_> {
    fn of<T: NcclType + DeviceRepr + ValidAsZeroBits>(
        &self,
        device: &CudaDevice,
        values: &CudaSlice<T>,
        shown: Range<usize>,
    ) -> Result<CudaSlice<T>> {
        let mine = values.slice(shown);
        // Of candle's stream: there it will be read, and freed after that.
        let mut result = device.alloc_zeros(mine.len())?;
        // Behind everything that candle has queued: what made the tensor, and the zeros.
        self.comm.stream().join(&device.cuda_stream()).map_err(driver)?;
        match self.kind {
            Kind::Sum => self.comm.all_reduce(&mine, &mut result, &ReduceOp::Sum),
            Kind::Broadcast { root } => self.comm.broadcast(Some(&mine), &mut result, root as i32),
        }
        .map_err(nccl)?;
        Ok(result)
    }
}
