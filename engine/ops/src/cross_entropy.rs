//! Cross-entropy, summed over the batch.
//!
//! The loss is the *sum*, not the mean. The sum over a batch is the sum of its shards' sums, even
//! when the shards have different sizes. The one division, by the size of the whole batch, happens
//! in the update. Cost: an exponential for each logit, in one thread.

use candle_core::{D, DType, Result, Storage, Tensor, WithDType, bail};

use super::element::{Element, check_dtype, cpu_memory, for_dtype, lock};
use crate::backward::record;
#[cfg(feature = "cuda")]
use crate::gpu::{Launch, Operand, Source, alloc, blocks_of, on_gpu, tensor};
#[cfg(feature = "cuda")]
use candle_core::Shape;

/// Computes Σ over the batch of −log softmax(logits) at the label: `[B, classes]`, `[B]` (u32) → scalar.
///
/// The largest logit of a row is subtracted before the exponentials, so large logits do not overflow. The gradient of a row
/// is softmax(logits) − one-hot(label). Fails when shapes or types do not fit, and when a label is not below the number of
/// classes, of which there is at least one. A GPU cannot report a wrong label: there the loss becomes NaN.
pub fn cross_entropy(logits: &Tensor, labels: &Tensor) -> Result<Tensor> {
    let (batch, classes) = logits.dims2()?;
    if classes == 0 {
        bail!("cross_entropy: logits need at least one class, got {:?}", logits.dims());
    }
    if labels.dims() != [batch] || labels.dtype() != DType::U32 {
        bail!(
            "cross_entropy: {batch} rows of logits need u32 labels [{batch}], got {:?} {:?}",
            labels.dtype(),
            labels.dims()
        );
    }
    // A GPU would accept bf16 and lose the digits of the sum.
    check_dtype(logits.dtype(), "cross_entropy")?;
    let (logits, labels) = (logits.contiguous()?, labels.contiguous()?);
    let loss = forward(&logits, &labels)?;
    let (of_logits, of_labels) = (logits.clone(), labels.clone());
    record("cross_entropy", loss, (), [&logits, &labels], move |_, dloss| {
        Ok([Some(backward(&of_logits, &of_labels, dloss)?), None])
    })
}

fn forward(logits: &Tensor, labels: &Tensor) -> Result<Storage> {
    #[cfg(feature = "cuda")]
    if logits.device().is_cuda() {
        let loss = on_gpu([logits, labels], |[of_logits, of_labels]| {
            launch("cross_entropy", logits.shape(), of_logits, of_labels)?.compute(1, 1)
        });
        return loss.map(Storage::Cuda);
    }
    let (_, classes) = logits.dims2()?;
    let (logits_memory, labels_memory) = (lock(&[logits]), lock(&[labels]));
    let [labels] = labels_memory.elements::<u32, 1>()?;
    if let Some(label) = labels.iter().find(|&&label| label as usize >= classes) {
        bail!("cross_entropy: label {label} among {classes} classes");
    }
    for_dtype!(logits.dtype(), "cross_entropy", T => {
        let [logits] = logits_memory.elements::<T, 1>()?;
        Ok(cpu_memory(vec![sum_of_losses(logits, labels, classes)]))
    })
}

/// Computes the gradient of the logits from the gradient of the loss.
fn backward(logits: &Tensor, labels: &Tensor, dloss: &Tensor) -> Result<Tensor> {
    #[cfg(feature = "cuda")]
    if logits.device().is_cuda() {
        let operands = [logits, labels, &dloss.contiguous()?];
        let dlogits = on_gpu(operands, |[of_logits, of_labels, dloss]| {
            launch("cross_entropy_gradient", logits.shape(), of_logits, of_labels)?
                .memory(dloss, 1)
                .compute(logits.elem_count(), blocks_of(labels.elem_count()))
        })?;
        return Ok(tensor(dlogits, logits.shape()));
    }
    let (_, classes) = logits.dims2()?;
    let labels = labels.to_vec1::<u32>()?;
    for_dtype!(logits.dtype(), "cross_entropy", T => {
        let upstream = dloss.to_scalar::<T>()?;
        let locked = lock(&[logits]);
        let [of_logits] = locked.elements::<T, 1>()?;
        let dlogits = gradients_of_rows(of_logits, &labels, classes, upstream);
        Tensor::from_vec(dlogits, logits.shape(), logits.device())
    })
}

