//! Stage 6's training in stages: by a cut, a list of instructions or a step of the learner's.

use std::error::Error;
use std::fs;
use std::ops::Range;
use std::path::Path;
use std::slice;
use std::time::{Duration, Instant};

use candle_core::DType;
use concise_wrapper::model::{Progress, Step};
use concise_wrapper::optimizer::Extras;
use concise_wrapper::weights::{Snapshot, Weights};
use concise_wrapper::{Error as TrainError, Model, train};
use datasets::source::LoadedData;
use datasets::{Dataset, SAMPLE};
use devices::DevicePlan;
use drawing::svg::Place;
use harness::load::Load;
use harness::records::{BatchSums, EpochRecord, TrainOptions};
use harness::report::{Report, Table, columns, file, line, paragraph};
use model_parallel::layers::{Layers, Stage};
use model_parallel::mesh::Mesh;
use model_parallel::partition::{self, Cost};
use model_parallel::pipeline::drawing::chart;
use model_parallel::pipeline::{Checked, Kind, Schedule, Timeline, Worker, check, predict};
use model_state::weights_hash::WeightsHash;
use ops::difference::largest_difference;
use params_and_allreduce::communicator::{Communicator as _, SharedCommunicator};
use params_and_allreduce::thread::run_ranks;
use split_batch::loader::{LocalBatch, Shards};

/// A rank waits so long for a message: an answer that hangs is named by its rank.
pub(super) const TIMEOUT: Duration = Duration::from_secs(15);

/// The number of devices of a run, and of micro-batches of its batches.
pub(super) const DEVICES: usize = 2;
pub(super) const MICRO_BATCHES: usize = 8;

pub(super) const IMAGES: usize = 4096;
pub(super) const OPTIONS: TrainOptions =
    TrainOptions { epochs: 1, batch_size: 512, learning_rate: 0.1, seed: 1 };

/// Weights whose difference after one step is at most this are equal up to rounding in f32.
const ROUNDING: f64 = 1e-4;

/// The images of a run.
pub(super) fn data() -> LoadedData {
    LoadedData::draw((Some(IMAGES), Some(500)))
}

/// A step of a stage, as [`Pipeline::train`] takes it.
pub(super) type StepOf<'a> =
    &'a (dyn Fn(&Worker<'_, Stage>, &LocalBatch) -> Result<Step, TrainError> + Sync);

/// The step of stage 6: every instruction of the list.
pub(super) fn ours(worker: &Worker<'_, Stage>, batch: &LocalBatch) -> Result<Step, TrainError> {
    worker.backward(batch)
}

/// A model in stages, and the order of work.
#[derive(Clone, Copy)]
pub(super) struct Pipeline<'a> {
    pub layers: &'a Layers,
    pub cut: &'a [Range<usize>],
    pub checked: &'a Checked,
}

/// The results of a training: the weights after the first step and at the end, and the step with the median bubble.
pub(super) struct Trained {
    pub record: EpochRecord,
    pub first: Snapshot,
    pub hash: WeightsHash,
    /// None if the step is not stage 6's.
    step: Option<Timeline>,
}

impl Trained {
    /// The first cells of a row: name, seconds, loss and hash.
    pub(super) fn cells(&self, name: &str) -> [String; 4] {
        let [seconds, loss] = cells(&self.record);
        [name.to_owned(), seconds, loss, self.hash.to_string()]
    }
}

/// Seconds and loss.
pub(super) fn cells(record: &EpochRecord) -> [String; 2] {
    [format!("{:.2}", record.seconds), format!("{:.4}", record.train_loss)]
}

impl Pipeline<'_> {
    /// Trains with a device for each stage. Fails when a rank does.
    pub(super) fn train(self, step: StepOf<'_>) -> Result<Trained, Box<dyn Error>> {
        let (data, origin) = (data(), Instant::now());
        let stages = self.checked.schedule().stages();
        let of_ranks = run_ranks(&DevicePlan::slices(stages)?, TIMEOUT, |rank| {
            let range = self.cut.get(rank.rank()).cloned().unwrap_or_default();
            let network = self.layers.build(range, OPTIONS.seed, DType::F32, rank.device())?;
            let (all, mesh) = (rank.into(), Mesh::pipeline(stages));
            let worker = Worker::new(self.checked, vec![network], all, mesh, &SAMPLE, origin)?;
            let mut first = Snapshot::new();
            let observe = |progress: Progress<'_>| {
                if progress.steps == 1 {
                    first = worker.weights().snapshot()?;
                }
                Ok(())
            };
            let (model, mut report) = (ByStep { worker: &worker, step }, Report::silent());
            let extras = Extras::default();
            let trained = train(&model, &data, &OPTIONS, &extras, None, &mut report, observe)?;
            let whole = worker.whole(first)?.zip(worker.whole(trained.weights)?);
            let (mut steps, mut records) = (worker.timelines()?, trained.records);
            let Some((first, last)) = whole else { return Ok(None) };
            steps.sort_by(|a, b| a.bubble().total_cmp(&b.bubble()));
            let step = steps.get(steps.len() / 2).cloned();
            let (record, hash) = (records.swap_remove(0), WeightsHash::new(&last)?);
            Ok::<_, TrainError>(Some(Trained { record, first, hash, step }))
        })?;
        Ok(of_ranks.into_iter().flatten().next().ok_or("no rank has the weights")?)
    }
}

/// A stage that trains by a step of its own.
struct ByStep<'a> {
    worker: &'a Worker<'a, Stage>,
    step: StepOf<'a>,
}

