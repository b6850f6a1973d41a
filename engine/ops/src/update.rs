//! Tensors that change in place: stochastic gradient descent, AdamW, and copies from other tensors.
//!
//! A kernel updates a tensor in one pass over its elements and its gradient. In f32 this moves 12 bytes for each element, a
//! quarter of a formula of tensors, and 28 bytes with AdamW's moments. On a GPU eight tensors share one launch, but AdamW is a
//! formula of tensors there.

use std::cell::Cell;
use std::marker::PhantomData;

use candle_core::{CpuStorage, DType, InplaceOp1, Layout, Result, Tensor, WithDType, bail};
use devices::move_view;
use rayon::prelude::*;

use crate::kernels::element::with_elements;
use crate::kernels::gpu;
use crate::kernels::simd::vectorised;
use crate::{BLOCK, Element};

/// Updates several tensors in place, each with its direction: value −= step · direction. Fails before any change when a value
/// and its direction differ in shape or dtype. Also fails when values are on several devices, or when the device fails.
pub fn sgd_step_all<'a>(
    pairs: impl IntoIterator<Item = (&'a Tensor, &'a Tensor)>,
    step: f64,
) -> Result<()> {
    let pairs: Vec<_> = pairs.into_iter().collect();
    for (value, direction) in &pairs {
        if value.shape() != direction.shape() || value.dtype() != direction.dtype() {
            let (a, of_a) = (value.dtype(), value.dims());
            let (b, of_b) = (direction.dtype(), direction.dims());
            bail!("sgd: {a:?} {of_a:?} cannot step along {b:?} {of_b:?}");
        }
    }
    if pairs.iter().any(|(value, _)| value.device().is_cuda()) {
        return gpu::sgd_step(&pairs, step);
    }
    pairs.iter().try_for_each(|(value, direction)| {
        let direction = &direction.contiguous()?;
        with_elements!("sgd", |direction| walk(value, [direction], step_of(step)))
    })
}

/// Updates all triples of velocity, value and gradient in place.
///
/// First velocity ← momentum · velocity + (share · gradient + decay · value), then value ← value − rate · velocity.
/// `constants` are momentum, share, decay and rate. A momentum or a decay of 0 has no term, as in PyTorch, even where 0 · ∞
/// would be a NaN. Fails when the three tensors differ in type, size or device.
pub fn momentum_step(slots: &[[&Tensor; 3]], constants: [f64; 4]) -> Result<()> {
    if slots.iter().flatten().any(|tensor| tensor.device().is_cuda()) {
        return gpu::momentum_step(slots, constants);
    }
    let [constants @ .., rate] = constants;
    slots.iter().try_for_each(|[velocity, value, gradient]| {
        let (gradient, detached) = (&gradient.contiguous()?, &value.detach());
        with_elements!("momentum", |gradient, detached| {
            walk(velocity, [gradient, detached], velocity_of(constants))
        })?;
        sgd_step_all([(*value, *velocity)], rate)
    })
}

/// The constants of a step of [`adamw`].
#[derive(Clone, Copy, Debug)]
pub struct Adam {
    /// The factor of the gradient: 1 / samples makes the mean of a sum.
    pub share: f64,
    /// The learning rate.
    pub rate: f64,
    /// β₁ and β₂: the shares of the two moments that are kept.
    pub betas: [f64; 2],
    /// ε keeps the denominator above 0.
    pub epsilon: f64,
    /// How strongly values are pulled towards 0.
    pub decay: f64,
    /// t: the number of steps, with this one.
    pub steps: f64,
}

/// Updates a value w and its moments m and v in place, as PyTorch's AdamW does. With g = share · gradient:
///
/// ```text
/// m ← β₁ · m + (1 − β₁) · g
/// v ← β₂ · v + (1 − β₂) · g²
/// w ← (1 − rate · decay) · w − rate · (m / (1 − β₁ᵗ)) / (√(v / (1 − β₂ᵗ)) + ε)
/// ```
///
/// Fails before any change when the four tensors differ in type or shape, and when two of them share memory.
pub fn adamw(changed: [&Tensor; 3], gradient: &Tensor, adam: Adam) -> Result<()> {
    let [value, mean, square] = changed;
    let all = [value, mean, square, gradient];
    for (nth, tensor) in all.iter().enumerate() {
        if (tensor.shape(), tensor.dtype()) != (value.shape(), value.dtype()) {
            let (a, of_a, b, of_b) = (value.dtype(), value.dims(), tensor.dtype(), tensor.dims());
            bail!("adamw: {a:?} {of_a:?} cannot be updated with {b:?} {of_b:?}");
        }
        // Operations return empty operands as they are.
        let memory = |of: &Tensor| std::ptr::from_ref(&*of.storage_and_layout().0);
        if tensor.elem_count() > 0 && all[..nth].iter().any(|of| memory(of) == memory(tensor)) {
            bail!("adamw: a value, its moments and its gradient share memory");
        }
    }
    if value.elem_count() == 0 {
        return Ok(());
    }
    if !value.device().is_cpu() || !matches!(value.dtype(), DType::F32 | DType::F64) {
        return adam.step_tensors(changed, gradient);
    }
    let gradient = &gradient.contiguous()?;
    with_elements!("adamw", |gradient| {
        change(value, |w| change(mean, |m| change(square, |v| adam.step(w, m, v, gradient))))
    })
}

