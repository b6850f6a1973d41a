//! NCCL against a plain sum. What there are too few GPUs for is skipped, and says so.

#![cfg(feature = "nccl")]

use std::env;
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use backends::nccl::{self, NcclRank};
use candle_core::{DType, Device, Tensor};
use devices::{DeviceKind, DevicePlan, Handover};
use harness::launcher::{MEETING, Place};
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::{Error, SharedCommunicator};
use params_and_allreduce::thread::{Rank, run_ranks};

const TIMEOUT: Duration = Duration::from_secs(60);

/// A plan with a GPU for each rank, with the first of these numbers of ranks for which there are enough. `None` where there are
/// too few, which this says.
fn gpus(what: &str, numbers: &[usize]) -> Option<DevicePlan> {
    let mut why = String::new();
    for &ranks in numbers {
        why = match DevicePlan::new(DeviceKind::Cuda, ranks, None) {
            Ok(plan) if plan.note().is_none() => return Some(plan),
            Ok(_) => format!("fewer than {ranks} GPUs"),
            Err(error) => error.to_string(),
        };
    }
    eprintln!("SKIPPED: {what}: {why}");
    None
}

/// Runs `work` with NCCL's all-reduce. A rank waits for a sum at most `limit`.
fn with_nccl<R>(
    rank: &Rank,
    limit: Duration,
    work: impl FnOnce(&SharedCommunicator) -> Result<R, Error>,
) -> Result<R, Error> {
    // Also a rank that is alone adds up by NCCL here.
    let nccl: SharedCommunicator = Arc::new(NcclRank::new(rank.into(), limit));
    let outcome = work(&nccl)?;
    nccl.leave()?;
    Ok(outcome)
}

/// Whole numbers that bf16 holds exactly, so that every order of adding gives the same sum.
fn contribution(rank: usize, len: usize) -> Vec<f64> {
    (0..len).map(|i| ((rank + 1) * (i + 2) % 17) as f64).collect()
}

#[test]
fn every_rank_gets_the_sum() {
    for ranks in 1..=8 {
        let Some(plan) = gpus(&format!("NCCL between {ranks} GPUs"), &[ranks]) else { return };
        for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
            for len in [0, 1, 5, 100_003] {
                let sums = run_ranks(&plan, TIMEOUT, |rank| {
                    with_nccl(rank, TIMEOUT, |nccl| {
                        // A view of something larger: only what it shows may be added.
                        let mine = [contribution(nccl.rank(), len), vec![99.0; 3]].concat();
                        let mine = Tensor::new(mine.as_slice(), &Device::Cpu)?.to_dtype(dtype)?;
                        let mine = mine.to_device(nccl.device())?.narrow(0, 0, len)?;
                        let sum = nccl.all_reduce(&mine, Algorithm::Native)?;
                        assert_eq!(sum.dtype(), dtype);
                        // And once more, on the result of the first.
                        let twice = nccl.all_reduce(&sum, Algorithm::Native)?;
                        let numbers = |tensor: &Tensor| {
                            tensor.to_device(&Device::Cpu)?.to_dtype(DType::F64)?.to_vec1::<f64>()
                        };
                        Ok((numbers(&sum)?, numbers(&twice)?))
                    })
                })
                .unwrap();
                let mut expected = vec![0.0; len];
                for rank in 0..ranks {
                    for (sum, term) in expected.iter_mut().zip(contribution(rank, len)) {
                        *sum += term;
                    }
                }
                for (rank, (sum, twice)) in sums.iter().enumerate() {
                    assert_eq!(sum, &expected, "rank {rank} of {ranks}, {dtype:?}, {len} numbers");
                    for (twice, sum) in twice.iter().zip(sum) {
                        // Partial sums beyond 256 are rounded to eight bits in bf16, at every addition.
                        assert!((twice - sum * ranks as f64).abs() <= twice / 64.0);
                    }
                }
            }
        }
    }
}

