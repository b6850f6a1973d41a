//! For tests: updates on a GPU are those of the CPU, to the last bit.

use candle_core::{DType, Device, Result, Tensor, Var};

use super::gpu;
use crate::agreement::noise;
use crate::parameters::overwrite_rounded;
use crate::sgd_step::{descend, descend_all, push_on_gpu};

#[test]
fn a_gpu_updates_in_place() {
    let Some(gpu) = gpu() else { return };
    for dtype in [DType::F32, DType::F64] {
        let updated = |device: &Device| {
            let [value, gradient] = ["value", "gradient"].map(|name| {
                noise(name, &[70, 31]).as_detached_tensor().to_dtype(dtype)?.to_device(device)
            });
            let value = Var::from_tensor(&value?)?;
            descend(&value, &gradient?.t()?.contiguous()?.t()?, 0.1 / 7.0)?;
            value.to_dtype(DType::F64)?.flatten_all()?.to_vec1::<f64>()
        };
        // To the last bit: the kernel rounds where the CPU does.
        assert_eq!(updated(&gpu).unwrap(), updated(&Device::Cpu).unwrap(), "{dtype:?}");
    }
}

/// Eleven tensors: a launch of eight, one of two, and the halves of one tensor, which must not share a launch. Of
/// gradients one is not contiguous.
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
            descend_all(values.iter().zip(&scattered("gradient", dtype, device)?), 0.1 / 7.0)?;
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
        push_on_gpu(&slots, [momentum, share, decay, rate]).unwrap();
        for (found, expected) in updated.iter().zip(&formula) {
            assert_eq!(numbers(found).unwrap(), numbers(expected).unwrap(), "{dtype:?}");
        }
    }
}

#[test]
fn a_gpu_rounds_several_tensors_at_once() {
    let Some(gpu) = gpu() else { return };
    for dtype in [DType::F32, DType::F64, DType::BF16] {
        if dtype == DType::BF16 && !super::has(dtype) {
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