/// Returns the loss of a batch and the number of rows with their largest logit at the label.
///
/// A scalar, `[B, classes]`, `[B]` (u32) → `[2]` in f64, without a gradient, on the device of `logits`, for which nothing
/// waits. The first of equal logits is the largest, and a NaN is larger than all.
pub fn loss_and_correct(loss: &Tensor, logits: &Tensor, labels: &Tensor) -> Result<Tensor> {
    logits.dims2()?;
    #[cfg(feature = "cuda")]
    if logits.device().is_cuda() {
        let loss = loss.to_dtype(logits.dtype())?;
        let (logits, labels) = (logits.contiguous()?, labels.contiguous()?);
        let sums = on_gpu([&loss, &logits, &labels], |[of_batch, of_logits, of_labels]| {
            let mut sums = alloc(of_logits.gpu(), 2, DType::F64)?;
            launch("loss_and_correct", logits.shape(), of_logits, of_labels)?
                .memory(of_batch, 1)
                .result(&mut sums)
                .run(1)?;
            Ok(sums)
        })?;
        return Ok(tensor(sums, 2));
    }
    let logits = logits.detach();
    // A comparison with a NaN is false, so candle's maximum would skip a NaN.
    let nan = logits.ne(&logits)?;
    let (has_nan, first_nan) = (nan.max(D::Minus1)?, nan.argmax(D::Minus1)?);
    let answers = has_nan.where_cond(&first_nan, &logits.argmax(D::Minus1)?)?;
    let correct = answers.eq(labels)?.to_dtype(DType::F64)?.sum_all()?;
    Tensor::stack(&[loss.detach().to_dtype(DType::F64)?, correct], 0)
}

/// Starts the launch of a kernel with the arguments that all kernels of this file share.
#[cfg(feature = "cuda")]
fn launch<'a>(
    kernel: &'static str,
    shape: &Shape,
    logits: Operand<'a>,
    labels: Operand<'a>,
) -> Result<Launch<'a>> {
    let (rows, classes) = shape.dims2()?;
    Ok(Launch::new(logits.gpu(), Source::CrossEntropy, kernel, logits.dtype())
        .count(rows)
        .count(classes)
        .memory(logits, rows * classes)
        .memory_as(DType::U32, labels, rows))
}

/// Returns a row's largest logit and the sum of exp(logit − largest).
fn normaliser<T: Element>(row: &[T]) -> (T, T) {
    let largest = row.iter().copied().fold(T::neg_infinity(), num_traits::Float::max);
    (largest, row.iter().map(|&logit| (logit - largest).exp()).sum())
}

fn sum_of_losses<T: Element>(logits: &[T], labels: &[u32], classes: usize) -> T {
    let rows = logits.chunks_exact(classes).zip(labels);
    let losses = rows.map(|(row, &label)| {
        let (largest, sum) = normaliser(row);
        sum.ln() - (row[label as usize] - largest)
    });
    // The sum is in f64: a large f32 loses the digits of each small term that is added to it.
    T::from_f64(losses.map(WithDType::to_f64).sum())
}

