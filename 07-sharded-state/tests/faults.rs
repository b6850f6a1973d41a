//! A rank that fails or stalls while parameters are on their way is named to the others in time.

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex};
use std::thread::sleep;
use std::time::{Duration, Instant};

use candle_core::{Device, Tensor};
use concise_wrapper::counted::Counted;
use concise_wrapper::{Error, Model as _};
use devices::DevicePlan;
use harness::lock::locked;
use model_parallel::{UNBOUNDED, check};
use params_and_allreduce::communicator::{
    Communicator as _, Error as CommError, SharedCommunicator,
};
use params_and_allreduce::thread::run_ranks;
use sharded_state::{Sharing, Strategy};

use crate::before::Before;
use crate::cases::CASE;

const STRATEGY: Strategy = Strategy { sharing: Sharing::Zero3, prefetches: true, recomputes: None };
const TIMEOUT: Duration = Duration::from_secs(30);

/// The errors of rank 0 and rank 1. Rank 1 sends so many messages on its second connection, and then does something else.
/// With bad labels, its loss fails.
fn told(
    timeout: Duration,
    left: usize,
    instead: fn() -> Result<(), CommError>,
    labels: Option<u32>,
) -> [String; 2] {
    let (begin, told) = (Instant::now(), Mutex::new([String::new(), String::new()]));
    let failure = run_ranks(&DevicePlan::slices(2).unwrap(), timeout, |rank| {
        let mut comm: SharedCommunicator = rank.into();
        if rank.rank() == 1 {
            let left = AtomicUsize::new(left);
            let second = move || match left.fetch_update(SeqCst, SeqCst, |it| it.checked_sub(1)) {
                Ok(_) => Ok(()),
                Err(_) => instead(),
            };
            comm = Arc::new(Before { comm, first: Arc::new(|| Ok(())), second: Arc::new(second) });
        }
        let step = || -> Result<(), Error> {
            let checked = check(CASE.schedule(STRATEGY), UNBOUNDED).unwrap();
            let comm = Counted::new(comm);
            let executor = CASE.executor_of_chunks(&Device::Cpu, &comm, &checked)?;
            let mut share = CASE.batch(0, executor.hosts().of);
            share.shards = share.shards[executor.hosts().held].to_vec();
            if let (Some(label), 1) = (labels, rank.rank()) {
                let shard = &mut share.shards[1];
                shard.labels = Tensor::full(label, shard.labels.shape(), &Device::Cpu)?;
            }
            executor.step(&share, &mut *CASE.updates.optimizer(), 0.1).map(drop)
        };
        let ended = step();
        if let Err(error) = &ended {
            locked(&told)[rank.rank()] = error.to_string();
        }
        ended
    });
    assert!(failure.is_err());
    assert!(begin.elapsed() < Duration::from_secs(8), "{:?}", begin.elapsed());
    told.into_inner().unwrap()
}

/// The first gather; a later one; and the sum of the last unit, which follows seven gathers: five units forward, and of the four
/// that are gathered again, two.
#[test]
fn a_rank_whose_second_thread_fails_is_named() {
    for (left, doing) in [(0, "Wait of unit 0"), (3, "Wait of unit 3")] {
        let fails = || Err(CommError::Other("no route".to_owned()));
        let [of_other, own] = told(TIMEOUT, left, fails, None);
        assert_eq!(own, format!("stage 0: {doing} failed: no route"));
        let expected =
            format!("stage 0: {doing} failed: rank 1 failed: {own}, and rank 0 still needed it");
        assert_eq!(of_other, expected);
    }
    let [of_other, own] = told(TIMEOUT, 1, || panic!("an error of this program"), None);
    let ended = "stage 0: Wait of unit 1 failed: the background thread of this rank has ended";
    assert_eq!(own, ended);
    assert!(of_other.contains("rank 1 failed") && of_other.contains(ended), "{of_other}");
}

/// Rank 0 waits for a gather of a unit for which rank 1 will never ask.
#[test]
fn a_rank_that_fails_between_two_gathers_is_named() {
    let [of_other, own] = told(TIMEOUT, 1000, || Ok(()), Some(11));
    assert!(own.starts_with("stage 0, micro-batch 1: Forward(1) of unit 4 failed: "), "{own}");
    assert!(of_other.contains("rank 1 failed") && of_other.contains(&own), "{of_other}");
}

#[test]
fn a_rank_that_stalls_in_a_gather_is_named_in_time() {
    let stalls = || {
        sleep(Duration::from_secs(3));
        Ok(())
    };
    let [of_other, _] = told(Duration::from_secs(1), 2, stalls, None);
    let expected = "Wait of unit 2 failed: rank 0 waited 1.0 s: rank 1 is alive but sends nothing";
    assert!(of_other.ends_with(expected), "{of_other}");
}
