//! What GPUs did, as Chrome's trace events: a process for each GPU, a thread for each of its streams.

use std::time::Instant;

use itertools::Itertools as _;
use serde_json::{Value, json};

use crate::device::activity::Activity;

/// The number of a GPU's process: behind those of runs.
fn process(device: u32) -> u64 {
    1_000 + u64::from(device)
}

/// The number of a stream's thread. No two processes share one.
fn thread(device: u32, stream: u32) -> u64 {
    process(device) * 1_000_000 + u64::from(stream)
}

/// The events, and before them those that name processes and threads. Times are in microseconds since the trace began.
pub(super) fn events(activities: &[Activity], began: Instant) -> impl Iterator<Item = Value> {
    let devices = activities.iter().map(|activity| activity.device).unique().map(|device| {
        let name = format!("cuda:{device} kernels and copies");
        json!({"ph": "M", "name": "process_name", "pid": process(device), "args": {"name": name}})
    });
    let streams = activities.iter().map(|activity| (activity.device, activity.stream)).unique();
    let streams = streams.map(|(device, stream)| {
        json!({
            "ph": "M",
            "name": "thread_name",
            "pid": process(device),
            "tid": thread(device, stream),
            "args": {"name": format!("cuda:{device} stream {stream}")},
        })
    });
    let done = activities.iter().map(move |activity| {
        let microseconds = |from: Instant, to: Instant| (to - from).as_nanos() as f64 / 1e3;
        json!({
            "ph": "X",
            "name": activity.kind.name(),
            "cat": "gpu",
            "pid": process(activity.device),
            "tid": thread(activity.device, activity.stream),
            "ts": microseconds(began, activity.start),
            "dur": microseconds(activity.start, activity.end),
        })
    });
    devices.chain(streams).chain(done)
}