impl Adam {
    /// Returns 1 / (1 − β₁ᵗ) and 1 / (1 − β₂ᵗ): moments that begin at 0 are too small by the inverse of these factors.
    fn corrections(self) -> [f64; 2] {
        self.betas.map(|beta| 1.0 / (1.0 - beta.powf(self.steps)))
    }

    /// Updates slices in the calling thread's pool. The order of the roundings is that of [`step_tensors`](Self::step_tensors).
    fn step<T: Element>(self, w: &mut [T], m: &mut [T], v: &mut [T], gradient: &[T]) -> Result<()> {
        let number = <T as WithDType>::from_f64;
        let (betas, others) = (self.betas.map(number), self.betas.map(|beta| number(1.0 - beta)));
        let ([of_m, of_v], kept) = (self.corrections().map(number), 1.0 - self.rate * self.decay);
        let [share, rate, epsilon, kept] = [self.share, self.rate, self.epsilon, kept].map(number);
        let changed = w.par_chunks_mut(BLOCK).zip(m.par_chunks_mut(BLOCK));
        let blocks = changed.zip(v.par_chunks_mut(BLOCK)).zip(gradient.par_chunks(BLOCK));
        blocks.for_each(|(((w, m), v), gradient)| {
            vectorised(
                #[inline(always)]
                || {
                    for (((w, m), v), &gradient) in w.iter_mut().zip(m).zip(v).zip(gradient) {
                        let g = gradient * share;
                        *m = *m * betas[0] + g * others[0];
                        *v = *v * betas[1] + g * g * others[1];
                        let direction = *m * of_m / ((*v * of_v).sqrt() + epsilon);
                        *w = *w * kept - direction * rate;
                    }
                },
            );
        });
        Ok(())
    }

    /// Does the same by a formula of tensors.
    fn step_tensors(self, [w, m, v]: [&Tensor; 3], gradient: &Tensor) -> Result<()> {
        let ([beta1, beta2], [of_m, of_v]) = (self.betas, self.corrections());
        let g = (gradient * self.share)?;
        overwrite(m, &((m.detach() * beta1)? + (&g * (1.0 - beta1))?)?)?;
        overwrite(v, &((v.detach() * beta2)? + (g.sqr()? * (1.0 - beta2))?)?)?;
        let deviation = (v.detach() * of_v)?.sqrt()?;
        let direction = ((m.detach() * of_m)? / (deviation + self.epsilon)?)?;
        let kept = (w.detach() * (1.0 - self.rate * self.decay))?;
        overwrite(w, &(kept - (direction * self.rate)?)?)
    }
}

/// Calls `of` with the elements of a contiguous tensor of type `T` in CPU memory, which may change.
fn change<T: Element>(tensor: &Tensor, of: impl FnOnce(&mut [T]) -> Result<()>) -> Result<()> {
    struct Change<T, F>(Cell<Option<F>>, PhantomData<T>);

    impl<T: Element, F: FnOnce(&mut [T]) -> Result<()>> InplaceOp1 for Change<T, F> {
        fn name(&self) -> &'static str {
            "change"
        }

        fn cpu_fwd(&self, memory: &mut CpuStorage, layout: &Layout) -> Result<()> {
            let (Some((start, end)), Some(of)) = (layout.contiguous_offsets(), self.0.take())
            else {
                bail!("a tensor that changes must be contiguous, got {layout:?}")
            };
            let mut elements = T::cpu_storage_data(std::mem::replace(memory, EMPTY))?;
            let changed = of(&mut elements[start..end]);
            *memory = T::to_cpu_storage_owned(elements);
            changed
        }
    }

    const EMPTY: CpuStorage = CpuStorage::U8(Vec::new());
    if tensor.dtype() != T::DTYPE {
        bail!("a tensor that changes must be {:?}, got {:?}", T::DTYPE, tensor.dtype());
    }
    tensor.inplace_op1(&Change(Cell::new(Some(of)), PhantomData))
}

