//! Layers, their gradients and who holds what, against the layer on one device.

use candle_core::{Tensor, Var};
use concise_wrapper::Error;
use model_parallel::tensor_parallel::convolution::{
    conv2d_relu_pool_by_channel, conv2d_relu_pool_by_filter,
};
use model_parallel::tensor_parallel::linear::{
    linear_by_column, linear_by_row, linear_relu_by_column,
};
use model_parallel::tensor_parallel::mappings::gather;
use model_parallel::tensor_parallel::{Cut, Group};
use ops::{conv2d_relu_pool, linear, linear_relu};

use super::{assert_close, assert_same_bits, fixed, noise, on_ranks};

const RANKS: [usize; 4] = [1, 2, 3, 4];

/// A result, and gradients of the loss Σ result · noise.
struct Outcome {
    y: Tensor,
    gradients: Vec<Tensor>,
}

fn outcome(y: Tensor, of: &[&Var]) -> candle_core::Result<Outcome> {
    let loss = (&y * fixed("loss", y.dims()))?.sum_all()?;
    let store = loss.backward()?;
    let gradients = of.iter().map(|var| store.get(var).unwrap().clone()).collect();
    Ok(Outcome { y: y.detach(), gradients })
}

/// A rank's part of noise, as a variable.
fn part(name: &str, shape: &[usize], cut: Cut, group: &Group) -> candle_core::Result<Var> {
    Var::from_tensor(&group.part(&fixed(name, shape), cut)?.force_contiguous()?)
}

/// The gradients of `alone` are the ranks' gradients: joined where there is a cut, else on every rank, with
/// the same bits.
fn compare(alone: &Outcome, ranks: &[Outcome], cuts: &[Option<Cut>]) {
    assert_same_bits(ranks.iter().map(|outcome| &outcome.y));
    assert_close(&ranks[0].y, &alone.y);
    assert_eq!(alone.gradients.len(), cuts.len());
    for (position, cut) in cuts.iter().enumerate() {
        let parts: Vec<&Tensor> = ranks.iter().map(|rank| &rank.gradients[position]).collect();
        match cut {
            Some(cut) => {
                let joined = Tensor::cat(&parts, cut.axis()).unwrap();
                assert_close(&joined, &alone.gradients[position]);
            }
            None => {
                assert_same_bits(parts.iter().copied());
                assert_close(parts[0], &alone.gradients[position]);
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
    let (x, w, b) = (noise("x", &[B, IN]), noise("w", &[IN, OUT]), noise("b", &[OUT]));
    let alone = outcome(linear(&x, &w, &b).unwrap(), &[&x, &w, &b]).unwrap();
    let cuts = [None, Some(Cut::new(1, OUT)), Some(Cut::new(0, OUT))];
    for ranks in RANKS {
        let outcomes = on_ranks(ranks, |group| {
            let x = noise("x", &[B, IN]);
            let w = part("w", &[IN, OUT], Cut::new(1, OUT), &group)?;
            let b = part("b", &[OUT], Cut::new(0, OUT), &group)?;
            let y = linear_by_column(&x, &w, &b, &group)?;
            assert_eq!(y.dims(), [B, Cut::new(1, OUT).range(ranks, group.rank()).len()]);
            Ok(outcome(gather(&y, Cut::new(1, OUT), &group)?, &[&x, &w, &b])?)
        });
        compare(&alone, &outcomes, &cuts);
    }
}

#[test]
fn columns_then_rows_are_two_layers() {
    let (x, a, c) = (noise("x", &[B, IN]), noise("a", &[IN, HIDDEN]), noise("c", &[HIDDEN]));
    let (w, b) = (noise("w", &[HIDDEN, OUT]), noise("b", &[OUT]));
    let y = linear(&linear_relu(&x, &a, &c).unwrap(), &w, &b).unwrap();
    let alone = outcome(y, &[&x, &a, &c, &w, &b]).unwrap();
    let at = |axis| Some(Cut::new(axis, HIDDEN));
    for ranks in RANKS {
        let outcomes = on_ranks(ranks, |group| {
            let x = noise("x", &[B, IN]);
            let a = part("a", &[IN, HIDDEN], Cut::new(1, HIDDEN), &group)?;
            let c = part("c", &[HIDDEN], Cut::new(0, HIDDEN), &group)?;
            let w = part("w", &[HIDDEN, OUT], Cut::new(0, HIDDEN), &group)?;
            let b = noise("b", &[OUT]);
            let hidden = linear_relu_by_column(&x, &a, &c, &group)?;
            let y = linear_by_row(&hidden, &w, &b, &group)?;
            Ok(outcome(y, &[&x, &a, &c, &w, &b])?)
        });
        compare(&alone, &outcomes, &[None, at(1), at(0), at(0), None]);
    }
}

/// Two convolutions, 3 → 6 → 5 channels, in both ways.
#[test]
fn two_convolutions_are_the_two_convolutions() {
    let (images, first, second) = ([2, 3, 16, 16], [6, 3, 3, 3], [5, 6, 3, 3]);
    let conv = |x: &Tensor, w: &Var, b: &Var| conv2d_relu_pool(x, w, b, 2).unwrap();
    let (x, w1, b1) = (noise("x", &images), noise("w1", &first), noise("b1", &[6]));
    let (w2, b2) = (noise("w2", &second), noise("b2", &[5]));
    let y = conv(&conv(&x, &w1, &b1), &w2, &b2);
    let alone = outcome(y, &[&x, &w1, &b1, &w2, &b2]).unwrap();
    let (filters, channels) = (Cut::new(0, 5), Cut::new(1, 6));
    for ranks in RANKS {
        let by_filter = |group: &Group| -> Result<_, Error> {
            let x = noise("x", &images);
            let w1 = part("w1", &first, Cut::new(0, 6), group)?;
            let b1 = part("b1", &[6], Cut::new(0, 6), group)?;
            let y = conv2d_relu_pool_by_filter(&x, &w1, &b1, 2, group)?;
            Ok((x, w1, b1, y))
        };
        let gathered = on_ranks(ranks, |group| {
            let (x, w1, b1, y) = by_filter(&group)?;
            let y = gather(&y, channels, &group)?;
            let w2 = part("w2", &second, filters, &group)?;
            let b2 = part("b2", &[5], filters, &group)?;
            let y = conv2d_relu_pool_by_filter(&y, &w2, &b2, 2, &group)?;
            let y = gather(&y, Cut::new(1, 5), &group)?;
            Ok(outcome(y, &[&x, &w1, &b1, &w2, &b2])?)
        });
        let of_first = Some(Cut::new(0, 6));
        let cuts = [None, of_first, of_first, Some(filters), Some(filters)];
        compare(&alone, &gathered, &cuts);
        let summed = on_ranks(ranks, |group| {
            let (x, w1, b1, y) = by_filter(&group)?;
            let w2 = part("w2", &second, channels, &group)?;
            let b2 = noise("b2", &[5]);
            let y = conv2d_relu_pool_by_channel(&y, &w2, &b2, 2, &group)?;
            Ok(outcome(y, &[&x, &w1, &b1, &w2, &b2])?)
        });
        compare(&alone, &summed, &[None, of_first, of_first, Some(channels), None]);
    }
}
