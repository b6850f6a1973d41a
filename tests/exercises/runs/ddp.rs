//! Stage 5's training of a narrow ResNet-18 on ranks, and the picture of a step, yours above ours.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use candle_core::{DType, Device};
use concise_wrapper::ddp::Reduction;
use concise_wrapper::ddp::bucket::BucketCaps;
use concise_wrapper::model::Progress;
use concise_wrapper::resnet::ResNet18;
use concise_wrapper::slow_link::{SlowNetwork, Slowness};
use concise_wrapper::train::Trained;
use concise_wrapper::{Error as ModelError, Model, Network, train};
use datasets::source::LoadedData;
use devices::DevicePlan;
use drawing::Place;
use drawing::gantt::Gantt;
use harness::cli::ReportArguments;
use harness::records::TrainOptions;
use harness::report::file::write_flag;
use harness::report::outputs::Outputs;
use harness::report::summary::Summary;
use harness::report::timeline::{chart, median_step};
use harness::report::trace::{self, COMMUNICATION, STEPS, Work};
use harness::report::{Report, Table, columns, line};
use model_state::weights_hash::WeightsHash;
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::SharedCommunicator;
use params_and_allreduce::thread::{Cause, RankFailure, run_ranks_with};
use serde_json::Value;

use crate::replicas::Weights;

/// The planes of ResNet-18's first group.
const WIDTH: usize = 8;

/// A rank waits so long for a message: an answer that hangs is named by its rank.
pub(super) const TIMEOUT: Duration = Duration::from_secs(15);

/// Small buckets, as the network is narrow.
pub(super) const CAPS: BucketCaps = BucketCaps { first: 50_000, others: 150_000 };

/// Buckets that travel during the backward pass.
pub(super) const REDUCTION: Reduction =
    Reduction::Buckets { caps: CAPS, algorithm: Algorithm::Ring, overlap: true };

/// A link so slow that a step communicates about as long as it computes on a core.
pub(super) const LINK: Slowness =
    Slowness { latency: Duration::from_millis(1), bandwidth: 20.0 * 1_048_576.0 };

/// A network on fresh weights.
pub(super) fn network(device: &Device) -> candle_core::Result<Network<ResNet18>> {
    Network::new(1, DType::F32, device, |vb, norms| ResNet18::new(WIDTH, norms, vb))
}

/// Trains on `devices` slices of the CPU with stage 5's loop, over a link if there is one. `wrap` makes the model of a rank.
/// Returns the result of rank 0, and its weights after the first step. The trace names the run.
pub(super) fn train_on<M: Model>(
    devices: usize,
    run: &str,
    link: Option<Slowness>,
    (images, options): (usize, &TrainOptions),
    wrap: impl Fn(Network<ResNet18>, SharedCommunicator) -> Result<M, ModelError> + Sync,
) -> Result<(Trained, Weights), Box<dyn Error>> {
    let data = LoadedData::draw((Some(images), Some(500)));
    let slow = link.map(|link| SlowNetwork::new(link, TIMEOUT));
    let plan = DevicePlan::slices(devices)?;
    let trained: Result<Vec<_>, RankFailure<ModelError>> = run_ranks_with(
        &plan,
        TIMEOUT,
        vec![(); devices],
        |device, comm: SharedCommunicator, ()| {
            let _rank = trace::rank(run, comm.rank(), device);
            let comm = slow.as_ref().map_or(comm.clone(), |slow| slow.slow_down(comm));
            let model = wrap(network(device.tensors())?, comm)?;
            let (extras, report) = (Default::default(), &mut Report::silent());
            let mut first = Weights::new();
            let observe = |progress: Progress<'_>| {
                if progress.steps == 1 && progress.last.is_some() {
                    first = model.weights().snapshot()?;
                }
                Ok(())
            };
            let trained = train(&model, &data, options, &extras, None, report, observe)?;
            Ok((trained, first))
        },
    );
    Ok(trained?.swap_remove(0))
}

/// Explains replicas that differ, which are the effect of an answer. Any other failure stays one.
pub(super) fn explained(error: Box<dyn Error>) -> Result<String, Box<dyn Error>> {
    match error.downcast::<RankFailure<ModelError>>().map(|failure| failure.cause) {
        Ok(Cause::Error(ModelError::ReplicasDiffer(differ))) => Ok(format!(
            "The training with your code stops: {differ}. Nothing else fails: only the comparison of the replicas shows it."
        )),
        Ok(cause) => Err(format!("a rank {cause}").into()),
        Err(error) => Err(error),
    }
}

/// States how far weights are from those that are right, relative to the largest.
pub(super) fn distance(apart: f64, rounding: f64, right: &str) -> String {
    match apart {
        0.0 => format!("your weights are {right}, to the last bit."),
        apart if apart <= rounding => format!("your weights are {right}, up to rounding."),
        _ => format!(
            "your weights are {apart:.0e} away from {right}, relative to the largest: that is no rounding. The run ends              without an error all the same."
        ),
    }
}