/// Returns value − step · direction. The product is rounded first, as in a formula of tensors.
fn step_of<T: Element>(step: f64) -> impl Fn(T, [T; 1]) -> T {
    let step: T = WithDType::from_f64(step);
    #[inline(always)]
    move |value, [direction]| value - direction * step
}

/// Returns momentum · velocity + (share · gradient + decay · value).
fn velocity_of<T: Element>(constants: [f64; 3]) -> impl Fn(T, [T; 2]) -> T {
    let [momentum, share, decay]: [T; 3] = constants.map(WithDType::from_f64);
    let term = |factor: T, of: T| if factor == T::zero() { T::zero() } else { of * factor };
    #[inline(always)]
    move |velocity, [gradient, value]| {
        term(momentum, velocity) + (gradient * share + term(decay, value))
    }
}

/// Changes a tensor in place: each element becomes a function of its old value and of the elements of others, of the same number.
fn walk<T: Element, const N: usize>(
    tensor: &Tensor,
    others: [&[T]; N],
    of: impl Fn(T, [T; N]) -> T + Sync,
) -> Result<()> {
    change(tensor, |changed| {
        if let Some(other) = others.iter().find(|other| other.len() != changed.len()) {
            bail!("{} elements cannot change by {}", changed.len(), other.len());
        }
        changed.par_chunks_mut(BLOCK).enumerate().for_each(|(block, changed)| {
            vectorised(
                #[inline(always)]
                || {
                    let others = others.map(|of| &of[block * BLOCK..][..changed.len()]);
                    for (place, changed) in changed.iter_mut().enumerate() {
                        *changed = of(*changed, others.map(|of| of[place]));
                    }
                },
            );
        });
        Ok(())
    })
}

/// Overwrites the elements of `tensor` in place with those of `value`, of the same shape and type, on any device. Tensors
/// that share the memory of `tensor` see the new values. Fails when the two share memory.
pub fn overwrite(tensor: &Tensor, value: &Tensor) -> Result<()> {
    // Of empty tensors, operations return an operand, and no memory is copied to itself.
    if tensor.elem_count() == 0 && tensor.shape() == value.shape() {
        return Ok(());
    }
    let value = move_view(&value.detach(), tensor.device())?.contiguous()?;
    // A scalar cannot be sliced, so both tensors get a new first axis.
    tensor.detach().unsqueeze(0)?.slice_set(&value.unsqueeze(0)?, 0, 0)
}