/// NCCL reads a copy of such a tensor, which nobody else holds.
#[test]
fn a_tensor_that_is_not_in_one_piece_is_added_up() {
    const SIDE: usize = 512;
    let Some(plan) = gpus("a sum of a turned tensor", &[2, 1]) else { return };
    run_ranks(&plan, TIMEOUT, |rank| {
        with_nccl(rank, TIMEOUT, |nccl| {
            let rows = Tensor::arange(0u32, (SIDE * SIDE) as u32, nccl.device())?;
            let rows = rows.to_dtype(DType::F32)?.reshape((SIDE, SIDE))?;
            let sum = nccl.all_reduce(&rows.t()?, Algorithm::Native)?.t()?.contiguous()?;
            let expected = (rows * nccl.world_size() as f64)?;
            let off = (sum - expected)?.abs()?.flatten_all()?.max(0)?;
            assert_eq!(off.to_scalar::<f32>()?, 0.0);
            Ok(())
        })
    })
    .unwrap();
}

/// NCCL's stream is another than candle's, which is still at work on a gradient when its bucket is to be added up.
#[test]
fn a_sum_waits_for_what_candle_has_queued() {
    const SIDE: usize = 1024;
    let Some(plan) = gpus("a sum behind candle's work", &[2, 1]) else { return };
    run_ranks(&plan, TIMEOUT, |rank| {
        with_nccl(rank, TIMEOUT, |nccl| {
            let device = nccl.device();
            let ones = Tensor::ones((SIDE, SIDE), DType::F32, device)?;
            let average = (&ones / SIDE as f64)?;
            let bucket = Tensor::zeros(SIDE * SIDE, DType::F32, device)?;
            let background = nccl.background()?;
            for step in 1..=5 {
                // A millisecond of products, all of whose numbers are 1 to the last bit.
                let product = (0..20).try_fold(ones.clone(), |it, _| it.matmul(&average))?;
                let gradient = (product * f64::from(step))?.flatten_all()?;
                bucket.slice_set(&gradient, 0, 0)?;
                // Another thread's sums do not wait for what is queued after the handover.
                let handed = [Algorithm::Native, Algorithm::Ring]
                    .map(|algorithm| Ok::<_, Error>((algorithm, Handover::new(&bucket)?)));
                let sum = nccl.all_reduce(&bucket, Algorithm::Native)?;
                bucket.slice_set(&bucket.zeros_like()?, 0, 0)?;
                // Its memory may be had by others as soon as it is read.
                let copy = Tensor::zeros(SIDE * SIDE, DType::F32, device)?;
                copy.slice_set(&sum, 0, 0)?;
                drop(sum);
                let next = nccl.all_reduce(&(&ones * 0.0)?, Algorithm::Native)?;
                let mut sums = vec![copy];
                for handed in handed {
                    let (algorithm, bucket) = handed?;
                    sums.push(background.all_reduce_handed_over(bucket, algorithm)?);
                }
                for sum in sums {
                    let bounds = [sum.min(0)?.to_scalar::<f32>()?, sum.max(0)?.to_scalar()?];
                    let expected = (step * nccl.world_size() as i32) as f32;
                    assert_eq!(bounds, [expected; 2], "step {step}");
                }
                drop(next);
            }
            // Before it leaves NCCL.
            background.leave()
        })
    })
    .unwrap();
}

#[test]
fn two_ranks_on_one_gpu_are_refused() {
    let plan = match DevicePlan::new(DeviceKind::Cuda, 2, None) {
        Ok(plan) if plan.note().is_some() => plan,
        Ok(_) => return eprintln!("SKIPPED: two ranks on one GPU: every rank has its own here"),
        Err(error) => return eprintln!("SKIPPED: two ranks on one GPU: {error}"),
    };
    let failure = run_ranks(&plan, TIMEOUT, |rank| {
        with_nccl(rank, TIMEOUT, |nccl| {
            nccl.all_reduce(&Tensor::new(1f32, nccl.device())?, Algorithm::Native)
        })
    });
    let message = failure.unwrap_err().to_string();
    assert!(message.contains("ranks 0 and 1 share a GPU"), "{message}");
}

