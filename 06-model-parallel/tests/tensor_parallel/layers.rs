//! Layers, their gradients and who holds what, against the layer on one device.

use candle_core::Result;
use model_parallel::tensor_parallel::convolution::{
    conv2d_relu_pool_by_channel, conv2d_relu_pool_by_filter,
};
use model_parallel::tensor_parallel::linear::linear_relu_by_column;
use ops::{conv2d_relu_pool, linear_relu};

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

/// A tensor of noise by name and shape, and the way in which ranks share it.
type Spec<'a> = (&'a str, &'a [usize], Option<Cut>);

/// Compares a function of some tensors on one device with the same function in parts on 1 to 4 ranks: the result, and the
/// gradients. The gradients of parts are joined; the other gradients have the same bits on every rank.
fn compare(
    tensors: &[Spec<'_>],
    alone: impl Fn(&[Var]) -> Result<Tensor>,
    in_parts: impl Fn(&[Var], &Group) -> Result<Tensor> + Sync,
) {
    let whole: Vec<Var> = tensors.iter().map(|(name, shape, _)| noise(name, shape)).collect();
    let alone = outcome(alone(&whole).unwrap(), &whole).unwrap();
    for ranks in RANKS {
        let of_ranks = on_ranks(ranks, |group| {
            let part = |(name, shape, cut): &Spec<'_>| match cut {
                Some(cut) => {
                    Var::from_tensor(&group.part(&fixed(name, shape), *cut)?.force_contiguous()?)
                }
                None => Ok(noise(name, shape)),
            };
            let parts = tensors.iter().map(part).collect::<Result<Vec<_>>>()?;
            Ok(outcome(in_parts(&parts, &group)?, &parts)?)
        });
        assert_same_bits(of_ranks.iter().map(|outcome| &outcome.y));
        assert_close(&of_ranks[0].y, &alone.y);
        for (position, (_, _, cut)) in tensors.iter().enumerate() {
            let parts: Vec<&Tensor> = of_ranks.iter().map(|it| &it.gradients[position]).collect();
            let expected = &alone.gradients[position];
            match cut {
                Some(cut) => assert_close(&Tensor::cat(&parts, cut.axis()).unwrap(), expected),
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

/// A cut along an axis of so many features.
fn cut(axis: usize, features: usize) -> Option<Cut> {
    Some(Cut::new(axis, features))
}

#[test]
fn a_layer_by_columns_is_the_layer() {
    let tensors: [Spec<'_>; 3] =
        [("x", &[B, IN], None), ("w", &[IN, OUT], cut(1, OUT)), ("b", &[OUT], cut(0, OUT))];
    compare(
        &tensors,
        |t| linear(&t[0], &t[1], &t[2]),
        |t, group| {
            let y = linear_by_column(&t[0], &t[1], &t[2], group)?;
            let columns = Cut::new(1, OUT).range(group.ranks(), group.rank()).len();
            assert_eq!(y.dims(), [B, columns]);
            gather(&y, Cut::new(1, OUT), group)
        },
    );
}

#[test]
fn columns_then_rows_are_two_layers() {
    let tensors: [Spec<'_>; 5] = [
        ("x", &[B, IN], None),
        ("a", &[IN, HIDDEN], cut(1, HIDDEN)),
        ("c", &[HIDDEN], cut(0, HIDDEN)),
        ("w", &[HIDDEN, OUT], cut(0, HIDDEN)),
        ("b", &[OUT], None),
    ];
    compare(
        &tensors,
        |t| linear(&linear_relu(&t[0], &t[1], &t[2])?, &t[3], &t[4]),
        |t, group| {
            let hidden = linear_relu_by_column(&t[0], &t[1], &t[2], group)?;
            linear_by_row(&hidden, &t[3], &t[4], group)
        },
    );
}

/// Two convolutions, 3 → 6 → 5 channels: the channels between them are gathered, or the second one sums its terms.
#[test]
fn two_convolutions_are_the_two_convolutions() {
    for gathered in [true, false] {
        let second = if gathered { [cut(0, 5), cut(0, 5)] } else { [cut(1, 6), None] };
        let tensors: [Spec<'_>; 5] = [
            ("x", &[2, 3, 16, 16], None),
            ("w1", &[6, 3, 3, 3], cut(0, 6)),
            ("b1", &[6], cut(0, 6)),
            ("w2", &[5, 6, 3, 3], second[0]),
            ("b2", &[5], second[1]),
        ];
        compare(
            &tensors,
            |t| conv2d_relu_pool(&conv2d_relu_pool(&t[0], &t[1], &t[2], 2)?, &t[3], &t[4], 2),
            |t, group| {
                let y = conv2d_relu_pool_by_filter(&t[0], &t[1], &t[2], 2, group)?;
                if !gathered {
                    return conv2d_relu_pool_by_channel(&y, &t[3], &t[4], 2, group);
                }
                let y = gather(&y, Cut::new(1, 6), group)?;
                let y = conv2d_relu_pool_by_filter(&y, &t[3], &t[4], 2, group)?;
                gather(&y, Cut::new(1, 5), group)
            },
        );
    }
}