/// The recording of all steps, from the first run to the picture.
pub(super) struct Recording {
    outputs: Outputs,
    trace: PathBuf,
}

impl Recording {
    /// Begins to record. The files are `target/runs/NAME.json` and `NAME.svg`.
    pub(super) fn begin(name: &str) -> Result<Self, Box<dyn Error>> {
        let folder = PathBuf::from("target/runs");
        fs::create_dir_all(&folder)?;
        let trace = folder.join(name).with_extension("json");
        let arguments = ReportArguments { trace: Some(trace.clone()), ..Default::default() };
        Ok(Self { outputs: arguments.open()?, trace })
    }

    /// Draws the median step of each run, one above the other, and prints a table of the waits. `first` are further columns.
    pub(super) fn show(
        mut self,
        title: &str,
        trained: &[&Trained],
        (names, cells): (&[&str], &[Vec<String>]),
    ) -> Result<(), Box<dyn Error>> {
        self.outputs.run_ended(&Summary::default(), &[])?;
        self.outputs.write(title)?;
        let steps = steps(&fs::read_to_string(&self.trace)?)?;
        let mut table = names.iter().fold(Table::new(title), |table, name| table.column(name, 0));
        for name in ["step", "waits", "loss", "weights"] {
            table = table.column(name, 0);
        }
        let mut all: Option<Gantt> = None;
        for (((run, works), trained), cells) in steps.iter().zip(trained).zip(cells) {
            let of_rank_0 = |track, name: &str| {
                let is = |work: &&Work| {
                    work.rank == 0 && work.track == track && work.name.starts_with(name)
                };
                works.iter().filter(is).map(|work| work.end - work.start).sum::<f64>()
            };
            let milliseconds = |seconds: f64| format!("{:.0} ms", 1e3 * seconds);
            let times = [of_rank_0(STEPS, "step"), of_rank_0(COMMUNICATION, "wait")];
            let loss = trained.records.last().map_or(f64::NAN, |record| record.train_loss);
            let hash = WeightsHash::new(&trained.weights)?;
            let row = [vec![run.clone()], cells.clone(), times.map(milliseconds).to_vec()].concat();
            table.row(row.into_iter().chain([format!("{loss:.4}"), hash.to_string()]));
            let heading = "One step of ResNet-18 on 2 devices, over a slow link";
            let mut chart = chart(heading.to_owned(), works);
            if let Some(group) = chart.groups.first_mut() {
                group.title = format!("{run}: {}", chart.heading.conclusion);
            }
            line(format_args!("{run}: {}", chart.heading.conclusion))?;
            match &mut all {
                Some(all) => all.groups.append(&mut chart.groups),
                None => {
                    chart.heading.conclusion = String::new();
                    all = Some(chart);
                }
            }
        }
        line(table.text(columns()))?;
        let svg = all.map(|chart| chart.svg(Place::File)).unwrap_or_default();
        let path = self.trace.with_extension("svg");
        Ok(write_flag("picture", &path, |file| file.write_all(svg.as_bytes()))?)
    }
}

/// The median step of each run of a trace, with the run's name.
fn steps(trace: &str) -> serde_json::Result<Vec<(String, Vec<Work>)>> {
    let trace: Value = serde_json::from_str(trace)?;
    let events = trace["traceEvents"].as_array().map_or(&[][..], Vec::as_slice);
    let names = |kind: &'static str, number: &'static str| {
        let of_kind = events.iter().filter(move |event| event["name"] == kind);
        let name = move |event: &Value| {
            Some((event[number].as_u64()?, event["args"]["name"].as_str()?.to_owned()))
        };
        of_kind.filter_map(name).collect::<BTreeMap<u64, String>>()
    };
    let threads = names("thread_name", "tid");
    let work = |event: &Value| {
        // `rank 0 compute on cpu:0`
        let rank = threads.get(&event["tid"].as_u64()?)?.split(' ').nth(1)?.parse().ok()?;
        let text = |field: &str| event[field].as_str().unwrap_or_default().to_owned();
        // In microseconds.
        let (start, length) = (event["ts"].as_f64()? / 1e6, event["dur"].as_f64()? / 1e6);
        let number = event["args"]["bucket"].as_u64().map(|number| format!(" {number}"));
        let name = text("name") + &number.unwrap_or_default();
        Some(Work {
            rank,
            track: text("cat").into(),
            name: name.into(),
            start,
            end: start + length,
        })
    };
    let of_run = |(run, name): (u64, String)| {
        let events = events.iter().filter(|event| event["ph"] == "X" && event["pid"] == run);
        (name, median_step(&events.filter_map(work).collect::<Vec<_>>()))
    };
    Ok(names("process_name", "pid").into_iter().map(of_run).collect())
}
