//! Each operation forward and backward, as what it is on one device.

use model_parallel::tensor_parallel::mappings::{copy, reduce};

use super::{assert_close, assert_same_bits, bits, fixed, noise, on_ranks, on_ranks_with};
use crate::prelude::*;

const RANKS: [usize; 4] = [1, 2, 3, 4];
const SHAPE: [usize; 3] = [2, 5, 3];

/// What this rank alone brings.
fn own(what: &str, group: &Group) -> String {
    format!("{what} of {}", group.rank())
}

fn sum_of(what: &str, ranks: usize) -> Tensor {
    let each = (0..ranks).map(|rank| fixed(&format!("{what} of {rank}"), &SHAPE));
    each.reduce(|a, b| (a + b).unwrap()).unwrap()
}

/// The result of `operation` on x, and the gradient of x for the loss Σ result · weights.
fn run(
    x: &candle_core::Var,
    operation: impl Fn(&Tensor) -> candle_core::Result<Tensor>,
    weights: &Tensor,
) -> Result<(Tensor, Tensor), Error> {
    let y = operation(x)?;
    let gradients = (&y * weights)?.sum_all()?.backward()?;
    Ok((y.detach(), gradients.get(x).unwrap().clone()))
}

#[test]
fn a_copy_is_the_same_forward_and_a_sum_backward() {
    for ranks in RANKS {
        let outcomes = on_ranks(ranks, |group| {
            let x = noise("x", &SHAPE);
            run(&x, |x| copy(x, &group), &fixed(&own("weights", &group), &SHAPE))
        });
        for (y, dx) in &outcomes {
            assert_eq!(bits(y), bits(&fixed("x", &SHAPE)));
            assert_close(dx, &sum_of("weights", ranks));
        }
        assert_same_bits(outcomes.iter().map(|(_, dx)| dx));
    }
}

#[test]
fn a_reduce_is_a_sum_forward_and_the_same_backward() {
    for ranks in RANKS {
        let outcomes = on_ranks(ranks, |group| {
            let x = noise(&own("x", &group), &SHAPE);
            run(&x, |x| reduce(x, &group), &fixed("weights", &SHAPE))
        });
        for (y, dx) in &outcomes {
            assert_close(y, &sum_of("x", ranks));
            assert_eq!(bits(dx), bits(&fixed("weights", &SHAPE)));
        }
        assert_same_bits(outcomes.iter().map(|(y, _)| y));
    }
}

#[test]
fn a_scatter_and_a_gather_are_each_others_backward() {
    // Along the middle axis, of 5, and 6 in blocks of 2: neither divides by all numbers of ranks.
    for (cut, shape) in
        [(Cut::new(1, 5), SHAPE), (Cut::in_blocks(1, 4, 2), [2, 8, 3]), (Cut::new(0, 5), [5, 1, 2])]
    {
        for ranks in RANKS {
            let (x, weights) = (fixed("x", &shape), fixed("weights", &shape));
            let part = |whole: &Tensor, rank| cut.part(whole, ranks, rank).unwrap();
            let scattered = on_ranks(ranks, |group| {
                let weights = part(&weights, group.rank());
                run(&noise("x", &shape), |x| scatter(x, cut, &group), &weights)
            });
            let gathered = on_ranks(ranks, |group| {
                let x = candle_core::Var::from_tensor(&part(&x, group.rank()).force_contiguous()?)?;
                run(&x, |x| gather(x, cut, &group), &weights)
            });
            for rank in 0..ranks {
                let (part_of_x, dx) = &scattered[rank];
                assert_eq!(bits(part_of_x), bits(&part(&x, rank)), "{cut:?}, {rank} of {ranks}");
                assert_eq!(bits(dx), bits(&weights));
                let (whole, d_part) = &gathered[rank];
                assert_eq!(bits(whole), bits(&x));
                assert_eq!(bits(d_part), bits(&part(&weights, rank)));
            }
        }
    }
}

#[test]
fn a_gradient_that_nobody_wants_is_not_sent() {
    let sent = on_ranks_with(3, Algorithm::Ring, |rank, group| {
        let (x, w) = (fixed("x", &SHAPE), noise("w", &SHAPE));
        let loss = copy(&x, &group)?.mul(&w)?.sum_all()?;
        loss.backward()?;
        Ok(rank.traffic().messages)
    });
    assert_eq!(sent, [0; 3]);
}
