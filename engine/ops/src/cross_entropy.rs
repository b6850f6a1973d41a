//! Cross-entropy, *summed* over the batch: the sum over a batch is the sum of its shards' sums, whatever their sizes. The
//! update divides once, by the size of the whole batch.
//!
//! If each rank has the logits of some classes only, the ranks gather four numbers of each row, and no rank has all logits:
//!
//! ```text
//! rank r       logits [N, V/k] ── row_statistics ──→ [N, 4]
//! all ranks    gathered [k, N, 4] ── cross_entropy_of_part ──→ the loss, and on rank r the gradient [N, V/k]
//! ```
//!
//! A single device has the whole as its part. Cost: an exponential for each logit forward, and another backward, in parallel over
//! rows. A row stays in the cache between its maximum and its sum. One task computes each row, so the number of threads never changes
//! the bits.

use candle_core::{DType, Result, Tensor, WithDType, bail};
use num_traits::Float;
use rayon::prelude::*;

use crate::BLOCK;
use crate::backward::record;
use crate::kernels::element::{
    Element, by_device, check_dtype, computed_in, cpu_memory, tensor, with_elements,
};
use crate::kernels::functions::exp;
use crate::kernels::gpu::{self, STATISTICS};
use crate::kernels::memory::made_by_row;
use crate::kernels::simd::{LANES, vectorised};
use crate::kernels::sums::joined;

/// Computes Σ over the batch of −log softmax(logits) at the label: `[B, classes]`, B labels (u32, of any shape) → scalar.
///
/// The largest logit of a row is subtracted before the exponentials, so large logits do not overflow. The gradient of a row
/// is softmax(logits) − one-hot(label). Fails when shapes or types do not fit, without classes, and when a label is not below the
/// number of classes. A GPU cannot report a wrong label: on a GPU the loss becomes NaN.
pub fn cross_entropy(logits: &Tensor, labels: &Tensor) -> Result<Tensor> {
    let statistics = row_statistics(logits, labels, 0)?.unsqueeze(0)?;
    cross_entropy_of_part(logits, labels, 0, &statistics)
}

/// Returns four numbers of each row of logits, of the classes from `first_class` on: `[N, classes]`, N labels → `[N, 4]`, without
/// a gradient.
///
/// They are the largest logit, its index among all classes, the sum of exp(logit − largest), and the label's logit, or −∞ if the
/// label is none of these classes. The first of equal logits is the largest, and a NaN is larger than all. Fails when shapes or
/// types do not fit.
pub fn row_statistics(logits: &Tensor, labels: &Tensor, first_class: usize) -> Result<Tensor> {
    let (logits, labels) = &checked(logits, labels)?;
    let classes = logits.dim(1)?;
    let on_gpu = || gpu::row_statistics(logits, labels, first_class);
    let statistics = by_device!("cross_entropy", |logits| on_gpu()?, {
        let labels = labels.to_vec1()?;
        let rows = logits.par_chunks_exact(classes).zip(&labels);
        let of_row = |(row, &label)| {
            let label = place(label, first_class);
            vectorised(
                #[inline(always)]
                || statistics(row, label, first_class),
            )
        };
        let of_rows = rows.with_min_len(BLOCK.div_ceil(classes)).map(of_row);
        cpu_memory(of_rows.collect::<Vec<_>>().into_flattened())
    });
    Ok(tensor(statistics, (labels.elem_count(), STATISTICS)))
}

