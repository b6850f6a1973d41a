//! Tests that updates on a GPU equal updates on the CPU, to the last bit.

use candle_core::{DType, Device, Result, Tensor, Var};
use itertools::Itertools as _;

use super::kernels::{KERNELS, rounded_noise};
use super::{assert_close, gpu, has};
use crate::gpu::update;
use crate::parameters::overwrite_rounded;
use crate::sgd_step::{momentum_step, sgd_step, sgd_step_all};
use crate::tests::agreement::noise;

#[test]
fn a_gpu_updates_in_place() {
    let Some(gpu) = gpu() else { return };
    for dtype in [DType::F32, DType::F64] {
        let updated = |device: &Device| {
            let [value, gradient] = ["value", "gradient"].map(|name| {
                noise(name, &[70, 31]).as_detached_tensor().to_dtype(dtype)?.to_device(device)
            });
            let value = Var::from_tensor(&value?)?;
            sgd_step(&value, &gradient?.t()?.contiguous()?.t()?, 0.1 / 7.0)?;
            value.to_dtype(DType::F64)?.flatten_all()?.to_vec1::<f64>()
        };
        // The kernel rounds at the same places as the CPU, so the results are equal to the last
        // bit.
        assert_eq!(updated(&gpu).unwrap(), updated(&Device::Cpu).unwrap(), "{dtype:?}");
    }
}

/// Makes eleven tensors: a launch of eight, and three more with the halves of one tensor, which must not share a launch.
///
/// One of the gradients is not contiguous.
fn scattered(name: &str, dtype: DType, device: &Device) -> Result<Vec<Tensor>> {
    let of = |nth: usize, rows: usize| {
        let shape = [rows, 2, 3 + 20 * nth];
        let noise = noise(&format!("{name} {nth}"), &shape).as_detached_tensor();
        noise.to_dtype(dtype)?.to_device(device)
    };
    let mut tensors = (0..9).map(|nth| of(nth, 1)).collect::<Result<Vec<_>>>()?;
    if name == "gradient" {
        tensors[2] = tensors[2].t()?.contiguous()?.t()?;
    }
    let whole = of(9, 2)?;
    tensors.extend([whole.get(0)?, whole.get(1)?]);
    Ok(tensors)
}

fn numbers(tensors: &[Tensor]) -> Result<Vec<Vec<f64>>> {
    let numbers = |tensor: &Tensor| tensor.to_dtype(DType::F64)?.flatten_all()?.to_vec1();
    tensors.iter().map(numbers).collect()
}

#[test]
fn a_gpu_updates_several_tensors_at_once() {
    let Some(gpu) = gpu() else { return };
    for dtype in [DType::F32, DType::F64] {
        let updated = |device: &Device| {
            let values = scattered("value", dtype, device)?;
            sgd_step_all(values.iter().zip(&scattered("gradient", dtype, device)?), 0.1 / 7.0)?;
            numbers(&values)
        };
        let found = updated(&gpu).unwrap();
        assert_eq!(found, updated(&Device::Cpu).unwrap(), "{dtype:?}");
        assert_ne!(found, numbers(&scattered("value", dtype, &gpu).unwrap()).unwrap());
    }
}

#[test]
fn a_gpu_pushes_several_tensors_at_once() {
    let Some(gpu) = gpu() else { return };
    let [momentum, share, decay, rate] = [0.9, 0.25, 1e-2, 0.1];
    for dtype in [DType::F32, DType::F64] {
        let tensors = |device: &Device| {
            ["velocity", "value", "gradient"].map(|name| scattered(name, dtype, device).unwrap())
        };
        let mut formula = tensors(&Device::Cpu);
        let [velocities, values, gradients] = &mut formula;
        for ((velocity, value), gradient) in velocities.iter_mut().zip(values).zip(gradients) {
            let pull = ((&*gradient * share).unwrap() + (&*value * decay).unwrap()).unwrap();
            *velocity = ((&*velocity * momentum).unwrap() + pull).unwrap();
            *value = (&*value - (&*velocity * rate).unwrap()).unwrap();
        }
        let updated = tensors(&gpu);
        let [velocities, values, gradients] = &updated;
        let slots = velocities.iter().zip(values).zip(gradients);
        let slots: Vec<_> = slots.map(|((velocity, value), g)| [velocity, value, g]).collect();
        momentum_step(&slots, [momentum, share, decay, rate]).unwrap();
        for (found, expected) in updated.iter().zip(&formula) {
            assert_eq!(numbers(found).unwrap(), numbers(expected).unwrap(), "{dtype:?}");
        }
    }
}

#[test]
fn a_gpu_rounds_several_tensors_at_once() {
    let Some(gpu) = gpu() else { return };
    for dtype in [DType::F32, DType::F64, DType::BF16] {
        if dtype == DType::BF16 && !has(dtype) {
            eprintln!("SKIPPED: this GPU has no bf16");
            continue;
        }
        let rounded = |device: &Device| {
            let used = scattered("used", dtype, device)?;
            let kept = scattered("kept", DType::F32, device)?;
            overwrite_rounded(&used.iter().zip(&kept).collect::<Vec<_>>())?;
            numbers(&used)
        };
        let found = rounded(&gpu).unwrap();
        assert_eq!(found, rounded(&Device::Cpu).unwrap(), "{dtype:?}");
    }
}

/// Makes several tensors of different sizes, each the second row of its memory.
fn second_rows(name: &str, count: usize, dtype: DType) -> Vec<Tensor> {
    let rows = (0..count)
        .map(|nth| rounded_noise(&format!("{name} {nth}"), &[2, 2 * 256 + 3 - 70 * nth], dtype));
    rows.collect()
}

