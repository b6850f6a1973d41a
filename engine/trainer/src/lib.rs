//! The parts that the training programs share: flags, the loaded setup, the course of a run, and deferred metrics.

mod arguments;
pub mod memory;
mod run;
pub mod sizing;

use candle_core::{Device, Result, Tensor, bail};
use harness::records::BatchSums;

pub use arguments::{TrainArguments, TrainSetup, element_type};
pub use run::{Error, StepSums, TrainingRun};

/// Makes a tensor `[4]` (f64) of the sums of a batch. Devices can add such tensors.
pub fn sums_to_tensor(sums: &BatchSums, device: &Device) -> Result<Tensor> {
    Tensor::new(&sums.to_array(), device)
}

/// Reads the sums from a tensor of [`sums_to_tensor`]. Fails when the tensor is not `[4]`, f64.
pub fn sums_from_tensor(tensor: &Tensor) -> Result<BatchSums> {
    let [loss, correct, samples, interrupts] = tensor.to_vec1::<f64>()?[..] else {
        bail!("four sums expected, got {:?}", tensor.dims());
    };
    let [correct, samples, interrupts] = [correct, samples, interrupts].map(|sum| sum as u64);
    Ok(BatchSums { loss, correct, samples, interrupts })
}