/// Computes [`cross_entropy`] on one of k ranks with as many classes each: from this rank's logits `[N, classes]`, of the classes
/// from `first_class` on, and from the [statistics](row_statistics) of all ranks in their order, `[k, N, 4]`.
///
/// The loss is the same on all ranks. The gradient is that of this rank's logits. Fails when a label is not below the number of
/// all classes, and like [`cross_entropy`].
pub fn cross_entropy_of_part(
    logits: &Tensor,
    labels: &Tensor,
    first_class: usize,
    all_statistics: &Tensor,
) -> Result<Tensor> {
    let (logits, labels) = &checked(logits, labels)?;
    let all = &gathered(all_statistics, labels)?;
    let (rows, part) = logits.dims2()?;
    let classes = part * all.dim(0)?;
    let loss = by_device!("cross_entropy", |all| gpu::loss_of_parts(all, labels, classes)?, {
        if let Some(label) =
            labels.to_vec1()?.iter().find(|&&label: &&u32| label as usize >= classes)
        {
            bail!("cross_entropy: label {label} among {classes} classes");
        }
        cpu_memory(vec![sum_of_losses(all, rows)])
    });
    let of = (logits.clone(), labels.clone(), all.clone());
    record("cross_entropy", loss, (), [logits, labels], move |_, dloss| {
        let (logits, labels, all) = &of;
        let on_gpu = || gpu::gradient_of_part(logits, labels, first_class, all, dloss);
        let dlogits = by_device!("cross_entropy", |logits, all| on_gpu()?, {
            let labels = labels.to_vec1::<u32>()?.into_iter();
            let places: Vec<_> = labels.map(|label| place(label, first_class)).collect();
            let dlogits = gradients_of_rows(logits, &places, all, dloss.to_scalar()?);
            tensor(cpu_memory(dlogits), (rows, part))
        });
        Ok([Some(dlogits), None])
    })
}

/// Returns the loss of a batch and the number of rows with their largest logit at the label.
///
/// A scalar, `[B, classes]`, B labels (u32, of any shape) → `[2]` in f64, without a gradient, on the device of `logits`, for which
/// nothing waits. The first of equal logits is the largest, and a NaN is larger than all.
pub fn loss_and_correct(loss: &Tensor, logits: &Tensor, labels: &Tensor) -> Result<Tensor> {
    let logits = logits.to_dtype(computed_in(logits.dtype()))?;
    let statistics = row_statistics(&logits, labels, 0)?.unsqueeze(0)?;
    loss_and_correct_of_parts(loss, &statistics, labels)
}

/// Does the same as [`loss_and_correct`] from the [statistics](row_statistics) of all ranks, `[k, N, 4]`, and N labels.
pub fn loss_and_correct_of_parts(
    loss: &Tensor,
    all_statistics: &Tensor,
    labels: &Tensor,
) -> Result<Tensor> {
    let (labels, all) = (&labels.flatten_all()?.contiguous()?, all_statistics);
    let all = &gathered(all, labels)?;
    if all.device().is_cuda() {
        return gpu::loss_and_correct_of_parts(&loss.to_dtype(all.dtype())?, all, labels);
    }
    let correct = with_elements!("loss_and_correct", |all| {
        let labels = labels.to_vec1::<u32>()?;
        let is_correct = |(row, label): &(usize, &u32)| {
            let parts: Vec<_> = parts(all, labels.len(), *row).collect();
            let largest: Vec<_> = parts.iter().map(|part| part[0]).collect();
            parts[self::largest(&largest).1][1].to_f64() == f64::from(**label)
        };
        labels.iter().enumerate().filter(is_correct).count()
    });
    let loss = loss.detach().to_dtype(DType::F64)?.to_scalar::<f64>()?;
    Tensor::new(&[loss, correct as f64], &candle_core::Device::Cpu)
}

/// Returns contiguous logits `[N, classes]` and labels `[N]`. Fails when they do not fit.
fn checked(logits: &Tensor, labels: &Tensor) -> Result<(Tensor, Tensor)> {
    let (batch, classes) = logits.dims2()?;
    if classes == 0 {
        bail!("cross_entropy: logits need at least one class, got {:?}", logits.dims());
    }
    if labels.elem_count() != batch || labels.dtype() != DType::U32 {
        let (dtype, dims) = (labels.dtype(), labels.dims());
        bail!(
            "cross_entropy: {batch} rows of logits need u32 labels [{batch}], got {dtype:?} {dims:?}"
        );
    }
    // A GPU would accept bf16 and lose the digits of the sum.
    check_dtype(logits.dtype(), "cross_entropy")?;
    Ok((logits.contiguous()?, labels.flatten_all()?.contiguous()?))
}

/// Returns the statistics of all ranks, `[k, N, 4]`, contiguous and without a gradient. Fails when there are none for each label.
fn gathered(all: &Tensor, labels: &Tensor) -> Result<Tensor> {
    let rows = labels.elem_count();
    match all.dims() {
        &[parts, of_rows, STATISTICS] if parts > 0 && of_rows == rows => all.detach().contiguous(),
        dims => bail!("cross_entropy: {rows} rows need statistics [k, {rows}, 4], got {dims:?}"),
    }
}

