//! Ranks that do not bring the same.

use std::sync::atomic::{AtomicUsize, Ordering};

use candle_core::{DType, Device, Tensor};
use devices::DevicePlan;
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::{Communicator as _, Error};
use params_and_allreduce::thread::run_ranks;

use crate::PATIENT;
use crate::collective::Collective;

#[test]
fn ranks_that_do_not_agree_are_told_so() {
    for collective in Collective::of_numbers() {
        for ranks in [2, 3, 6] {
            for odd in 0..ranks {
                for (len, dtype) in [(10, DType::F64), (11, DType::F32)] {
                    let failure = disagreement(collective, ranks, odd, (len, dtype));
                    assert!(
                        failure.contains("sent"),
                        "{collective:?}, {odd} of {ranks}: {failure}"
                    );
                    assert!(failure.contains("expected"), "{collective:?}: {failure}");
                }
            }
        }
    }
}

#[test]
fn pieces_of_a_tensor_are_no_tensor() {
    // What goes around the ring at once, and twice that.
    const PIECE: usize = (2 << 20) / size_of::<f32>();
    for (ranks, odd) in [(2, 0), (2, 1), (3, 1)] {
        for lengths in [(PIECE, 2 * PIECE), (2 * PIECE, PIECE), (2 * PIECE, 2 * PIECE + 1)] {
            let sums = AtomicUsize::new(0);
            let plan = DevicePlan::slices(ranks).unwrap();
            let failure = run_ranks(&plan, PATIENT, |rank| {
                let len = if rank.rank() == odd { lengths.1 } else { lengths.0 };
                let tensor = Tensor::ones(len, DType::F32, &Device::Cpu)?;
                rank.all_reduce(&tensor, Algorithm::Ring)?;
                sums.fetch_add(1, Ordering::SeqCst);
                Ok::<_, Error>(())
            });
            let told = failure.unwrap_err().to_string();
            assert!(told.contains("expected"), "{told}");
            assert_eq!(sums.into_inner(), 0, "{lengths:?}: somebody took it for a sum");
        }
    }
}

fn disagreement(
    collective: Collective,
    ranks: usize,
    odd: usize,
    odd_one: (usize, DType),
) -> String {
    let plan = DevicePlan::slices(ranks).unwrap();
    let failure = run_ranks(&plan, PATIENT, |rank| {
        let (len, dtype) = if rank.rank() == odd { odd_one } else { (10, DType::F32) };
        let tensor = Tensor::ones(len, dtype, &Device::Cpu)?;
        collective.apply(&rank.into(), &tensor, 0)
    });
    failure.unwrap_err().to_string()
}