#[test]
fn a_rank_that_stalls_ends_the_wait_of_the_others() {
    let Some(plan) = gpus("a rank that stalls between 2 GPUs", &[2]) else { return };
    let limit = Duration::from_secs(4);
    let failure = run_ranks(&plan, TIMEOUT, |rank| {
        with_nccl(rank, limit, |nccl| {
            let ones = Tensor::ones(4, DType::F32, nccl.device())?;
            // All ranks join.
            nccl.all_reduce(&ones, Algorithm::Native)?;
            if nccl.rank() == 1 {
                thread::sleep(2 * limit);
                return Ok(());
            }
            nccl.all_reduce(&ones, Algorithm::Native).map(|_| ())
        })
    });
    let message = failure.unwrap_err().to_string();
    assert!(message.contains("rank 0 waited"), "{message}");
}

/// The chapter's algorithms go over the messages, and any thread may use a rank.
#[test]
fn other_algorithms_and_other_threads_work() {
    let Some(plan) = gpus("other algorithms beside NCCL", &[2, 1]) else { return };
    run_ranks(&plan, TIMEOUT, |rank| {
        with_nccl(rank, TIMEOUT, |nccl| {
            let ones = Tensor::ones(5, DType::F32, nccl.device())?;
            let expected = vec![nccl.world_size() as f32; 5];
            for algorithm in Algorithm::OURS.into_iter().chain([Algorithm::Native]) {
                let sum = thread::scope(|scope| {
                    scope.spawn(|| nccl.all_reduce(&ones, algorithm)).join().unwrap()
                })?;
                assert_eq!(sum.to_vec1::<f32>()?, expected, "{algorithm}");
            }
            Ok(())
        })
    })
    .unwrap();
}

/// A process of its own, because a world needs NCCL's variable when it starts.
#[test]
fn nccl_alone_has_collectives_and_no_messages() {
    if gpus("a world of NCCL alone", &[1]).is_none() {
        return;
    }
    let output = Command::new(env::current_exe().unwrap())
        .args(["--ignored", "--exact", "world_of_one", "--nocapture"])
        .env(MEETING, "127.0.0.1:19876")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("1 passed"), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
#[ignore = "the process of another test"]
fn world_of_one() {
    let meeting = env::var(MEETING).unwrap();
    let place = Place { rank: 0, world_size: 1, local_rank: 0, meeting };
    let world = nccl::connect(&place, TIMEOUT).unwrap();
    assert!(!world.has_messages);
    let kept = world.run(&gpus("", &[1]).unwrap(), |_, rank| {
        let values = Tensor::new(&[1f32, 2.0, 3.0], rank.device())?;
        let background = rank.background()?;
        for algorithm in [Algorithm::Ring, Algorithm::Native] {
            assert_eq!(rank.all_reduce(&values, algorithm)?.to_vec1::<f32>()?, [1.0, 2.0, 3.0]);
        }
        assert_eq!(background.broadcast(&values, 0)?.to_vec1::<f32>()?, [1.0, 2.0, 3.0]);
        let handed = Handover::new(&values)?;
        let sum = background.all_reduce_handed_over(handed, Algorithm::Native)?;
        assert_eq!(sum.to_vec1::<f32>()?, [1.0, 2.0, 3.0]);
        assert_eq!(rank.all_gather(&values, 3)?.to_vec1::<f32>()?, [1.0, 2.0, 3.0]);
        assert_eq!(rank.reduce_scatter(&values)?.to_vec1::<f32>()?, [1.0, 2.0, 3.0]);
        rank.barrier()?;
        let wrong = rank.all_gather(&values, 4).unwrap_err().to_string();
        assert!(wrong.contains("its chunk must be [4], not [3]"), "{wrong}");
        let none = rank.broadcast(&values, 1).unwrap_err();
        assert!(matches!(none, Error::NoSuchRank { other: 1, .. }), "{none}");
        let sent = rank.send(0, &values).unwrap_err().to_string();
        let received = rank.recv(0, values.shape(), DType::F32).unwrap_err().to_string();
        let handed = background.all_reduce_handed_over(Handover::new(&values)?, Algorithm::Ring);
        for refusal in [sent, received, handed.unwrap_err().to_string()] {
            assert!(refusal.starts_with("NCCL alone connects these ranks"), "{refusal}");
        }
        Ok::<_, Error>(rank)
    });
    drop(world);
    let late = kept.barrier().unwrap_err().to_string();
    assert!(late.contains("has ended"), "{late}");
}
