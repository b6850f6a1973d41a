//! All-reduce: every rank contributes a tensor, every rank gets the sum.

mod naive;

use candle_core::Tensor;
use single_gpu::report::trace::COMMUNICATION;
use tracing::info_span;

pub use naive::naive;

use crate::communicator::{Communicator, Error};

/// The sum of all ranks' tensors, on every rank.
///
/// All ranks call this together, with tensors of one shape and element type. The tensor that went in is
/// left as it was. Every rank gets the same bits.
///
/// # Errors
///
/// When the tensors differ in shape or type, or another rank stops or stalls.
pub fn allreduce(communicator: &impl Communicator, tensor: &Tensor) -> Result<Tensor, Error> {
    let bytes = tensor.elem_count() * tensor.dtype().size_in_bytes();
    let shape = tensor.dims();
    let _span = info_span!(target: COMMUNICATION, "all-reduce", bytes, ?shape).entered();
    naive(communicator, tensor)
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;
    use std::time::Duration;

    use candle_core::{DType, Device, Tensor};
    use single_gpu::device::{DeviceKind, DevicePlan};

    use super::*;
    use crate::thread::run_ranks;

    /// Values that are whole numbers, so that every order of adding gives the same sum.
    fn contribution(rank: usize, len: usize) -> Vec<f64> {
        (0..len).map(|i| ((rank + 1) * (i + 2) % 17) as f64).collect()
    }

    #[test]
    fn every_rank_gets_the_sum() {
        for ranks in [1, 2, 3, 4, 7] {
            for shape in [vec![], vec![1], vec![0], vec![5], vec![2, 3, 4]] {
                let len = shape.iter().product();
                let plan = DevicePlan::new(DeviceKind::Cpu, ranks, NonZeroUsize::new(1)).unwrap();
                let shape = &shape;
                let sums = run_ranks(&plan, Duration::from_secs(20), |rank| {
                    let mine = contribution(rank.rank(), len);
                    let mine = Tensor::from_vec(mine, shape.as_slice(), &Device::Cpu)?;
                    let sum = allreduce(rank, &mine)?;
                    assert_eq!(sum.dims(), shape.as_slice());
                    Ok::<_, Error>(sum.flatten_all()?.to_vec1::<f64>()?)
                })
                .unwrap();
                let expected: Vec<f64> = (0..len)
                    .map(|i| (0..ranks).map(|rank| contribution(rank, len)[i]).sum())
                    .collect();
                for (rank, sum) in sums.iter().enumerate() {
                    assert_eq!(sum, &expected, "rank {rank} of {ranks}, shape {shape:?}");
                }
            }
        }
    }

    #[test]
    fn what_goes_in_is_left_alone() {
        let plan = DevicePlan::new(DeviceKind::Cpu, 3, NonZeroUsize::new(1)).unwrap();
        run_ranks(&plan, Duration::from_secs(20), |rank| {
            let mine = Tensor::full(rank.rank() as f32, 4, &Device::Cpu)?;
            allreduce(rank, &mine)?;
            assert_eq!(mine.to_vec1::<f32>()?, [rank.rank() as f32; 4]);
            Ok::<_, Error>(())
        })
        .unwrap();
    }

    #[test]
    fn tensors_that_differ_are_refused() {
        let plan = DevicePlan::new(DeviceKind::Cpu, 2, NonZeroUsize::new(1)).unwrap();
        let failure = run_ranks(&plan, Duration::from_secs(20), |rank| {
            let mine = Tensor::zeros(4 + rank.rank(), DType::F32, &Device::Cpu)?;
            allreduce(rank, &mine)
        })
        .unwrap_err();
        let message = failure.to_string();
        assert!(message.contains("rank 1 sent") && message.contains("[5]"), "{message}");
    }
}
