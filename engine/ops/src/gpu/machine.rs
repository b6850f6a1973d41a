//! Where kernels run.

use candle_core::backend::BackendStorage;
use candle_core::{DType, Result};

use super::launch::Launch;

/// A GPU, or what stands in for one.
pub(crate) trait Machine {
    /// The memory of its tensors.
    type Storage: BackendStorage;

    /// Memory for a result, with anything in it: a kernel has to write every element.
    ///
    /// # Errors
    ///
    /// When there is none.
    fn room(&self, elements: usize, dtype: DType) -> Result<Self::Storage>;

    /// Runs a kernel on so many blocks, behind everything that was launched before; it need not wait until it
    /// is done.
    ///
    /// # Errors
    ///
    /// When an operand is of another type or size than the kernel has, or larger than it can count; or when the
    /// kernel cannot be compiled or started.
    fn run(&self, launch: Launch<'_, Self::Storage>, blocks: usize) -> Result<()> {
        launch.check()?;
        self.start(launch, blocks)
    }

    /// The same for a launch that was checked.
    ///
    /// # Errors
    ///
    /// When the kernel cannot be compiled or started.
    fn start(&self, launch: Launch<'_, Self::Storage>, blocks: usize) -> Result<()>;
}
