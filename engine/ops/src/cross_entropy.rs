//! Cross-entropy, *summed* over the batch: the sum over a batch is the sum of its shards' sums, whatever their sizes. The
//! update divides once, by the size of the whole batch. Cost: an exponential for each logit, in one thread.

use candle_core::{D, DType, Result, Tensor, WithDType, bail};

use crate::backward::record;
use crate::kernels::element::{Element, by_device, check_dtype, cpu_memory, tensor};
use crate::kernels::gpu;

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
        let (dtype, dims) = (labels.dtype(), labels.dims());
        bail!(
            "cross_entropy: {batch} rows of logits need u32 labels [{batch}], got {dtype:?} {dims:?}"
        );
    }
    // A GPU would accept bf16 and lose the digits of the sum.
    check_dtype(logits.dtype(), "cross_entropy")?;
    let (logits, labels) = (&logits.contiguous()?, &labels.contiguous()?);
    let loss = by_device!("cross_entropy", |logits| gpu::cross_entropy(logits, labels)?, {
        let labels = labels.to_vec1::<u32>()?;
        if let Some(label) = labels.iter().find(|&&label| label as usize >= classes) {
            bail!("cross_entropy: label {label} among {classes} classes");
        }
        cpu_memory(vec![sum_of_losses(logits, &labels, classes)])
    });
    let (of_logits, of_labels) = (logits.clone(), labels.clone());
    record("cross_entropy", loss, (), [logits, labels], move |_, dloss| {
        let (logits, labels, dloss) = (&of_logits, &of_labels, &dloss.contiguous()?);
        let on_gpu = || gpu::cross_entropy_gradient(logits, labels, dloss);
        let dlogits = by_device!("cross_entropy", |logits| on_gpu()?, {
            let labels = labels.to_vec1()?;
            let dlogits = gradients_of_rows(logits, &labels, classes, dloss.to_scalar()?);
            tensor(cpu_memory(dlogits), (batch, classes))
        });
        Ok([Some(dlogits), None])
    })
}

