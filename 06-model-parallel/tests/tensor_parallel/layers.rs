//! Layers, their gradients and who holds what, against the layer on one device.

use candle_core::Result;
use ops::{linear_relu, relu};
use split_batch::shard_range;

use super::{assert_close, assert_same_bits, fixed, noise, on_ranks};
use crate::prelude::*;

const RANKS: [usize; 4] = [1, 2, 3, 4];

/// A result, and gradients of the loss Σ result · noise.
struct Outcome {
    y: Tensor,
    gradients: Vec<Tensor>,
}

fn outcome(y: Tensor, of: &[Var]) -> Result<Outcome> {
    let loss = (&y * fixed("loss", y.dims()))?.sum_all()?;
    let store = loss.backward()?;
    let gradients = of.iter().map(|var| store.get(var).unwrap().clone()).collect();
    Ok(Outcome { y: y.detach(), gradients })
}

/// A tensor of noise by name and shape, and the axis along which ranks share it.
type Spec<'a> = (&'a str, &'a [usize], Option<usize>);

/// Compares a function of some tensors on one device with the same function in parts on 1 to 4 ranks: the result, and the
/// gradients. The gradients of parts are joined; the other gradients have the same bits on every rank.
fn compare(
    tensors: &[Spec<'_>],
    alone: impl Fn(&[Var]) -> Result<Tensor>,
    in_parts: impl Fn(&[Var], &SharedCommunicator) -> Result<Tensor> + Sync,
) {
    let whole: Vec<Var> = tensors.iter().map(|(name, shape, _)| noise(name, shape)).collect();
    let alone = outcome(alone(&whole).unwrap(), &whole).unwrap();
    for ranks in RANKS {
        let of_ranks = on_ranks(ranks, |_, group| {
            let own = |(name, shape, cut): &Spec<'_>| match cut {
                Some(axis) => {
                    Var::from_tensor(&part(&fixed(name, shape), *axis, group)?.force_contiguous()?)
                }
                None => Ok(noise(name, shape)),
            };
            let parts = tensors.iter().map(own).collect::<Result<Vec<_>>>()?;
            Ok(outcome(in_parts(&parts, group)?, &parts)?)
        });
        assert_same_bits(of_ranks.iter().map(|outcome| &outcome.y));
        assert_close(&of_ranks[0].y, &alone.y);
        for (position, (_, _, cut)) in tensors.iter().enumerate() {
            let parts: Vec<&Tensor> = of_ranks.iter().map(|it| &it.gradients[position]).collect();
            let expected = &alone.gradients[position];
            match cut {
                Some(axis) => assert_close(&Tensor::cat(&parts, *axis).unwrap(), expected),
                None => {
                    assert_same_bits(parts.iter().copied());
                    assert_close(parts[0], expected);
                }
            }
        }
    }
}

const B: usize = 6;
const IN: usize = 7;
const HIDDEN: usize = 10;
const OUT: usize = 5;

#[test]
fn a_layer_by_columns_is_the_layer() {
    let tensors: [Spec<'_>; 3] =
        [("x", &[B, IN], None), ("w", &[IN, OUT], Some(1)), ("b", &[OUT], Some(0))];
    compare(
        &tensors,
        |t| linear(&t[0], &t[1], &t[2]),
        |t, group| {
            let y = by_column(&t[0], group, |x| linear(x, &t[1], &t[2]))?;
            let columns = shard_range(OUT, group.world_size(), group.rank()).len();
            assert_eq!(y.dims(), [B, columns]);
            gather(&y, 1, OUT, group)
        },
    );
}

#[test]
fn columns_then_rows_are_two_layers() {
    let tensors: [Spec<'_>; 5] = [
        ("x", &[B, IN], None),
        ("a", &[IN, HIDDEN], Some(1)),
        ("c", &[HIDDEN], Some(0)),
        ("w", &[HIDDEN, OUT], Some(0)),
        ("b", &[OUT], None),
    ];
    for with_relu in [false, true] {
        let whole = if with_relu { linear_relu } else { linear };
        compare(
            &tensors,
            |t| whole(&linear_relu(&t[0], &t[1], &t[2])?, &t[3], &t[4]),
            |t, group| {
                let hidden = by_column(&t[0], group, |x| linear_relu(x, &t[1], &t[2]))?;
                let sum = by_row(&hidden, group, |x| x.matmul(&t[3]), &t[4])?;
                if with_relu { relu(&sum) } else { Ok(sum) }
            },
        );
    }
}
