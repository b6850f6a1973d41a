//! Every collective against a plain sum: random shapes, element types and numbers of ranks.
//!
//! The values are whole numbers so small that every sum of nine is exact even in bf16, whose eight bits
//! hold the whole numbers up to 256. So any order of adding must give the very same numbers.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the right answer")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use candle_core::{DType, Device, Tensor};
use devices::DevicePlan;
use params_and_allreduce::Algorithm;
use params_and_allreduce::all_reduce::two_levels;
use params_and_allreduce::collectives::chunk_range;
use params_and_allreduce::communicator::{Communicator, Error};
use params_and_allreduce::thread::{Rank, run_ranks};
use proptest::prelude::*;
use proptest::sample::select;

const LARGEST: i64 = 28;

#[derive(Clone, Debug)]
struct Case {
    shape: Vec<usize>,
    dtype: DType,
    ranks: usize,
    /// Whether the tensors are views with their dimensions in another order than their memory.
    strided: bool,
    seed: u64,
}

fn cases() -> impl Strategy<Value = Case> {
    let shape = prop::collection::vec(0..=7usize, 0..=3);
    let dtype = select(vec![DType::F32, DType::F64, DType::BF16, DType::F16]);
    (shape, dtype, 1..=9usize, any::<bool>(), any::<u64>()).prop_map(
        |(shape, dtype, ranks, strided, seed)| Case { shape, dtype, ranks, strided, seed },
    )
}

