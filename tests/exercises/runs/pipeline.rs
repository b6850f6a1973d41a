//! Stage 6's training in stages: by a cut, a list of instructions or a step of the learner's.

use std::path::Path;
use std::slice;

use concise_wrapper::model::Step;
use concise_wrapper::optimizer::{Momentum, Sgd};
use datasets::SAMPLE;
use drawing::svg::Place;
use harness::report::file;
use model_parallel::execute::Settings;
use model_parallel::execute::unit::Whole;
use model_parallel::gantt::chart;
use model_parallel::layers::{Layers, Stage};
use model_parallel::mesh::Mesh;
use model_parallel::partition::{self, Setting};
use model_parallel::{Checked, Cost, Executor, Kind, Schedule, Timeline, check};

use super::prelude::*;

/// The number of devices of a run, and of micro-batches of its batches.
pub(super) const DEVICES: usize = 2;
pub(super) const MICRO_BATCHES: usize = 8;

pub(super) const IMAGES: usize = 4096;
pub(super) const OPTIONS: TrainOptions = options(1, 512, 0.1);

/// A step of a stage, as [`Pipeline::train`] takes it.
pub(super) type StepOf<'a> =
    &'a (dyn Fn(&Executor<Whole<Stage>>, &LocalBatch) -> Result<Step, ModelError> + Sync);

/// The step of stage 6: every instruction of the list.
pub(super) const OURS: StepOf<'static> = &|executor, batch| executor.backward(batch);

/// A model in stages, and the order of work.
#[derive(Clone, Copy)]
pub(super) struct Pipeline<'a> {
    pub layers: &'a Layers,
    pub cut: &'a [Range<usize>],
    pub checked: &'a Checked,
}

impl Pipeline<'_> {
    /// Trains with a device for each stage. Returns the training of the whole model, and the step with the median bubble, if the
    /// step is stage 6's. Fails when a rank does.
    pub(super) fn train(
        self,
        name: &str,
        backward: StepOf<'_>,
    ) -> Run<(Training, Option<Timeline>)> {
        let data = images(IMAGES);
        let stages = self.checked.schedule().stages();
        let of_ranks = run_ranks(&DevicePlan::slices(stages)?, TIMEOUT, |rank| {
            let range = self.cut.get(rank.rank()).cloned().unwrap_or_default();
            let network = self.layers.build(range, OPTIONS.seed, DType::F32, rank.device())?;
            let (all, mesh) = (rank.into(), Mesh::pipeline(stages));
            let model =
                Executor::new(self.checked, vec![network], all, mesh, &SAMPLE, Settings::IMAGES)?;
            let model = With { model, backward };
            let part = Training::of(name, &model, (&data, &OPTIONS))?;
            let (executor, [first, last]) = (&model.model, part.weights);
            let whole = executor.whole(first)?.zip(executor.whole(last)?);
            let step = Timeline::median(&executor.timelines()?, Timeline::bubble).cloned();
            let training =
                whole.map(|(first, last)| Training::new(name, part.records, [first, last]));
            Ok::<_, ModelError>(training.transpose()?.map(|training| (training, step)))
        })?;
        Ok(of_ranks.into_iter().flatten().next().ok_or("no rank has the weights")?)
    }
}

/// Trains the whole model on one device, in as many micro-batches.
pub(super) fn alone(layers: &Layers, micro_batches: usize) -> Run<Training> {
    let checked = check(Kind::Naive.schedule(1, micro_batches)?, 1)?;
    let all = 0..layers.len();
    let pipeline = Pipeline { layers, cut: slice::from_ref(&all), checked: &checked };
    Ok(pipeline.train("one device", OURS)?.0)
}

/// The costs of all layers for a micro-batch.
pub(super) fn measure(layers: &Layers) -> Run<Vec<Cost>> {
    let device = DevicePlan::slices(1)?.slots()[0].open()?;
    let rows = OPTIONS.batch_size / MICRO_BATCHES;
    let (setting, mut sgd) =
        (Setting { sample: &SAMPLE, rows, tries: 5, parts: 1 }, Sgd::new(Momentum::default()));
    let tensors = device.tensors();
    let measure = || {
        partition::measure(
            layers,
            &partition::each(layers.len()),
            setting,
            DType::F32,
            tensors,
            &mut sgd,
        )
    };
    Ok(device.run(measure)?)
}

/// A schedule with channels that hold one message, or the law that it breaks.
pub(super) fn checked(schedule: Schedule) -> Result<Checked, String> {
    check(schedule, 1).map_err(|error| error.to_string())
}

/// Trains `pipelines`, the learner's first and ours last, and one device alone. Prints the table and the conclusion, and draws
/// the steps of these two.
pub(super) fn compare(exercise: &str, costs: &[Cost], pipelines: &[(&str, Pipeline<'_>)]) -> Run {
    let layers = pipelines[0].1.layers;
    let (mut trained, mut steps) = (Vec::new(), Vec::new());
    for (name, pipeline) in pipelines {
        let (mut training, measured) = match pipeline.train(name, OURS) {
            Err(failure) if trained.is_empty() => {
                let what = "The devices cannot train with your answer";
                return Ok(paragraph(format_args!("{what}: {failure}"))?);
            }
            it => it?,
        };
        let Pipeline { cut, checked, .. } = *pipeline;
        let predicted = checked.simulate(&Cost::of_parts(costs, cut), 0.0)?;
        let both = [predicted, measured.ok_or("stage 6 measures each step")?];
        let bubbles = both.each_ref().map(|it| format!("{:.0}", 100.0 * it.bubble()));
        let kept = in_a_row(checked.kept());
        training.more.extend(bubbles.into_iter().chain([kept]));
        trained.push(training);
        steps.push((*name, both));
    }
    trained.push(alone(layers, MICRO_BATCHES)?);
    let rows = OPTIONS.batch_size / MICRO_BATCHES;
    let what = format_args!("{DEVICES} devices, {MICRO_BATCHES} micro-batches of {rows} images");
    paragraph(format_args!("{}, {what}", layers.name()))?;
    show("", &trained, &["bubble, %,\npredicted", "\nmeasured", "micro-\nbatches\nkept"])?;
    let plan = DevicePlan::slices(DEVICES)?;
    plan.note().iter().try_for_each(|note| paragraph(format_args!("note: {note}")))?;
    let doubt = super::busy().or(plan.note().map(str::to_owned));
    let beside = [&steps[0], &steps[steps.len() - 1]];
    let beside = beside.map(|(name, both)| (*name, both.each_ref()));
    let path = format!("target/runs/{exercise}.svg");
    fs::create_dir_all("target/runs")?;
    let svg = chart("A step with your answer, and with ours", doubt, &beside).svg(Place::File);
    file::write(Path::new(&path), |file| file.write_all(svg.as_bytes()))?;
    line(format_args!("A step of each stage, yours above ours: {path}"))?;
    let alone = [("one device's", &trained[trained.len() - 1])];
    Ok(paragraph(conclusion(&trained[0], &alone))?)
}
