//! Gradients through f and g against finite differences, of the loss that all ranks compute.
//!
//! A weight that is split is moved on the rank that holds it; what all ranks hold is moved on all of them.

use super::{fixed, noise, on_ranks};
use crate::prelude::*;

const BATCH: usize = 3;
const STEP: f64 = 1e-5;
/// Elements of the largest tensor. Ranks hold unequal parts, but all compute every loss together.
const LARGEST: usize = 20;

/// The tensors of one rank: its parts, or what all have.
struct Tensors {
    x: Var,
    a: Var,
    a_bias: Var,
    b: Var,
    b_bias: Var,
    c: Var,
    c_bias: Var,
}

/// 4 → 5 by columns, tanh, → 3 by rows, tanh, → 5 by columns, gathered.
fn loss(t: &Tensors, group: &SharedCommunicator) -> Result<Tensor, Error> {
    let h = by_column(&t.x, group, |x| linear(x, &t.a, &t.a_bias)?.tanh())?;
    let y = by_row(&h, group, |h| h.matmul(&t.b), &t.b_bias)?.tanh()?;
    let z = gather(&by_column(&y, group, |y| linear(y, &t.c, &t.c_bias))?, 1, 5, group)?;
    Ok((z * fixed("loss", &[BATCH, 5]))?.sum_all()?)
}

#[test]
fn every_gradient_is_the_slope_of_the_loss() {
    for ranks in [1, 2, 3] {
        let worst = on_ranks(ranks, |_, group| {
            let own = |name: &str, shape: &[usize], axis| {
                Var::from_tensor(&part(&fixed(name, shape), axis, group)?.force_contiguous()?)
            };
            let t = Tensors {
                x: noise("x", &[BATCH, 4]),
                a: own("a", &[4, 5], 1)?,
                a_bias: own("a bias", &[5], 0)?,
                b: own("b", &[5, 3], 0)?,
                b_bias: noise("b bias", &[3]),
                c: own("c", &[3, 5], 1)?,
                c_bias: own("c bias", &[5], 0)?,
            };
            let gradients = loss(&t, group)?.backward()?;
            let mut worst: f64 = 0.0;
            let everywhere = [(&t.x, true), (&t.b_bias, true)];
            let split = [&t.a, &t.a_bias, &t.b, &t.c, &t.c_bias].map(|var| (var, false));
            for (var, on_all) in everywhere.into_iter().chain(split) {
                let gradient = gradients.get(var).unwrap().flatten_all()?.to_vec1::<f64>()?;
                for owner in 0..if on_all { 1 } else { group.world_size() } {
                    for position in 0..LARGEST {
                        let mine = on_all || owner == group.rank();
                        let moves = mine && position < gradient.len();
                        let slope = slope(&t, group, var, moves.then_some(position))?;
                        if moves {
                            worst = worst.max((slope - gradient[position]).abs());
                        }
                    }
                }
            }
            Ok(worst)
        });
        // The loss is of size 10, its third derivative too: 10 · STEP² + 10 · 2⁻⁵² / STEP.
        assert!(worst.iter().all(|&worst| worst < 1e-8), "{ranks} ranks: {worst:?}");
    }
}

/// The slope of the loss along one element of a tensor; along none, for a rank that only takes part.
fn slope(
    t: &Tensors,
    group: &SharedCommunicator,
    var: &Var,
    position: Option<usize>,
) -> Result<f64, Error> {
    let at = |offset: f64| -> Result<f64, Error> {
        let kept = var.as_detached_tensor().copy()?;
        if let Some(position) = position {
            let mut values = kept.flatten_all()?.to_vec1::<f64>()?;
            values[position] += offset;
            overwrite(var, &Tensor::from_vec(values, var.shape(), var.device())?)?;
        }
        let loss = loss(t, group)?.to_scalar::<f64>()?;
        overwrite(var, &kept)?;
        Ok(loss)
    };
    Ok((at(STEP)? - at(-STEP)?) / (2.0 * STEP))
}
