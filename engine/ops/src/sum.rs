//! The sum of two tensors, without a backward.
//!
//! It adds up two gradients of a tensor with two uses, losses, and the tensors of several devices.
//!
//! candle adds with the threads of its own pool. [`prepare`](harness::cli::prepare) leaves that
//! pool at one thread, because the devices would share it. This function adds with the threads of
//! the device. A caller outside the device's threads adds in its own thread. DDP's thread that adds
//! up buckets is such a caller: it must not wait for the device's threads, because they wait for
//! its sums.
//!
//! On a GPU, three in four of the threads that candle starts have nothing to add. Before candle's
//! first addition the GPU's driver also translates all of candle's operations of two tensors,
//! unless it has kept them from an earlier program. The translation took nine seconds on an H200.
//!
//! Cost: two elements are read and one is written.

use candle_core::{DType, Result, Tensor};

use super::element::{for_dtype, lock};
use super::zeros::of_two;
#[cfg(feature = "cuda")]
use crate::gpu::{self, elementwise, on_gpu};

/// Computes a + b by element, for tensors of the same shape and type. The sum carries no gradient.
///
/// # Errors
///
/// When shapes or types differ.
pub fn sum(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let on_a_gpu = a.device().is_cuda();
    let ours = match a.dtype() {
        DType::F32 | DType::F64 => true,
        DType::BF16 => on_a_gpu,
        _ => false,
    };
    if !ours || a.shape() != b.shape() || a.dtype() != b.dtype() {
        return a.detach() + b.detach();
    }
    let (a, b) = (a.contiguous()?, b.contiguous()?);
    #[cfg(feature = "cuda")]
    if on_a_gpu {
        let sum = on_gpu([&a, &b], |operands| elementwise("sum", operands))?;
        return Ok(gpu::tensor(sum, a.shape()));
    }
    for_dtype!(a.dtype(), "sum", T => {
        let locked = lock(&[&a, &b]);
        let [of_a, of_b] = locked.elements::<T, 2>()?;
        Tensor::from_vec(of_two(of_a, of_b, |a, b| a + b), a.shape(), a.device())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BLOCK;
    use crate::tests::agreement::noise;

    #[test]
    fn sums_are_candles_to_the_last_bit() {
        for (dtype, rows) in [(DType::F32, BLOCK), (DType::F64, 3)] {
            let of = |name| {
                noise(name, &[rows, 5]).as_detached_tensor().to_dtype(dtype).expect("a type")
            };
            let (a, b) = (of("a"), of("b"));
            // One tensor is transposed.
            for b in [b.clone(), b.t().unwrap().contiguous().unwrap().t().unwrap()] {
                let (found, expected) = (sum(&a, &b).unwrap(), (&a + &b).unwrap());
                assert_eq!((found.dims(), found.dtype()), (a.dims(), dtype));
                let bits = |sums: &Tensor| {
                    let wide = sums.to_dtype(DType::F64).unwrap();
                    let numbers = wide.flatten_all().unwrap().to_vec1::<f64>().unwrap();
                    numbers.into_iter().map(f64::to_bits).collect::<Vec<_>>()
                };
                assert_eq!(bits(&found), bits(&expected));
            }
        }
    }

    #[test]
    fn a_type_that_operations_round_to_is_added_too() {
        let ones = Tensor::ones((2, 3), DType::BF16, &candle_core::Device::Cpu).unwrap();
        let twos = sum(&ones, &ones).unwrap();
        assert_eq!((twos.dims(), twos.dtype()), ([2, 3].as_slice(), DType::BF16));
        let total = twos.to_dtype(DType::F64).unwrap().sum_all().unwrap();
        assert_eq!(total.to_scalar::<f64>().unwrap(), 12.0);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let error = sum(&noise("a", &[2, 3]), &noise("b", &[3])).unwrap_err().to_string();
        assert!(error.contains("shape mismatch"), "{error}");
    }
}