/// Returns the place of a label among the classes from `first_class` on: above all of them for a class before the first.
fn place(label: u32, first_class: usize) -> usize {
    (label as usize).wrapping_sub(first_class)
}

/// Returns a row's [statistics](row_statistics), with its label at this place of the row, or elsewhere. Whole vectors have the
/// exponential of vectors. What is left has the system's, one after the other, so rows of few classes keep their old bits.
#[inline(always)]
fn statistics<T: Element>(row: &[T], label: usize, first_class: usize) -> [T; STATISTICS] {
    let (largest, index) = largest(row);
    let (vectors, rest) = row.as_chunks::<LANES>();
    let mut sums = [T::zero(); LANES];
    for vector in vectors {
        for (sum, &logit) in sums.iter_mut().zip(vector) {
            *sum += exp(logit - largest);
        }
    }
    let of_vectors = if vectors.is_empty() { T::zero() } else { joined(sums, |a, b| a + b) };
    let sum = rest.iter().fold(of_vectors, |sum, &logit| sum + (logit - largest).exp());
    let at_label = row.get(label).copied().unwrap_or(T::neg_infinity());
    [largest, T::from_f64((first_class + index) as f64), sum, at_label]
}

/// Returns the first of a row's largest logits and its index. A NaN is larger than all.
#[inline(always)]
fn largest<T: Element>(row: &[T]) -> (T, usize) {
    /// As many logits are compared at once, without a branch.
    const RUN: usize = 4 * LANES;
    let larger = |a: T, b: T| if b > a || b.is_nan() { b } else { a };
    let (runs, rest) = row.as_chunks::<RUN>();
    let mut lanes = [T::neg_infinity(); RUN];
    for run in runs {
        for (largest, &logit) in lanes.iter_mut().zip(run) {
            *largest = larger(*largest, logit);
        }
    }
    let of_runs = if runs.is_empty() { T::neg_infinity() } else { joined(lanes, larger) };
    let largest = rest.iter().copied().fold(of_runs, larger);
    let is_largest = |&logit: &T| logit == largest || logit.is_nan();
    let others = |run: &&[T]| !run.iter().fold(false, |any, logit| any | is_largest(logit));
    let before = row.chunks(RUN).take_while(others).count() * RUN;
    let within = row[before..].iter().position(is_largest);
    (largest, before + within.expect("a row has a largest logit"))
}

/// Returns the statistics of a row, part by part.
fn parts<T>(all: &[T], rows: usize, row: usize) -> impl Iterator<Item = &[T]> + Clone {
    all.chunks_exact(STATISTICS).skip(row).step_by(rows)
}

/// Combines the statistics of a row: the largest logit, the sum of exp(logit − largest) over all classes, the label's logit.
fn combined<T: Element>(all: &[T], rows: usize, row: usize) -> [T; 3] {
    let parts = || parts(all, rows, row);
    let maximum = |nth: usize| parts().map(|part| part[nth]).fold(T::neg_infinity(), Float::max);
    let largest = maximum(0);
    // A part without a possible class adds nothing: −∞ − −∞ would be a NaN.
    let possible = parts().filter(|part| part[0] != T::neg_infinity());
    let sum = possible.map(|part| part[2] * (part[0] - largest).exp()).sum();
    [largest, sum, maximum(3)]
}

fn sum_of_losses<T: Element>(all: &[T], rows: usize) -> T {
    let losses = (0..rows).map(|row| {
        let [largest, sum, at_label] = combined(all, rows, row);
        sum.ln() - (at_label - largest)
    });
    // The sum is in f64: a large f32 loses the digits of each small term that is added to it.
    T::from_f64(losses.map(WithDType::to_f64).sum())
}

