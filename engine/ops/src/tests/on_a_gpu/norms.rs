//! Tests of batch normalisation, whole and in its four pieces.

use candle_core::{DType, Device, Tensor};
use itertools::Itertools as _;

use super::kernels::{KERNELS, rounded_noise};
use super::*;
use crate::batch_norm::{OutputGradient, Statistics};

#[test]
fn a_gpu_normalises_batches() {
    for shape in [[6, 5, 9, 7], [70, 3, 14, 14], [4, 300, 1, 1]] {
        let shapes: [&[usize]; 3] = [&shape, &shape[1..2], &shape[1..2]];
        for relu in [false, true] {
            // Parameters are f32 if the images are bf16.
            let of_channels = |t: &Tensor| cast(t, computed_in(t.dtype()));
            assert_same("batch_norm", &TYPES, &shapes, &|t| {
                Ok(batch_norm(t[0], &of_channels(t[1])?, &of_channels(t[2])?, 1e-3, relu)?.0)
            });
            assert_same("batch_norm_with", &TYPES, &shapes, &|t| {
                let given = noise("given", &[2, shape[1], 3, 3]).as_detached_tensor();
                let given = Statistics::of(&given.to_device(t[0].device())?)?;
                let (weight, bias) = (of_channels(t[1])?, of_channels(t[2])?);
                batch_norm_with(t[0], &weight, &bias, &given, 1e-3, relu)
            });
        }
    }
}

#[test]
fn a_gpu_passes_on_a_gradient_behind_given_statistics_whatever_the_input() {
    if let Some(gpu) = gpu() {
        crate::batch_norm::tests::assert_given_statistics_are_constants(&gpu);
    }
}

/// The first value of a part is the one that distances are taken from.
#[test]
fn a_gpu_finds_the_mean_of_an_infinity() {
    let Some(gpu) = gpu() else { return };
    for place in [0, 5] {
        for value in [f64::INFINITY, f64::NEG_INFINITY, f64::NAN] {
            let mut x = [0.5, 1.0, 0.25, -1.0, 2.0, 0.125, 1.5, -2.0];
            x[place] = value;
            let x = Tensor::new(&x, &gpu).unwrap().reshape((1, 1, 2, 4)).unwrap();
            for dtype in [DType::F32, DType::F64] {
                let Statistics { mean, variance, .. } =
                    Statistics::of(&x.to_dtype(dtype).unwrap()).unwrap();
                let mean = mean.to_vec1::<f64>().unwrap()[0];
                assert!(mean == value || mean.is_nan() && value.is_nan(), "{mean} for {value}");
                assert!(variance.to_vec1::<f64>().unwrap()[0].is_nan());
            }
        }
    }
}

#[test]
fn a_gpu_normalises_images_of_more_parts_than_a_block_has_threads() {
    // A channel with 258 parts.
    let shapes: [&[usize]; 3] = [&[168, 1, 112, 112], &[1], &[1]];
    assert_same("batch_norm", &TYPES[1..2], &shapes, &|t| {
        Ok(batch_norm(t[0], t[1], t[2], 1e-3, true)?.0)
    });
}

#[test]
fn a_gpu_normalises_images_from_wherever_they_begin() {
    const SHAPE: [usize; 4] = [2, 3, 2, 2];
    let elements = SHAPE.iter().product();
    // A start one element after an aligned one.
    let behind = |t: &Tensor| t.narrow(0, 1, elements)?.reshape(&SHAPE);
    let shapes: [&[usize]; 3] = [&[1 + elements], &[3], &[3]];
    assert_same("batch_norm", WIDE, &shapes, &|t| {
        Ok(batch_norm(&behind(t[0])?, t[1], t[2], 1e-3, true)?.0)
    });
    let Some(gpu) = gpu() else { return };
    let pieces = |device: &Device| {
        let images = |name: &str| noise(name, &[1 + elements]).as_detached_tensor();
        let images = |name: &str| behind(&images(name).to_device(device)?);
        let (x, y, grad) = (images("x")?, images("y")?, images("grad")?);
        let weight = noise("weight", &[3]).as_detached_tensor().to_device(device)?;
        let statistics = Statistics::of(&x)?;
        let dy = OutputGradient::new(&x, Some(&y), &grad)?;
        let sums = dy.sums(&statistics, 1e-3)?;
        let dx = dy.of_input(&weight, &statistics, &sums, 1e-3)?;
        Ok::<_, candle_core::Error>([sums, dx])
    };
    for (found, expected) in pieces(&gpu).unwrap().iter().zip(pieces(&Device::Cpu).unwrap()) {
        let found = found.to_device(&Device::Cpu).unwrap();
        assert!(relative_difference(&found, &expected).unwrap() <= 1e-12);
    }
}

