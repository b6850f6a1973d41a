//! Stage 5's training of a narrow ResNet-18 on ranks, and the picture of a step, yours above ours.

use std::collections::HashMap;
use std::path::PathBuf;

use concise_wrapper::ddp::Reduction;
use concise_wrapper::ddp::bucket::BucketCaps;
use concise_wrapper::slow_link::{SlowNetwork, Slowness};
use drawing::Place;
use harness::cli::ReportArguments;
use harness::report::file::write_flag;
use harness::report::outputs::Outputs;
use harness::report::summary::Summary;
use harness::report::timeline::{chart, median_step};
use harness::report::trace::{self, COMMUNICATION, STEPS, Work};
use params_and_allreduce::thread::{RankFailure, run_ranks_with};
use serde_json::Value;

use super::prelude::*;

/// Small buckets, as the network is narrow.
pub(super) const CAPS: BucketCaps = BucketCaps { first: 50_000, others: 150_000 };

/// Buckets that travel during the backward pass.
pub(super) const REDUCTION: Reduction =
    Reduction::Buckets { caps: CAPS, algorithm: Algorithm::Ring, overlap: true };

/// A link so slow that a step communicates about as long as it computes on a core.
const LINK: Slowness =
    Slowness { latency: Duration::from_millis(1), bandwidth: 20.0 * 1_048_576.0 };

/// A ResNet-18 on fresh weights, whose first group has 8 planes.
pub(super) fn network(device: &Device) -> candle_core::Result<Network<ResNet18>> {
    Network::new(1, DType::F32, device, |vb, norms| ResNet18::new(8, norms, vb))
}

/// Trains on two devices over a slow link, for a picture of a step.
pub(super) fn train_slowly<M: Model>(
    name: &str,
    wrap: impl Fn(Network<ResNet18>, SharedCommunicator) -> Result<M, ModelError> + Sync,
) -> Run<Training> {
    let slow = SlowNetwork::new(LINK, TIMEOUT);
    train_on(name, 2, (1280, options(1, 128, 0.1)), |network, comm| {
        wrap(network, slow.slow_down(comm))
    })
}

/// Trains on slices of the CPU with stage 5's loop. `wrap` makes the model of a rank.
pub(super) fn train_on<M: Model>(
    name: &str,
    devices: usize,
    (count, options): (usize, TrainOptions),
    wrap: impl Fn(Network<ResNet18>, SharedCommunicator) -> Result<M, ModelError> + Sync,
) -> Run<Training> {
    let (data, plan) = (images(count), DevicePlan::slices(devices)?);
    let work = |device: &devices::ComputeDevice, comm: SharedCommunicator, ()| {
        let _rank = trace::rank(name, comm.rank(), device);
        Training::of(name, &wrap(network(device.tensors())?, comm)?, (&data, &options))
    };
    let trained: Result<Vec<_>, RankFailure<ModelError>> =
        run_ranks_with(&plan, TIMEOUT, vec![(); devices], work);
    Ok(trained?.swap_remove(0))
}

/// The recording of all steps, from the first training to the picture.
pub(super) struct Recording {
    outputs: Outputs,
    trace: PathBuf,
}

impl Recording {
    /// Begins to record. The files are `target/runs/NAME.json` and `NAME.svg`.
    pub(super) fn begin(name: &str) -> Run<Self> {
        fs::create_dir_all("target/runs")?;
        let trace = PathBuf::from(format!("target/runs/{name}.json"));
        let arguments = ReportArguments { trace: Some(trace.clone()), ..Default::default() };
        Ok(Self { outputs: arguments.open()?, trace })
    }

    /// Draws the median step of each training, one above the other, and prints the trainings with the times of this step.
    pub(super) fn show(mut self, mut trained: Vec<Training>, more: &[&str]) -> Run {
        self.outputs.run_ended(&Summary::default(), &[])?;
        self.outputs.write("one step")?;
        let trace = serde_json::from_str(&fs::read_to_string(&self.trace)?)?;
        let mut charts = Vec::new();
        for (run, training) in trained.iter_mut().enumerate() {
            let works = step(&trace, run + 1);
            let of_rank_0 = |track, name: &str| {
                let of_track = works.iter().filter(|it| it.rank == 0 && it.track == track);
                let named = of_track.filter(|it| it.name.starts_with(name));
                named.map(|it| it.end - it.start).sum::<f64>()
            };
            let times = [of_rank_0(STEPS, "step"), of_rank_0(COMMUNICATION, "wait")];
            training.more.extend(times.map(|seconds| format!("{:.0}", 1e3 * seconds)));
            let heading = "One step of ResNet-18 on 2 devices, over a slow link";
            let mut chart = chart(heading.to_owned(), &works);
            let hidden = std::mem::take(&mut chart.heading.conclusion);
            let told = format!("{}: {hidden}", training.name);
            line(&told)?;
            if let Some(group) = chart.groups.first_mut() {
                group.title = told;
            }
            charts.push(chart);
        }
        show("", &trained, &[more, &["step,\nms", "waits,\nms"]].concat())?;
        paragraph("A device `waits` while it has nothing to compute, and a sum has not arrived.")?;
        let groups = charts.iter_mut().skip(1).flat_map(|it| std::mem::take(&mut it.groups));
        let groups: Vec<_> = groups.collect();
        charts[0].groups.extend(groups);
        let (svg, path) = (charts[0].svg(Place::File), self.trace.with_extension("svg"));
        Ok(write_flag("picture", &path, |file| file.write_all(svg.as_bytes()))?)
    }
}

/// The median step of a run of a trace.
fn step(trace: &Value, run: usize) -> Vec<Work> {
    let events = || {
        let all = trace["traceEvents"].as_array().into_iter().flatten();
        all.filter(|event| event["pid"] == run)
    };
    // `rank 0 compute on cpu:0`
    let rank_of = |event: &Value| {
        let name = event["args"]["name"].as_str()?;
        Some((event["tid"].as_u64()?, name.split(' ').nth(1)?.parse().ok()?))
    };
    let threads = events().filter(|event| event["name"] == "thread_name");
    let ranks: HashMap<u64, usize> = threads.filter_map(rank_of).collect();
    let work = |event: &Value| {
        let text = |field: &str| event[field].as_str().unwrap_or_default().to_owned();
        // In microseconds.
        let (start, length) = (event["ts"].as_f64()? / 1e6, event["dur"].as_f64()? / 1e6);
        let number = event["args"]["bucket"].as_u64().map(|number| format!(" {number}"));
        let (track, name) = (text("cat").into(), text("name") + &number.unwrap_or_default());
        let rank = *ranks.get(&event["tid"].as_u64()?)?;
        Some(Work { rank, track, name: name.into(), start, end: start + length })
    };
    median_step(&events().filter(|event| event["ph"] == "X").filter_map(work).collect::<Vec<_>>())
}