/// Overwrites tensors in place with values of the same shape on the same device, rounded to the types of the tensors. A pair is
/// a tensor and its value. Fails when the two differ in shape or share memory.
pub fn overwrite_rounded(pairs: &[(&Tensor, &Tensor)]) -> Result<()> {
    let differ = |(tensor, value): &&(&Tensor, &Tensor)| tensor.dims() != value.dims();
    if let Some((tensor, value)) = pairs.iter().find(differ) {
        bail!("{:?} cannot be overwritten with {:?}", tensor.dims(), value.dims());
    }
    if pairs.iter().any(|(tensor, _)| tensor.device().is_cuda())
        && pairs.iter().all(|(_, value)| value.dtype() == DType::F32)
    {
        return gpu::cast(pairs);
    }
    pairs.iter().try_for_each(|(tensor, value)| overwrite(tensor, &value.to_dtype(tensor.dtype())?))
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device, Var};
    use itertools::Itertools as _;

    use super::*;
    use crate::batch_norm::{Average, average_all};
    use crate::tests::agreement::{
        EXACT, FEW, assert_close, device, has, noise, numbers, on, there,
    };

    /// Makes ten tensors of two rows, of different sizes.
    fn memory(name: &str, dtype: DType) -> Vec<Tensor> {
        let of = |nth: usize| noise(&format!("{name} {nth}"), &[2, 2, 3 + 20 * nth]);
        (0..10).map(|nth| there(of(nth).as_tensor(), dtype)).collect()
    }

    /// Returns the second rows of tensors, and then the first row of the last: a GPU changes eight tensors with one launch,
    /// but no two that share their memory.
    fn rows(memory: &[Tensor], count: usize) -> Vec<Tensor> {
        let last = memory.last().map(|of| (of, 0));
        let rows = memory.iter().map(|of| (of, 1)).chain(last);
        rows.take(count).map(|(of, row)| of.get(row).unwrap()).collect()
    }

    /// Asserts that an update changes rows as the formula does, and nothing else. Where the bound is 0, the formula computes
    /// in the tensors' type, otherwise in f64.
    fn assert_updates<const N: usize>(
        bounds: &[(DType, f64)],
        changed: [&str; N],
        read_as: Option<DType>,
        update: impl Fn([&[Tensor]; N], &[Tensor]) -> Result<()>,
        formula: impl Fn(usize, [Tensor; N], Tensor) -> Result<[Tensor; N]>,
    ) {
        let bounds = bounds.iter().filter(|&&(dtype, _)| has(dtype));
        for (&(dtype, bound), count) in bounds.cartesian_product([1, 2, 4, 8, 11]) {
            let make = || changed.map(|name| memory(name, dtype));
            let read = memory("read", read_as.unwrap_or(dtype));
            let (before, found, mut read) = (make(), make(), rows(&read, count));
            if let Some(read) = read.get_mut(2) {
                // This tensor is not contiguous.
                *read = read.t().unwrap().contiguous().unwrap().t().unwrap();
            }
            let of_found = found.each_ref().map(|of| rows(of, count));
            update(of_found.each_ref().map(Vec::as_slice), &read).unwrap();
            for nth in 0..count {
                let exact = |tensor: &Tensor| {
                    let here = tensor.to_device(&Device::Cpu).unwrap();
                    if bound == 0.0 { here } else { here.to_dtype(DType::F64).unwrap() }
                };
                let of_before = before.each_ref().map(|of| exact(&rows(of, count)[nth]));
                let expected = formula(nth, of_before, exact(&read[nth])).unwrap();
                for (found, expected) in of_found.iter().zip(&expected) {
                    let kept = if bound == 0.0 { dtype } else { DType::F64 };
                    let expected = expected.to_dtype(kept).unwrap();
                    let name = format!("{changed:?} {dtype:?}, {nth} of {count}");
                    assert_close(&name, &found[nth], &expected, bound);
                }
                for (found, before) in found.iter().zip(&before).filter(|_| nth < 9) {
                    let first = |of: &[Tensor]| of[nth].get(0).unwrap();
                    assert_close("another row", &first(found), &first(before), 0.0);
                }
            }
        }
    }

    /// Types that are updated: bf16 on a GPU only, and all others to the last bit.
    fn updated() -> &'static [(DType, f64)] {
        const BOUNDS: [(DType, f64); 3] = [EXACT[0], EXACT[1], FEW[2]];
        if device().is_cuda() { &BOUNDS } else { &BOUNDS[..2] }
    }

    #[test]
    fn a_step_is_its_formula_in_every_type() {
        let step = 0.1 / 7.0;
        assert_updates(
            updated(),
            ["value"],
            None,
            |[values], gradients| sgd_step_all(values.iter().zip(gradients), step),
            |_, [value], gradient| Ok([(value - (gradient * step)?)?]),
        );
    }

    #[test]
    fn a_momentum_step_is_its_formula_in_every_type() {
        let [momentum, share, decay, rate] = [0.9, 0.25, 1e-2, 0.1];
        assert_updates(
            updated(),
            ["velocity", "value"],
            None,
            |[velocities, values], gradients| {
                let slots = velocities.iter().zip(values).zip(gradients);
                let slots = slots.map(|((velocity, value), gradient)| [velocity, value, gradient]);
                momentum_step(&slots.collect_vec(), [momentum, share, decay, rate])
            },
            |_, [velocity, value], gradient| {
                let pull = ((gradient * share)? + (&value * decay)?)?;
                let velocity = ((velocity * momentum)? + pull)?;
                let value = (value - (&velocity * rate)?)?;
                Ok([velocity, value])
            },
        );
    }

    const ADAM: Adam = Adam {
        share: 0.25,
        rate: 0.1,
        betas: [0.9, 0.999],
        epsilon: 1e-8,
        decay: 0.01,
        steps: 3.0,
    };

    #[test]
    fn an_adamw_step_is_its_formula_in_every_type() {
        // On a GPU the compiler may fuse a product and a sum.
        assert_updates(
            if device().is_cuda() { &FEW[..2] } else { updated() },
            ["value", "mean", "square"],
            None,
            |[values, means, squares], gradients| {
                for (nth, gradient) in gradients.iter().enumerate() {
                    overwrite(&squares[nth], &squares[nth].abs()?)?;
                    adamw([&values[nth], &means[nth], &squares[nth]], gradient, ADAM)?;
                }
                Ok(())
            },
            |_, [w, m, v], gradient| {
                let g = (gradient / 4.0)?;
                let m = ((m * 0.9)? + (&g * (1.0 - 0.9))?)?;
                let v = ((v.abs()? * 0.999)? + (g.sqr()? * (1.0 - 0.999))?)?;
                let deviation = (&v / (1.0 - 0.999f64.powf(3.0)))?.sqrt()?;
                let direction = ((&m / (1.0 - 0.9f64.powf(3.0)))? / (deviation + 1e-8)?)?;
                Ok([((w * (1.0 - 0.1 * 0.01))? - (direction * 0.1)?)?, m, v])
            },
        );
    }

    #[test]
    fn an_adamw_step_has_the_same_bits_on_any_number_of_threads() {
        let after = |threads| {
            let names = ["value", "mean", "square", "gradient"];
            let [w, m, v, g] = names.map(|name| noise(name, &[3 * BLOCK + 5]));
            overwrite(&v, &v.sqr().unwrap()).unwrap();
            on(threads, || adamw([&w, &m, &v], &g, ADAM)).unwrap();
            [w, m, v].map(|of| numbers(&of))
        };
        assert_eq!(after(1), after(2));
        assert_eq!(after(1), after(3));
    }

    #[test]
    fn what_is_no_state_of_a_value_is_refused() {
        let [w, m, v] = ["value", "mean", "square"].map(|name| noise(name, &[2, 3]));
        let refused = |changed: [&Tensor; 3], gradient: &Tensor| {
            let before = changed.map(numbers);
            let error = adamw(changed, gradient, ADAM).unwrap_err().to_string();
            assert_eq!(changed.map(numbers), before);
            error
        };
        for wrong in [noise("g", &[3, 2]).as_tensor(), &m.to_dtype(DType::F32).unwrap()] {
            let error = refused([&w, &m, &v], wrong);
            assert!(error.contains("F64 [2, 3] cannot be updated with"), "{error}");
            refused([&w, &m, wrong], &v);
        }
        let empty = Tensor::zeros(0, DType::F64, &Device::Cpu).unwrap();
        adamw([&empty; 3], &empty, ADAM).unwrap();
        let error = refused([&w, &m, &m], &v);
        assert!(error.contains("share memory"), "{error}");
        refused([&w, &m, &v], &w);
    }

    #[test]
    fn values_are_rounded_as_candle_rounds_them_in_every_type() {
        assert_updates(
            &EXACT,
            ["used"],
            Some(DType::F32),
            |[used], kept| overwrite_rounded(&used.iter().zip(kept).collect_vec()),
            |_, _, kept| Ok([kept]),
        );
    }

    #[test]
    fn running_averages_are_their_formula_in_every_type() {
        let scale = |nth: usize| 1.0 + 0.25 * nth as f64;
        assert_updates(
            &FEW,
            ["running"],
            Some(DType::F64),
            |[running], fresh| {
                let variables = running.iter().map(Var::from_tensor);
                let variables: Vec<Var> = variables.collect::<Result<_>>()?;
                let averages = variables.iter().zip(fresh).enumerate();
                let averages = averages.map(|(nth, (running, fresh))| Average {
                    running,
                    fresh,
                    scale: scale(nth),
                });
                average_all(&averages.collect_vec(), 0.1)?;
                let back = running.iter().zip(&variables);
                back.into_iter().try_for_each(|(running, value)| overwrite(running, value))
            },
            |nth, [running], fresh| Ok([((running * 0.9)? + (fresh * (0.1 * scale(nth)))?)?]),
        );
    }

    #[test]
    fn a_direction_of_another_shape_or_dtype_is_refused() {
        let value = noise("w", &[2, 3]).to_dtype(DType::F32).unwrap();
        let before = value.to_vec2::<f32>().unwrap();
        let ones = |shape: &[usize], dtype| Tensor::ones(shape, dtype, &Device::Cpu).unwrap();
        for wrong in [ones(&[3], DType::F32), ones(&[3, 2], DType::F32), ones(&[2, 3], DType::F64)]
        {
            let error = sgd_step_all([(&value, &wrong)], 0.1).unwrap_err();
            assert!(error.to_string().contains("F32 [2, 3] cannot step along"), "{error}");
        }
        assert_eq!(value.to_vec2::<f32>().unwrap(), before);
    }
}