impl Case {
    fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// What a rank brings: whole numbers from −28 to 28.
    fn tensor(&self, rank: usize) -> Tensor {
        let number = |i: usize| {
            let mixed =
                (self.seed ^ ((rank * 1000 + i) as u64)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            ((mixed >> 40) as i64 % (2 * LARGEST + 1) - LARGEST) as f64
        };
        let values: Vec<f64> = (0..self.len()).map(number).collect();
        if !self.strided {
            let tensor = Tensor::from_vec(values, self.shape.as_slice(), &Device::Cpu).unwrap();
            return tensor.to_dtype(self.dtype).unwrap();
        }
        let reversed: Vec<usize> = self.shape.iter().rev().copied().collect();
        let order: Vec<usize> = (0..self.shape.len()).rev().collect();
        let tensor = Tensor::from_vec(values, reversed, &Device::Cpu).unwrap();
        tensor.to_dtype(self.dtype).unwrap().permute(order).unwrap()
    }

    fn plain_sum(&self) -> Vec<f64> {
        let mut sum = vec![0.0; self.len()];
        for rank in 0..self.ranks {
            for (sum, number) in sum.iter_mut().zip(numbers(&self.tensor(rank))) {
                *sum += number;
            }
        }
        sum
    }

    /// Runs a collective in all ranks; every result must keep the element type.
    fn run(&self, work: impl Fn(&Rank, &Tensor) -> Result<Tensor, Error> + Sync) -> Vec<Tensor> {
        let results = in_ranks(self.ranks, |rank| work(rank, &self.tensor(rank.rank())));
        assert!(results.iter().all(|result| result.dtype() == self.dtype), "{self:?}");
        results
    }
}

/// An all-reduce with its name.
type Named = (String, Box<dyn Fn(&Rank, &Tensor) -> Result<Tensor, Error> + Sync>);

/// The algorithms of the chapter, and two levels on every number of hosts that the ranks can form.
fn all_reduces(ranks: usize) -> impl Iterator<Item = Named> {
    let ours = Algorithm::OURS.into_iter().map(|algorithm| -> Named {
        (algorithm.to_string(), Box::new(move |rank, mine| rank.all_reduce(mine, algorithm)))
    });
    let sizes = (1..=ranks).filter(move |size| ranks.is_multiple_of(*size));
    let levels = sizes.flat_map(|size| Algorithm::OURS.map(|between| (size, between)));
    ours.chain(levels.map(|(size, between)| -> Named {
        let name = format!("two levels, {size} on each host, {between} between hosts");
        (name, Box::new(move |rank, mine| two_levels(&rank.into(), size, mine, between)))
    }))
}

fn in_ranks<R: Send>(ranks: usize, work: impl Fn(&Rank) -> Result<R, Error> + Sync) -> Vec<R> {
    let plan = DevicePlan::slices(ranks).unwrap();
    run_ranks(&plan, Duration::from_secs(20), work).unwrap()
}

/// The elements of a tensor in order; the way to f64 is exact.
fn numbers(tensor: &Tensor) -> Vec<f64> {
    let tensor = tensor.to_dtype(DType::F64).unwrap();
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn all_reduce_is_the_plain_sum(case in cases()) {
        for (name, all_reduce) in all_reduces(case.ranks) {
            for result in case.run(&all_reduce) {
                prop_assert_eq!(result.dims(), case.shape.as_slice());
                prop_assert_eq!(numbers(&result), case.plain_sum(), "{}", name);
            }
        }
    }

    #[test]
    fn reduce_scatter_gives_each_rank_its_chunk(case in cases()) {
        let expected = case.plain_sum();
        for (rank, result) in case.run(|rank, mine| rank.reduce_scatter(mine)).iter().enumerate() {
            let chunk = chunk_range(case.len(), case.ranks, rank);
            prop_assert_eq!(result.dims(), &[chunk.len()][..]);
            prop_assert_eq!(numbers(result), &expected[chunk]);
        }
    }

    #[test]
    fn all_gather_joins_the_chunks_in_rank_order(case in cases()) {
        let whole = case.tensor(0).flatten_all().unwrap();
        let results = case.run(|rank, _| {
            let chunk = chunk_range(case.len(), case.ranks, rank.rank());
            rank.all_gather(&whole.narrow(0, chunk.start, chunk.len())?, case.len())
        });
        for result in results {
            prop_assert_eq!(numbers(&result), numbers(&whole));
        }
    }

    #[test]
    fn broadcast_gives_everyone_the_roots_tensor(case in cases(), root in any::<prop::sample::Index>()) {
        let root = root.index(case.ranks);
        for result in case.run(|rank, mine| rank.broadcast(mine, root)) {
            prop_assert_eq!(result.dims(), case.shape.as_slice());
            prop_assert_eq!(numbers(&result), numbers(&case.tensor(root)));
        }
    }

    #[test]
    fn nobody_passes_a_barrier_before_all_have_arrived(ranks in 1..=9usize, late in 0..9usize) {
        let arrived = AtomicUsize::new(0);
        let seen = in_ranks(ranks, |rank| {
            if rank.rank() == late {
                std::thread::sleep(Duration::from_millis(2));
            }
            arrived.fetch_add(1, Ordering::SeqCst);
            rank.barrier()?;
            Ok(arrived.load(Ordering::SeqCst))
        });
        prop_assert_eq!(seen, vec![ranks; ranks]);
    }

    /// Numbers that do round: what one rank gets, all get, to the last bit.
    #[test]
    fn every_rank_gets_the_same_bits(case in cases()) {
        for (name, all_reduce) in all_reduces(case.ranks) {
            let results = case.run(|rank, mine| {
                let uneven = (mine.force_contiguous()? * std::f64::consts::FRAC_1_PI)?;
                all_reduce(rank, &uneven)
            });
            let bits = |result: &Tensor| -> Vec<u64> {
                numbers(result).iter().map(|number| number.to_bits()).collect()
            };
            for result in &results {
                prop_assert_eq!(bits(result), bits(&results[0]), "{}", name);
            }
        }
    }
}

/// Large tensors go around the ring piece by piece.
#[test]
fn pieces_of_a_large_tensor_come_together_in_their_order() {
    let bytes = (5 << 20) + 12;
    // What is below zero is 0 in u32.
    for dtype in [DType::F32, DType::F64, DType::BF16, DType::F16, DType::U32] {
        // Some of them are views of a matrix that lies the other way round.
        for (ranks, strided) in [(1, false), (2, false), (3, true), (5, false)] {
            let shape = vec![2, bytes / 2 / dtype.size_in_bytes()];
            let case = Case { shape, dtype, ranks, strided, seed: 7 };
            let expected = case.plain_sum();
            for result in case.run(|rank, mine| rank.all_reduce(mine, Algorithm::Ring)) {
                assert_eq!(result.dims(), case.shape);
                assert!(numbers(&result) == expected, "{dtype:?}, {ranks} ranks");
            }
            for algorithm in [Algorithm::OneShot, Algorithm::Naive, Algorithm::Tree] {
                let results = case.run(|rank, mine| rank.all_reduce(mine, algorithm));
                assert!(numbers(&results[ranks - 1]) == expected, "{dtype:?}, {algorithm}");
            }
        }
    }
}

#[test]
fn a_root_that_does_not_exist_and_a_chunk_of_another_length_are_refused() {
    in_ranks(2, |rank| {
        let tensor = Tensor::zeros(3, DType::F32, &Device::Cpu)?;
        let message = rank.broadcast(&tensor, 2).unwrap_err().to_string();
        assert!(message.contains("rank 2 in a world of 2"), "{message}");
        let message = rank.all_gather(&tensor, 3).unwrap_err().to_string();
        assert!(message.contains("its chunk must be ["), "{message}");
        Ok(())
    });
}

#[test]
fn hosts_with_different_numbers_of_ranks_are_refused() {
    for size in [0, 2, 4] {
        in_ranks(3, |rank| {
            let tensor = Tensor::zeros(3, DType::F32, &Device::Cpu)?;
            let error = two_levels(&rank.into(), size, &tensor, Algorithm::Ring).unwrap_err();
            let expected = format!("3 ranks cannot form hosts of {size} ranks each");
            assert_eq!(error.to_string(), expected);
            Ok(())
        });
    }
}

#[test]
fn threads_have_no_native_all_reduce_and_say_what_it_needs() {
    in_ranks(2, |rank| {
        let tensor = Tensor::zeros(3, DType::F32, &Device::Cpu)?;
        let error = rank.all_reduce(&tensor, Algorithm::Native).unwrap_err().to_string();
        assert!(error.starts_with("there is no native all-reduce here: it needs NCCL"), "{error}");
        assert!(error.contains("--features nccl") && error.contains("--features mpi"), "{error}");
        Ok(())
    });
}
