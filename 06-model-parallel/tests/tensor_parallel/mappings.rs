//! Each operation forward and backward, as what it is on one device.

use model_parallel::tensor_parallel::{copy, reduce};

use split_batch::shard_range;

use super::{assert_close, assert_same_bits, bits, fixed, noise, on_ranks};
use crate::prelude::*;

const RANKS: [usize; 4] = [1, 2, 3, 4];
const SHAPE: [usize; 3] = [2, 5, 3];

/// What this rank alone brings.
fn own(what: &str, group: &SharedCommunicator) -> String {
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
        let outcomes = on_ranks(ranks, |_, group| {
            let x = noise("x", &SHAPE);
            run(&x, |x| copy(x, group), &fixed(&own("weights", group), &SHAPE))
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
        let outcomes = on_ranks(ranks, |_, group| {
            let x = noise(&own("x", group), &SHAPE);
            run(&x, |x| reduce(x, group), &fixed("weights", &SHAPE))
        });
        for (y, dx) in &outcomes {
            assert_close(y, &sum_of("x", ranks));
            assert_eq!(bits(dx), bits(&fixed("weights", &SHAPE)));
        }
        assert_same_bits(outcomes.iter().map(|(y, _)| y));
    }
}

#[test]
fn a_gather_joins_parts_and_its_gradient_is_cut_again() {
    // 5 features do not divide by all numbers of ranks.
    for (axis, shape) in [(1, SHAPE), (0, [5, 1, 2])] {
        for ranks in RANKS {
            let (x, weights) = (fixed("x", &shape), fixed("weights", &shape));
            let of_ranks = on_ranks(ranks, |_, group| {
                let x = part(&x, axis, group)?.force_contiguous()?;
                let x = candle_core::Var::from_tensor(&x)?;
                run(&x, |x| gather(x, axis, 5, group), &weights)
            });
            for (rank, (whole, dx)) in of_ranks.iter().enumerate() {
                let mine = shard_range(5, ranks, rank);
                let part = weights.narrow(axis, mine.start, mine.len()).unwrap();
                assert_eq!(bits(whole), bits(&x), "axis {axis}, {rank} of {ranks}");
                assert_eq!((dx.dims(), bits(dx)), (part.dims(), bits(&part)));
            }
        }
    }
}

#[test]
fn a_part_that_does_not_fit_is_refused() {
    let plan = DevicePlan::slices(2).unwrap();
    let gathered = run_ranks(&plan, super::WAIT, |rank| {
        Ok::<_, Error>(gather(&fixed("x", &SHAPE), 1, 9, &rank.into())?)
    });
    let told = gathered.unwrap_err().to_string();
    assert!(told.contains("rank 1 of 2 has 4 of 9 features along axis 1, not [2, 5, 3]"), "{told}");
}

#[test]
fn a_gradient_that_nobody_wants_is_not_sent() {
    let sent = on_ranks(3, |rank, group| {
        let (x, w) = (fixed("x", &SHAPE), noise("w", &SHAPE));
        let loss = copy(&x, group)?.mul(&w)?.sum_all()?;
        loss.backward()?;
        Ok(rank.traffic().messages)
    });
    assert_eq!(sent, [0; 3]);
}