/// Computes the gradient of the logits by the same exponentials. The label of each row is at this place, or elsewhere.
fn gradients_of_rows<T: Element>(logits: &[T], labels: &[usize], all: &[T], upstream: T) -> Vec<T> {
    let rows = labels.len();
    let classes = logits.len() / rows.max(1);
    made_by_row(rows, classes, |row, gradients| {
        let [largest, sum, _] = combined(all, rows, row);
        let in_vectors = classes / LANES * LANES;
        let (vectors, rest) = gradients.split_at_mut(in_vectors);
        let (of_vectors, of_rest) = logits[row * classes..][..classes].split_at(in_vectors);
        vectorised(
            #[inline(always)]
            || {
                for (gradient, &logit) in vectors.iter_mut().zip(of_vectors) {
                    *gradient = exp(logit - largest) / sum;
                }
            },
        );
        for (gradient, &logit) in rest.iter_mut().zip(of_rest) {
            *gradient = (logit - largest).exp() / sum;
        }
        if let Some(softmax) = gradients.get_mut(labels[row]) {
            *softmax -= T::one();
        }
        for gradient in gradients {
            *gradient = upstream * *gradient;
        }
    })
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Var};
    use itertools::iproduct;

    use super::*;
    use crate::tests::agreement::{
        FEW, MANY, assert_agree, assert_close, device, has, noises, numbers, there, variable,
    };

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

    #[test]
    fn the_largest_logit_is_the_answer_in_every_type() {
        const NAN: f64 = f64::NAN;
        const LARGE: f64 = f64::INFINITY;
        // One row has two largest logits, of which the first counts. In some rows a NaN counts as the largest.
        let logits = [
            [0.5, 2.0, -1.0],
            [0.0, 1.0, 3.0],
            [4.0, 1.0, 3.0],
            [2.0, 1.0, 2.0],
            [1.0, NAN, LARGE],
            [NAN, 1.0, NAN],
            [NAN, 1.0, 2.0],
            [1.0, NAN, 2.0],
            [1.0, LARGE, NAN],
            [NAN, NAN, NAN],
            [1.0, LARGE, 2.0],
            [-LARGE, -LARGE, -LARGE],
            [1.0, -LARGE, 2.0],
        ];
        let tensor = Tensor::new(&logits, &Device::Cpu).unwrap();
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
        for ([rows, classes], factor, bounds) in [
            ([300, 10], 1.0, &MANY),
            ([5, 7], 100.0, &FEW),
            ([300, 10], 100.0, &FEW),
            ([9, 331], 1.0, &FEW),
            ([33, 1009], 1.0, &MANY),
        ] {
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

    /// Computes the loss of logits in parts, on each rank.
    fn losses(logits: &Tensor, labels: &Tensor, parts: usize) -> Result<Vec<Tensor>> {
        let part = logits.dim(1)? / parts;
        let ranks = || (0..parts).map(|rank| (logits.narrow(1, rank * part, part), rank * part));
        let statistics = ranks().map(|(part, first)| row_statistics(&part?, labels, first));
        let all = Tensor::stack(&statistics.collect::<Result<Vec<_>>>()?, 0)?;
        let losses =
            ranks().map(|(part, first)| cross_entropy_of_part(&part?, labels, first, &all));
        let losses = losses.collect::<Result<Vec<_>>>()?;
        let whole = loss_and_correct(&losses[0], logits, labels)?.to_vec1::<f64>()?;
        let counted = loss_and_correct_of_parts(&losses[0], &all, labels)?.to_vec1::<f64>()?;
        assert_eq!(counted[1], whole[1]);
        for loss in &losses {
            assert_eq!(numbers(loss)[0].to_bits(), numbers(&losses[0])[0].to_bits());
        }
        Ok(losses)
    }

    /// Returns the loss. Each part of the logits gets its gradient from the loss of its own rank.
    fn joined(losses: Vec<Tensor>) -> Result<Tensor> {
        let (first, others) = losses.split_first().unwrap();
        others.iter().try_fold(first.clone(), |sum, loss| sum + (loss - loss.detach())?)
    }

    #[test]
    fn parts_are_the_whole_in_every_type() {
        for (rows, classes) in [(7, 8), (3, 132), (5, 300)] {
            let labels: Vec<u32> = (0..).map(|row: u32| row * 61 % 8).take(rows).collect();
            let labels = |of: &Tensor| Tensor::new(labels.as_slice(), of.device());
            for (parts, factor) in iproduct!([1, 2, 4], [1.0, 100.0]) {
                let logits = (&noises([&[rows, classes]])[0] * factor).unwrap();
                let ours = |t: &[&Tensor]| joined(losses(t[0], &labels(t[0])?, parts)?);
                assert_agree(&FEW[..2], &[logits], &ours, &|t| cross_entropy(t[0], &labels(t[0])?));
            }
        }
    }

    #[test]
    fn what_is_not_finite_on_one_rank_is_known_on_all_in_every_type() {
        let infinite = f64::INFINITY;
        let label = Tensor::new(&[4u32], &device()).unwrap();
        for (dtype, place) in iproduct!([DType::F32, DType::F64], 0..6) {
            let row = |value: f64, count: usize| {
                let mut row = [0.5, 2.0, -1.0, 0.25, 1.0, 0.75];
                row[place / count * count..][..count].fill(value);
                Var::from_tensor(&there(&Tensor::new(&[row], &Device::Cpu).unwrap(), dtype))
                    .unwrap()
            };
            for value in [f64::NAN, infinite] {
                let logits = row(value, 1);
                let losses = losses(&logits, &label, 3).unwrap();
                assert!(numbers(&losses[0])[0].is_nan());
                let gradients = joined(losses).unwrap().backward().unwrap();
                let gradient = gradients.get(&logits).unwrap();
                assert!(numbers(gradient).iter().all(|of| of.is_nan()));
            }
            // No class of a rank is possible. The loss is infinite if one of them is the label.
            let logits = row(-infinite, 2);
            let losses = losses(&logits, &label, 3).unwrap();
            assert_eq!(numbers(&losses[0])[0] == infinite, place / 2 == 2);
            let whole = cross_entropy(&logits, &label).unwrap();
            if place / 2 != 2 {
                assert_close("loss", &losses[0], &whole, 1e-6);
            }
            let gradient = |of: &Tensor| of.backward().unwrap().get(&logits).unwrap().clone();
            assert_close("gradient", &gradient(&joined(losses).unwrap()), &gradient(&whole), 1e-6);
        }
    }

    /// Existing trainings keep their bits: few classes are added up one by one.
    #[test]
    fn few_classes_are_added_up_in_their_order() {
        let logits = variable("logits", &[300, 10], DType::F32);
        let labels: Vec<u32> = (0..300).map(|row| row * 3 % 10).collect();
        let loss = cross_entropy(&logits, &Tensor::new(labels.as_slice(), &Device::Cpu).unwrap());
        let loss = loss.unwrap();
        let gradient = loss.backward().unwrap().get(&logits).unwrap().to_vec2::<f32>().unwrap();
        let mut expected = 0.0;
        for ((row, gradient), label) in
            logits.to_vec2::<f32>().unwrap().iter().zip(&gradient).zip(labels)
        {
            let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let sum: f32 = row.iter().map(|logit| (logit - largest).exp()).sum();
            expected += f64::from(sum.ln() - (row[label as usize] - largest));
            for (class, (logit, gradient)) in row.iter().zip(gradient).enumerate() {
                let target = if class == label as usize { 1.0 } else { 0.0 };
                assert_eq!(*gradient, (logit - largest).exp() / sum - target);
            }
        }
        assert_eq!(loss.to_scalar::<f32>().unwrap(), expected as f32);
    }

    #[test]
    fn a_label_that_is_no_class_has_no_loss_on_a_gpu_either() {
        let [logits] = noises([&[3, 4]]).map(|logits| there(&logits, DType::F32));
        let labels = Tensor::new(&[1u32, 4, 0], &device()).unwrap();
        let in_parts = losses(&logits, &labels, 2).map(|losses| losses[1].clone());
        for loss in [cross_entropy(&logits, &labels), in_parts] {
            match loss {
                // A GPU cannot report an error.
                Ok(loss) => assert!(device().is_cuda() && numbers(&loss)[0].is_nan()),
                Err(error) => {
                    assert!(error.to_string().contains("label 4 among 4 classes"), "{error}");
                }
            }
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
            for refused in [cross_entropy(&logits, &labels), row_statistics(&logits, &labels, 0)] {
                let error = refused.unwrap_err().to_string();
                assert!(error.contains(complaint), "{error}");
            }
        }
        let (logits, labels) = (zeros(&[2, 3], DType::F32), zeros(&[2], DType::U32));
        for wrong in [[0, 2, 4], [1, 3, 4], [1, 2, 3]] {
            let all = zeros(&wrong, DType::F32);
            let error = cross_entropy_of_part(&logits, &labels, 0, &all).unwrap_err().to_string();
            assert!(error.contains("2 rows need statistics [k, 2, 4]"), "{error}");
        }
    }
}
