//! A device keeps to its cores: with one-core slices, two devices use two threads and no more.
//!
//! The system's own account of processor time per thread is read from /proc, so this runs on Linux.
//! There is one test in this file, so that nothing else runs in its process.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the right answer")]
#![cfg(target_os = "linux")]

use std::collections::BTreeMap;
use std::time::Duration;

use candle_core::{DType, Device};
use course_tests::lenet::local_batch;
use datasets::{Dataset, PIXELS};
use devices::DevicePlan;
use params_and_allreduce::communicator::Communicator;
use params_and_allreduce::thread::run_ranks;
use params_and_allreduce::{Algorithm, get_params};
use scratch_data_parallel::{Error, train_batch};
use single_gpu::lenet::Lenet;

/// Processor time of every thread of this process so far, in clock ticks, by id, with its name.
fn ticks() -> BTreeMap<u32, (String, u64)> {
    let mut threads = BTreeMap::new();
    for entry in std::fs::read_dir("/proc/self/task").unwrap() {
        let path = entry.unwrap().path();
        // A thread may end between the listing and the reading.
        let Ok(stat) = std::fs::read_to_string(path.join("stat")) else {
            continue;
        };
        // "id (name) state ppid …": the name may hold spaces, so count from its closing bracket.
        let (head, tail) = stat.rsplit_once(')').unwrap();
        let (id, name) = head.split_once(" (").unwrap();
        let fields: Vec<&str> = tail.split_whitespace().collect();
        let time = |field: usize| fields[field].parse::<u64>().unwrap();
        threads.insert(id.parse().unwrap(), (name.to_owned(), time(11) + time(12)));
    }
    threads
}

#[test]
fn two_one_core_devices_use_two_threads_and_no_more() {
    let data = Dataset::new(vec![[90; PIXELS]; 256], vec![4; 256]).unwrap();
    let batch = data.batch(&(0..256).collect::<Vec<u32>>(), DType::F32).unwrap();
    let plan = DevicePlan::slices(2).unwrap();
    let initial = Lenet::new(1, DType::F32, &Device::Cpu).unwrap();
    let times = run_ranks(&plan, Duration::from_secs(60), |rank| {
        let model = Lenet::with_parameters(get_params(initial.parameters(), rank.device())?)?;
        let shard = local_batch(&batch, 2, [rank.rank()])?;
        for _ in 0..40 {
            train_batch(rank, &model, &shard, 0.01, Algorithm::Ring)?;
        }
        let times = ticks();
        // Only threads that are there are counted: nobody ends before everybody has read theirs.
        rank.barrier()?;
        Ok::<_, Error>(times)
    });
    let times = times.unwrap().pop().unwrap();
    let total: u64 = times.values().map(|(_, ticks)| ticks).sum();
    for (name, ticks) in times.values() {
        println!("{name:<20} {ticks:>6} ticks, {:.1} %", 100.0 * *ticks as f64 / total as f64);
    }
    assert!(total >= 20, "{total} ticks are too few to tell");
    let (devices, others): (Vec<_>, Vec<_>) =
        times.values().partition(|(name, _)| name.starts_with("cpu:"));
    assert_eq!(devices.len(), 2, "one thread a device: {devices:?}");
    for (name, ticks) in devices {
        assert!(ticks * 5 > total, "{name} did {ticks} of {total} ticks");
    }
    let elsewhere: u64 = others.iter().map(|(_, ticks)| ticks).sum();
    assert!(
        elsewhere * 20 <= total,
        "{elsewhere} of {total} ticks outside the devices: {others:?}"
    );
}
