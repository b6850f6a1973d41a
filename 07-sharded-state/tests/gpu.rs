//! What the gate runs on simulated GPUs, too: freed memory, and every strategy.

use candle_core::{DType, Result, Tensor, Var};
use ops::backward::{backward_from, record_parameter, record_views};
use ops::{conv2d, flatten, linear};
use sharded_state::flat;

use crate::cases::{CASE, Case, Net, Updates};
use crate::device::device;
use crate::numbers::{equals_one_device, strategies, without_recomputation};

/// Whoever reads freed memory gets an error: through the tensor, a clone, a view, and the graph of a backward pass.
#[test]
fn on_each_device_reading_a_freed_parameter_is_an_error() {
    for dtype in [DType::F32, DType::F64] {
        let of = |values: &[f64], shape: &[usize]| -> Result<Tensor> {
            Tensor::new(values, &device())?.to_dtype(dtype)?.reshape(shape)
        };
        let numbers: Vec<f64> = (0..24).map(f64::from).collect();
        let row = record_parameter(&of(&numbers, &[24]).unwrap()).unwrap();
        let shapes = [(4, 3).into(), 3.into(), (1, 1, 3, 3).into()];
        let [weight, bias, kernel] = record_views(&row, &shapes).unwrap().try_into().unwrap();
        let values = row.copy().unwrap();
        let (clone, view) = (weight.clone(), weight.narrow(0, 1, 2).unwrap());
        let x = Var::from_tensor(&of(&numbers[..8], &[2, 4]).unwrap()).unwrap();
        let images = of(&numbers[..16], &[1, 1, 4, 4]).unwrap();
        let y = linear(&x, &weight, &bias).unwrap();
        let reads: Vec<Box<dyn Fn() -> Result<Tensor>>> = vec![
            Box::new(|| clone.copy()),
            Box::new(|| view.to_dtype(DType::F64)),
            Box::new(|| &clone + 1.0),
            Box::new(|| &clone + &clone),
            Box::new(|| clone.sum_all()),
            Box::new(|| x.matmul(&clone)),
            Box::new(|| x.matmul(&weight)),
            Box::new(|| ops::sum(&weight, &weight)),
            Box::new(|| linear(&x, &weight, &bias)),
            Box::new(|| linear(&flatten(&x)?, &weight, &bias)),
            Box::new(|| conv2d(&images, &kernel, None, 1, 0)),
            Box::new(|| row.copy()),
            Box::new(|| {
                let mut found = backward_from(&y, &y.ones_like()?)?;
                found.remove(&x).ok_or_else(|| candle_core::Error::Msg("nothing".to_owned()))
            }),
        ];
        let results = || -> Vec<Result<Vec<f64>>> {
            let reads = reads.iter();
            reads.map(|read| read()?.flatten_all()?.to_dtype(DType::F64)?.to_vec1()).collect()
        };
        let before: Vec<_> = results().into_iter().map(Result::unwrap).collect();
        flat::free(&row).unwrap();
        for (number, result) in results().into_iter().enumerate() {
            // A copy of a byte is a byte, and no number of the parameter.
            assert!(result.is_err(), "{dtype:?}, read {number}: {result:?}");
        }
        // The numbers of a view are in memory that is not its own.
        let all = Tensor::cat(&[&values, &values], 0).unwrap();
        assert!(flat::fill(&row, &all.narrow(0, 24, 24).unwrap()).is_err());
        assert!(flat::fill(&row, &all).is_err());
        flat::fill(&row, &values).unwrap();
        let after: Vec<_> = results().into_iter().map(Result::unwrap).collect();
        assert_eq!(after, before, "{dtype:?}");
        // The row has taken the memory.
        assert!((&values + 1.0).is_err());
    }
}

#[test]
fn on_each_device_every_strategy_equals_one_device() {
    let case = Case { net: Net::Dense(&[6, 9, 7, 10]), samples: 5, steps: 2, ..CASE };
    equals_one_device(&case, strategies(), 1e-10);
    let pooled = Case { net: Net::Pooled, frozen: &[1], samples: 3, ..case };
    equals_one_device(&pooled, without_recomputation(), 1e-10);
    let resnet = Case { net: Net::ResNet18, updates: Updates::Momentum, micro_batches: 1, ..case };
    equals_one_device(&resnet, without_recomputation().skip(2), 1e-8);
}