/// Asserts that `update` changes second rows on a GPU as `expected` computes them, and leaves first rows unchanged.
///
/// The arguments of `update` and `expected` are the tensors that change and the tensors that are
/// read. The two groups differ in type.
fn assert_updates<const N: usize>(
    changed: [&str; N],
    read_as: Option<DType>,
    update: impl Fn([Vec<Tensor>; N], &[Tensor]) -> Result<()>,
    expected: impl Fn(usize, [Tensor; N], Tensor) -> Result<[Tensor; N]>,
) {
    let Some(gpu) = gpu() else { return };
    for ((dtype, bound), count) in KERNELS.into_iter().cartesian_product([1, 2, 4, 8]) {
        if !has(dtype) {
            continue;
        }
        let bound = if read_as == Some(DType::F32) { 0.0 } else { bound };
        let there = |tensors: &[Tensor]| -> Vec<Tensor> {
            tensors.iter().map(|tensor| tensor.to_device(&gpu).unwrap()).collect()
        };
        let second = |tensors: &[Tensor]| -> Vec<Tensor> {
            tensors.iter().map(|tensor| tensor.get(1).unwrap()).collect()
        };
        let before = changed.map(|name| second_rows(name, count, dtype));
        let read = second_rows("read", count, read_as.unwrap_or(dtype));
        let found = before.each_ref().map(|tensors| there(tensors));
        update(found.each_ref().map(|tensors| second(tensors)), &second(&there(&read))).unwrap();
        for nth in 0..count {
            let exact = |tensor: &Tensor| tensor.to_dtype(DType::F64).unwrap();
            let rows = before.each_ref().map(|tensors| exact(&tensors[nth].get(1).unwrap()));
            let expected = expected(nth, rows, exact(&read[nth].get(1).unwrap())).unwrap();
            for ((found, before), expected) in found.iter().zip(&before).zip(expected) {
                let name = format!("{changed:?} {dtype:?}, {nth} of {count}");
                let row = |of: &[Tensor], row| of[nth].get(row).unwrap();
                assert_eq!(found[nth].dtype(), dtype);
                assert_close(&name, &row(found, 0), &row(before, 0), 0.0);
                let expected =
                    if bound == 0.0 { expected.to_dtype(dtype).unwrap() } else { expected };
                assert_close(&name, &row(found, 1), &expected, bound);
            }
        }
    }
}

fn combined([a, b]: [f64; 2], x: &Tensor, y: &Tensor) -> Result<Tensor> {
    (x * a)? + (y * b)?
}

#[test]
fn a_gpu_updates_along_gradients_in_one_launch() {
    let step = 0.1 / 7.0;
    assert_updates(
        ["value"],
        None,
        |[values], gradients| update::sgd_step(&values.iter().zip(gradients).collect_vec(), step),
        |_, [value], gradient| Ok([combined([1.0, -step], &value, &gradient)?]),
    );
}

#[test]
fn a_gpu_pushes_velocities_and_values_in_one_launch() {
    let [momentum, share, decay, rate] = [0.9, 0.25, 1e-2, 0.1];
    assert_updates(
        ["velocity", "value"],
        None,
        |[velocities, values], gradients| {
            let triples = velocities.iter().zip(&values).zip(gradients);
            let triples = triples.map(|((velocity, value), gradient)| [velocity, value, gradient]);
            update::momentum_step(&triples.collect_vec(), [momentum, share, decay, rate])
        },
        |_, [velocity, value], gradient| {
            let pull = combined([share, decay], &gradient, &value)?;
            let velocity = combined([momentum, 1.0], &velocity, &pull)?;
            let value = combined([1.0, -rate], &value, &velocity)?;
            Ok([velocity, value])
        },
    );
}

/// The results equal candle's rounding on the CPU, to the last bit.
#[test]
fn a_gpu_rounds_tensors_in_one_launch() {
    assert_updates(
        ["used"],
        Some(DType::F32),
        |[used], kept| update::cast(&used.iter().zip(kept).collect_vec()),
        |_, _, kept| Ok([kept]),
    );
}

#[test]
fn a_gpu_updates_running_averages_in_one_launch() {
    let scale = |nth: usize| 1.0 + 0.25 * nth as f64;
    assert_updates(
        ["running"],
        Some(DType::F64),
        |[running], fresh| {
            let averages = running.iter().zip(fresh).enumerate();
            let averages = averages.map(|(nth, (running, fresh))| (running, fresh, scale(nth)));
            update::average(&averages.collect_vec(), 0.1)
        },
        |nth, [running], fresh| Ok([combined([0.9, 0.1 * scale(nth)], &running, &fresh)?]),
    );
}

#[test]
fn a_gpu_updates_nothing_with_what_does_not_fit() {
    let Some(gpu) = gpu() else { return };
    let there = |name| rounded_noise(name, &[2, 30], DType::F32).to_device(&gpu).unwrap();
    let (value, gradient) = (there("value"), there("gradient"));
    let refused = |value: &Tensor, gradient: &Tensor| {
        update::sgd_step(&[(value, gradient)], 0.1).unwrap_err().to_string()
    };
    let error = refused(&value, &gradient.get(1).unwrap());
    assert!(error.contains("expected 30 elements of F32, got 60 of F32"), "{error}");
    let error = refused(&value.to_dtype(DType::F64).unwrap(), &gradient);
    assert!(error.contains("expected 60 elements of F64, got 60 of F32"), "{error}");
    let error = refused(&value.t().unwrap(), &gradient);
    assert!(error.contains("contiguous"), "{error}");
    let error = refused(&value.get(0).unwrap(), &value.get(1).unwrap());
    assert!(error.contains("shares its memory"), "{error}");
    assert_close("value", &value, &rounded_noise("value", &[2, 30], DType::F32), 0.0);
}