fn gradients_of_rows<T: Element>(
    logits: &[T],
    labels: &[u32],
    classes: usize,
    upstream: T,
) -> Vec<T> {
    let mut dlogits = Vec::with_capacity(logits.len());
    for (row, &label) in logits.chunks_exact(classes).zip(labels) {
        let (largest, sum) = normaliser(row);
        for (class, &logit) in row.iter().enumerate() {
            let softmax = (logit - largest).exp() / sum;
            let target = if class == label as usize { T::one() } else { T::zero() };
            dlogits.push(upstream * (softmax - target));
        }
    }
    dlogits
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Var};

    use super::*;

    #[test]
    fn an_empty_batch_loses_nothing() {
        let logits = Tensor::zeros((0, 7), DType::F64, &Device::Cpu).unwrap();
        let logits = Var::from_tensor(&logits).unwrap();
        let labels = Tensor::zeros(0, DType::U32, &Device::Cpu).unwrap();
        let loss = cross_entropy(&logits, &labels).unwrap();
        assert_eq!(loss.to_scalar::<f64>().unwrap(), 0.0);
        assert_eq!(loss.backward().unwrap().get(&logits).unwrap().dims(), [0, 7]);
    }

    #[test]
    fn a_loss_in_f32_keeps_its_digits_over_many_samples() {
        let samples = 1 << 20;
        let logits = Tensor::zeros((samples, 10), DType::F32, &Device::Cpu).unwrap();
        let labels = Tensor::zeros(samples, DType::U32, &Device::Cpu).unwrap();
        let loss = cross_entropy(&logits, &labels).unwrap().to_scalar::<f32>().unwrap();
        // Each row's loss has one rounding, and the sum has another.
        let expected = f64::from(10f32.ln()) * samples as f64;
        assert_eq!(loss, expected as f32);
    }

    const LOGITS_NOT_FINITE: [[f64; 3]; 7] = [
        [f64::NAN, 1.0, 2.0],
        [1.0, f64::NAN, 2.0],
        [1.0, f64::INFINITY, f64::NAN],
        [f64::NAN, f64::NAN, f64::NAN],
        [1.0, f64::INFINITY, 2.0],
        [f64::NEG_INFINITY, f64::NEG_INFINITY, f64::NEG_INFINITY],
        [1.0, f64::NEG_INFINITY, 2.0],
    ];

    #[test]
    fn logits_that_are_not_finite_have_the_loss_of_the_formula() {
        for dtype in [DType::F32, DType::F64] {
            for (row, logits) in LOGITS_NOT_FINITE.iter().enumerate() {
                for label in [0u32, 1] {
                    let logits = Tensor::new(&[*logits], &Device::Cpu).unwrap();
                    let logits = Var::from_tensor(&logits.to_dtype(dtype).unwrap()).unwrap();
                    let labels = Tensor::new(&[label], &Device::Cpu).unwrap();
                    let loss = cross_entropy(&logits, &labels).unwrap();
                    let gradients = loss.backward().unwrap();
                    let wide = |tensor: &Tensor| tensor.to_dtype(DType::F64).unwrap();
                    let loss = wide(&loss).to_scalar::<f64>().unwrap();
                    let gradient = wide(gradients.get(&logits).unwrap());
                    let gradient = gradient.get(0).unwrap().to_vec1::<f64>().unwrap();
                    // Every row but the last gives NaN. In the last row the logit −∞ has
                    // probability 0 and does not change the other classes.
                    if row < 6 {
                        assert!(loss.is_nan(), "{loss}");
                        assert!(gradient.iter().all(|gradient| gradient.is_nan()), "{gradient:?}");
                        continue;
                    }
                    let others = [1.0, 0.0, 1f64.exp()].map(|of| of / (1.0 + 1f64.exp()));
                    let expected = if label == 0 { -others[0].ln() } else { f64::INFINITY };
                    assert!(loss == expected || (loss - expected).abs() < 1e-6, "{loss}");
                    for (class, (found, softmax)) in gradient.iter().zip(others).enumerate() {
                        let expected = softmax - if class as u32 == label { 1.0 } else { 0.0 };
                        assert!((found - expected).abs() < 1e-6, "{gradient:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_nan_is_the_largest_logit() {
        // These are the answers of `torch.argmax`.
        let answers = Tensor::new(&[0u32, 1, 2, 0, 1, 0, 2], &Device::Cpu).unwrap();
        let loss = Tensor::new(0.5, &Device::Cpu).unwrap();
        for dtype in [DType::BF16, DType::F32, DType::F64] {
            let logits = Tensor::new(&LOGITS_NOT_FINITE, &Device::Cpu).unwrap();
            let logits = logits.to_dtype(dtype).unwrap();
            let counted = loss_and_correct(&loss, &logits, &answers).unwrap();
            assert_eq!(counted.to_vec1::<f64>().unwrap(), [0.5, 7.0], "{dtype:?}");
        }
    }

    #[test]
    fn what_has_no_loss_is_refused_in_words() {
        let zeros = |shape: &[usize], dtype| Tensor::zeros(shape, dtype, &Device::Cpu).unwrap();
        for (logits, labels, complaint) in [
            (zeros(&[2, 0], DType::F32), zeros(&[2], DType::U32), "at least one class"),
            (zeros(&[0, 0], DType::F32), zeros(&[0], DType::U32), "at least one class"),
            (zeros(&[2, 3], DType::BF16), zeros(&[2], DType::U32), "f32 and f64, not on BF16"),
            (zeros(&[2, 3], DType::F32), zeros(&[3], DType::U32), "u32 labels [2]"),
        ] {
            let error = cross_entropy(&logits, &labels).unwrap_err().to_string();
            assert!(error.contains(complaint), "{error}");
        }
    }
}