/// Planes of single elements and of vectors; one part, and several.
const SHAPES: [[usize; 4]; 6] =
    [[3, 4, 5, 3], [5, 1, 1, 1], [3, 2, 71, 61], [3, 4, 5, 4], [3, 2, 72, 61], [33, 1, 64, 64]];

#[test]
fn a_gpu_normalises_in_four_pieces() {
    let Some(gpu) = gpu() else { return };
    for (((dtype, bound), shape), with_relu) in
        KERNELS.into_iter().cartesian_product(SHAPES).cartesian_product([false, true])
    {
        if !has(dtype) {
            continue;
        }
        let epsilon = 1e-5;
        // Channels whose mean is large relative to their deviation: f32 has four digits left for
        // the deviation.
        let mean = if dtype == DType::F32 { 10_000.123_456_789 } else { 0.5 };
        let x = (noise("x", &shape).as_detached_tensor() + mean).unwrap().to_dtype(dtype).unwrap();
        let of_channels = |name| rounded_noise(name, &shape[1..2], computed_in(dtype));
        let inputs = [x, of_channels("weight"), of_channels("bias")];
        let upstream = rounded_noise("upstream", &shape, dtype);
        // Output and gradients for the batch's own statistics, and for given statistics of the same
        // values that have no gradient.
        let whole = |device: &Device, wide: bool, given: Option<&Statistics>| {
            let there = |tensor: &Tensor| {
                let dtype = if wide { DType::F64 } else { tensor.dtype() };
                tensor.to_dtype(dtype)?.to_device(device)
            };
            let inputs = inputs.iter().map(|input| Var::from_tensor(&there(input)?));
            let inputs: Vec<Var> = inputs.collect::<Result<_>>()?;
            let [x, weight, bias] = [0, 1, 2].map(|nth| inputs[nth].as_tensor());
            let y = match given {
                None => batch_norm(x, weight, bias, epsilon, with_relu)?.0,
                Some(given) => batch_norm_with(x, weight, bias, given, epsilon, with_relu)?,
            };
            let found = backward_from(&y, &there(&upstream)?)?;
            let gradients = inputs.iter().filter_map(|input| found.get(input).cloned());
            Ok::<_, candle_core::Error>(std::iter::once(y.clone()).chain(gradients).collect_vec())
        };
        let name = format!("batch_norm {shape:?} {dtype:?} relu: {with_relu}");
        let close = |what: &str, found: &Tensor, expected: &Tensor| {
            assert_close(&format!("{name}, {what}"), found, expected, bound);
        };
        let compare = |given: Option<[&Statistics; 2]>| {
            let found = whole(&gpu, false, given.map(|[there, _]| there)).unwrap();
            let expected = whole(&Device::Cpu, true, given.map(|[_, here]| here)).unwrap();
            let what = ["output", "gradient of x", "of weight", "of bias"];
            for (what, (found, expected)) in what.iter().zip(found.iter().zip_eq(&expected)) {
                close(what, found, expected);
            }
            assert_eq!([1, 2].map(|nth| found[nth].dtype()), [dtype, computed_in(dtype)]);
            (found, expected)
        };
        let (found, expected) = compare(None);

        let there = |tensor: &Tensor| tensor.to_device(&gpu).unwrap();
        let (x, weight, grad) = (there(&inputs[0]), there(&inputs[1]), there(&upstream));
        let statistics = Statistics::of(&x).unwrap();
        let exact = Statistics::of(&inputs[0].to_dtype(DType::F64).unwrap()).unwrap();
        close("mean", &statistics.mean, &exact.mean);
        close("variance", &statistics.variance, &exact.variance);
        compare(Some([&statistics, &exact]));

        let dy = OutputGradient::new(&x, with_relu.then_some(&found[0]), &grad).unwrap();
        let sums = dy.sums(&statistics, epsilon).unwrap();
        close("sum for the bias", &sums.get(0).unwrap(), &expected[3]);
        close("sum for the weight", &sums.get(1).unwrap(), &expected[2]);
        let dx = dy.of_input(&weight, &statistics, &sums, epsilon).unwrap();
        close("gradient in pieces", &dx, &expected[1]);
    }
}