/// Returns the loss of a batch and the number of rows with their largest logit at the label.
///
/// A scalar, `[B, classes]`, `[B]` (u32) → `[2]` in f64, without a gradient, on the device of `logits`, for which nothing
/// waits. The first of equal logits is the largest, and a NaN is larger than all.
pub fn loss_and_correct(loss: &Tensor, logits: &Tensor, labels: &Tensor) -> Result<Tensor> {
    logits.dims2()?;
    if logits.device().is_cuda() {
        let loss = loss.to_dtype(logits.dtype())?;
        return gpu::loss_and_correct(&loss, &logits.contiguous()?, &labels.contiguous()?);
    }
    let logits = logits.detach();
    // A comparison with a NaN is false, so candle's maximum would skip a NaN.
    let nan = logits.ne(&logits)?;
    let (has_nan, first_nan) = (nan.max(D::Minus1)?, nan.argmax(D::Minus1)?);
    let answers = has_nan.where_cond(&first_nan, &logits.argmax(D::Minus1)?)?;
    let correct = answers.eq(labels)?.to_dtype(DType::F64)?.sum_all()?;
    Tensor::stack(&[loss.detach().to_dtype(DType::F64)?, correct], 0)
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
    use crate::tests::agreement::{FEW, MANY, assert_agree, device, has, noises, there};

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
    fn a_class_that_is_impossible_has_an_infinite_loss_and_the_gradient_of_the_formula() {
        let logits = Var::new(&[[1.0, f64::NEG_INFINITY, 2.0]], &Device::Cpu).unwrap();
        let loss = cross_entropy(&logits, &Tensor::new(&[1u32], &Device::Cpu).unwrap()).unwrap();
        assert_eq!(loss.to_scalar::<f64>().unwrap(), f64::INFINITY);
        let gradient = loss.backward().unwrap().get(&logits).unwrap().to_vec2::<f64>().unwrap();
        assert_eq!(gradient[0][1], -1.0);
        assert!((gradient[0][2] - 1.0 / (1.0 + (-1f64).exp())).abs() < 1e-12);
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
    fn the_largest_logit_is_the_answer_in_every_type() {
        const NAN: f64 = f64::NAN;
        // One row has two largest logits, of which the first counts. In some rows a NaN counts as the largest.
        let logits = [
            [0.5, 2.0, -1.0],
            [0.0, 1.0, 3.0],
            [4.0, 1.0, 3.0],
            [2.0, 1.0, 2.0],
            [1.0, NAN, f64::INFINITY],
            [NAN, 1.0, NAN],
        ];
        let rows = logits.into_iter().chain(LOGITS_NOT_FINITE).collect::<Vec<_>>();
        let tensor = Tensor::new(rows.concat(), &Device::Cpu).unwrap().reshape(((), 3)).unwrap();
        // These are the answers of `torch.argmax`.
        let answers = [1u32, 2, 0, 0, 1, 0, 0, 1, 2, 0, 1, 0, 2];
        let others =
            [[0, 2, 0, 2, 2, 0], [2, 0, 1, 1, 0, 2]].map(|of| [&of, &answers[6..]].concat());
        let [some, none] = others;
        for (dtype, _) in MANY.into_iter().filter(|&(dtype, _)| has(dtype)) {
            let loss = there(&Tensor::new(0.75, &Device::Cpu).unwrap(), dtype);
            for (labels, right) in
                [(answers.to_vec(), 13.0), (some.clone(), 10.0), (none.clone(), 7.0)]
            {
                let labels = Tensor::new(labels, &device()).unwrap();
                let counted = loss_and_correct(&loss, &there(&tensor, dtype), &labels).unwrap();
                assert_eq!(counted.to_vec1::<f64>().unwrap(), [0.75, right], "{dtype:?}");
            }
        }
    }

    #[test]
    fn it_is_its_formula_in_every_type() {
        // With the second factor, exponentials of the logits overflow.
        for ([rows, classes], factor, bounds) in
            [([300, 10], 1.0, &MANY), ([5, 7], 100.0, &FEW), ([300, 10], 100.0, &FEW)]
        {
            let labels: Vec<u32> = (0..).map(|row: u32| row * 3 % 7).take(rows).collect();
            let labels = |of: &Tensor| Tensor::new(labels.as_slice(), of.device());
            let [logits] = noises([&[rows, classes]]);
            let logits = (logits * factor).unwrap();
            let ours = |t: &[&Tensor]| cross_entropy(t[0], &labels(t[0])?);
            assert_agree(&bounds[..2], std::slice::from_ref(&logits), &ours, &|t| {
                let shifted = t[0].broadcast_sub(&t[0].detach().max_keepdim(1)?)?;
                let at_label = shifted.gather(&labels(t[0])?.unsqueeze(1)?, 1)?;
                (shifted.exp()?.sum_keepdim(1)?.log()? - at_label)?.sum_all()
            });
            let count = |device: &Device| {
                let (loss, logits) = (Tensor::new(0.25, device)?, logits.to_device(device)?);
                loss_and_correct(&loss, &logits, &labels(&logits)?)?.to_vec1::<f64>()
            };
            assert_eq!(count(&device()).unwrap(), count(&Device::Cpu).unwrap());
        }
    }

    #[test]
    fn a_label_that_is_no_class_has_no_loss_on_a_gpu_either() {
        let [logits] = noises([&[3, 4]]).map(|logits| there(&logits, DType::F32));
        let loss = cross_entropy(&logits, &Tensor::new(&[1u32, 4, 0], &device()).unwrap());
        match loss {
            // A GPU cannot report an error.
            Ok(loss) => assert!(device().is_cuda() && loss.to_scalar::<f32>().unwrap().is_nan()),
            Err(error) => assert!(error.to_string().contains("label 4 among 4 classes"), "{error}"),
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
