//! Every strategy has the numbers of one device.

use ops::difference::largest_difference;
use sharded_state::{Sharing, Strategy};

use crate::cases::{CASE, Case, Trained, Updates, values};

/// All strategies.
pub fn strategies() -> Vec<Strategy> {
    let mut all = Vec::new();
    for sharing in [Sharing::Ddp, Sharing::Zero1, Sharing::Zero2, Sharing::Zero3] {
        for prefetches in [false, true] {
            for recomputes in [None, Some(1), Some(2)] {
                if !prefetches || sharing == Sharing::Zero3 {
                    all.push(Strategy { sharing, prefetches, recomputes });
                }
            }
        }
    }
    all
}

fn close(found: &Trained, expected: &Trained, what: &str) {
    for (found, expected) in [(&found.weights, &expected.weights), (&found.state, &expected.state)]
    {
        let difference = largest_difference(found, expected).unwrap();
        assert!(difference < 1e-10, "{what}: {difference:e}");
    }
    for (found, expected) in found.losses.iter().zip(&expected.losses) {
        assert!((found / expected - 1.0).abs() < 1e-10, "{what}: {found} {expected}");
    }
}

#[test]
fn every_strategy_equals_one_device() {
    for updates in [Updates::Momentum, Updates::AdamW] {
        for ranks in 1..=4 {
            for micro_batches in 1..=4 {
                let case = Case { updates, ranks, micro_batches, ..CASE };
                let alone = case.alone();
                for strategy in strategies() {
                    close(&case.train(strategy), &alone, &format!("{case:?} {strategy:?}"));
                }
            }
        }
    }
}

#[test]
fn prefetch_and_recomputation_change_no_bit() {
    for ranks in [2, 3] {
        let case = Case { ranks, ..CASE };
        for strategy in strategies() {
            let plain = Strategy { prefetches: false, recomputes: None, ..strategy };
            let (found, expected) = (case.train(strategy), case.train(plain));
            assert_eq!(values(&found.weights), values(&expected.weights), "{strategy:?}");
            assert_eq!(values(&found.state), values(&expected.state), "{strategy:?}");
            assert_eq!(found.losses, expected.losses, "{strategy:?}");
        }
    }
}