impl Model for ByStep<'_> {
    fn hosts(&self) -> Shards {
        self.worker.hosts()
    }

    fn backward(&self, batch: &LocalBatch) -> Result<Step, TrainError> {
        (self.step)(self.worker, batch)
    }

    fn weights(&self) -> &Weights {
        self.worker.weights()
    }

    fn evaluate(&self, images: &Dataset) -> Result<BatchSums, TrainError> {
        self.worker.evaluate(images)
    }

    fn rank(&self) -> Option<&SharedCommunicator> {
        self.worker.rank()
    }
}

/// Trains the whole model on one device, in as many micro-batches.
pub(super) fn alone(layers: &Layers, micro_batches: usize) -> Result<Trained, Box<dyn Error>> {
    let checked = check(Kind::Naive.schedule(1, micro_batches)?, 1)?;
    let all = 0..layers.len();
    Pipeline { layers, cut: slice::from_ref(&all), checked: &checked }.train(&ours)
}

/// The costs of all layers for a micro-batch.
pub(super) fn measure(layers: &Layers) -> Result<Vec<Cost>, Box<dyn Error>> {
    let device = DevicePlan::slices(1)?.slots()[0].open()?;
    let rows = OPTIONS.batch_size / MICRO_BATCHES;
    let measure = || partition::measure(layers, &SAMPLE, rows, 5, DType::F32, device.tensors());
    Ok(device.run(measure)?)
}

/// A schedule with channels that hold one message, or the law that it breaks.
pub(super) fn checked(schedule: Schedule) -> Result<Checked, String> {
    check(schedule, 1).map_err(|error| error.to_string())
}

/// Trains `pipelines`, the learner's first and ours last, and one device alone. Prints the table and the conclusion, and draws
/// the steps of these two.
pub(super) fn show(
    exercise: &str,
    costs: &[Cost],
    pipelines: &[(&str, Pipeline<'_>)],
) -> Result<(), Box<dyn Error>> {
    let plan = DevicePlan::slices(DEVICES)?;
    let (load, layers) = (Load::now(), pipelines[0].1.layers);
    let alone = alone(layers, MICRO_BATCHES)?;
    let mut table = Table::new("").column("s", 0).column("loss", 0).column("weights", 0);
    table = table.column("bubble, %,\npredicted", 0).column("\nmeasured", 0);
    table = table.column("micro-batches\nkept", 1);
    let (mut steps, mut yours) = (Vec::new(), None);
    for (name, pipeline) in pipelines {
        let Pipeline { cut, checked, .. } = *pipeline;
        let it = match pipeline.train(&ours) {
            Err(failure) if steps.is_empty() => {
                let what = "The devices cannot train with your answer";
                return Ok(paragraph(format_args!("{what}: {failure}"))?);
            }
            it => it?,
        };
        let predicted = predict(checked, &Cost::of_parts(costs, cut), 0.0)?;
        let measured = it.step.clone().ok_or("stage 6 measures each step")?;
        let both = [predicted, measured];
        let kept: Vec<_> = checked.peaks().iter().map(|it| it.both.to_string()).collect();
        let bubbles = both.each_ref().map(|it| format!("{:.0}", 100.0 * it.bubble()));
        table.row(it.cells(name).into_iter().chain(bubbles).chain([kept.join(" ")]));
        steps.push((*name, both));
        yours.get_or_insert(it);
    }
    table.row(alone.cells("one device"));
    let rows = OPTIONS.batch_size / MICRO_BATCHES;
    let what = format_args!("{DEVICES} devices, {MICRO_BATCHES} micro-batches of {rows} images");
    paragraph(format_args!("{}, {what}", layers.name()))?;
    line(table.text(columns()))?;
    let doubt = plan.busy_since(&load).or(plan.note().map(str::to_owned));
    doubt.iter().try_for_each(|doubt| paragraph(format_args!("note: {doubt}")))?;
    let beside = [steps.first(), steps.last()].into_iter().flatten();
    let beside: Vec<_> = beside.map(|(name, both)| (*name, both.each_ref())).collect();
    let path = format!("target/runs/{exercise}.svg");
    fs::create_dir_all("target/runs")?;
    let svg = chart("A step with your answer, and with ours", doubt, &beside).svg(Place::File);
    file::write(Path::new(&path), |file| file.write_all(svg.as_bytes()))?;
    line(format_args!("A step of each stage, yours above ours: {path}"))?;
    let yours = yours.ok_or("there is a pipeline of the learner's")?;
    Ok(paragraph(conclusion(&yours, &alone))?)
}

/// The difference that the learner's code makes to the weights of one device.
pub(super) fn conclusion(yours: &Trained, alone: &Trained) -> String {
    match yours.hash == alone.hash {
        true => "Your weights are one device's, to the last bit.".to_owned(),
        false => difference(&yours.first, &alone.first),
    }
}

/// The same from the weights after the first step.
pub(super) fn difference(yours: &Snapshot, alone: &Snapshot) -> String {
    let silent = "The run ends without an error all the same.";
    match largest_difference(yours, alone) {
        Err(_) => {
            let numbers = |all: &Snapshot| all.iter().map(|(_, it)| it.elem_count()).sum::<usize>();
            let [yours, alone] = [yours, alone].map(numbers);
            format!("Your devices train {yours} numbers, and one device trains {alone}. {silent}")
        }
        Ok(..=ROUNDING) => "Your first step is one device's up to rounding, and training makes the difference larger.".to_owned(),
        Ok(apart) => format!(
            "After one step, your weights are {apart:.1} away from the weights of one device, relative to the largest: that is \
             no rounding. {silent}"
        ),
    }
}
