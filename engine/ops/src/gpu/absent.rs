//! A GPU's place in a build without CUDA: there are no tensors that could get here.

use candle_core::{CudaDevice, CudaStorage, DType, Result, bail};

use super::launch::Launch;
use super::machine::Machine;

impl Machine for CudaDevice {
    type Storage = CudaStorage;

    fn room(&self, _: usize, _: DType) -> Result<CudaStorage> {
        bail!("this program was built without CUDA")
    }

    fn start(&self, _: Launch<'_, CudaStorage>, _: usize) -> Result<()> {
        bail!("this program was built without CUDA")
    }
}
