//! The runs of a program: stages 6 and 7 prepare, train, measure and draw their runs alike.

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::Args;
use concise_wrapper::ddp::alike;
use concise_wrapper::launch::{Launch, LaunchArguments};
use concise_wrapper::model::Progress;
use concise_wrapper::optimizer::Optimizer;
use concise_wrapper::weights::Snapshot;
use concise_wrapper::{Error, Model as _, Network, Store, sizing, text, train};
use datasets::TextArguments;
use datasets::source::LoadedData;
use datasets::text::{bigram_bits_per_byte, bits_per_byte};
use devices::{ComputeDevice, DevicePlan};
use drawing::Place;
use harness::cli::{ReportArguments, UsageError, whole};
use harness::records::EpochRecord;
use harness::report::outputs::Outputs;
use harness::report::summary::{Summary, Versions};
use harness::report::{Report, Table, counted, file, line, paragraph, trace};
use harness::verdict::{Doubt, ranked};
use itertools::Itertools as _;
use model_state::weights_hash::WeightsHash;
use ops::difference::largest_difference;
use params_and_allreduce::communicator::SharedCommunicator;
use serde_json::json;
use trainer::memory::{Footprint, NetworkSize};
use trainer::{TrainArguments, TrainSetup};

use crate::bytes::megabytes;
use crate::execute::Executor;
use crate::execute::unit::Unit;
use crate::gantt::chart;
use crate::generate::generate;
use crate::gpt::Gpt;
use crate::layers::{Layers, ParameterSpec, Stage};
use crate::mesh::Mesh;
use crate::partition::{self, Setting};
use crate::simulate::Held;
use crate::{Checked, Cost, Timeline};

/// On a CPU, the number of training and test images without `--train-size` and `--test-size`.
const IMAGES_ON_A_CPU: (usize, usize) = (10_240, 2_000);

/// The number of times that each layer is measured. The least counts.
const TRIES: usize = 5;

/// The flags of a GPT and its text. The width is a flag of the program.
#[derive(Args, Debug, Default, PartialEq)]
#[command(next_help_heading = "What to train")]
#[expect(missing_docs, reason = "the flags explain themselves")]
pub struct GptArguments {
    /// Blocks of the GPT [default: 4]
    #[arg(long, hide_short_help = true, value_name = "N", value_parser = whole::<usize>(1..=1024))]
    pub blocks: Option<usize>,

    /// Heads of the GPT's attention [default: 4]
    #[arg(long, hide_short_help = true, value_name = "N", value_parser = whole::<usize>(1..=1024))]
    pub heads: Option<usize>,

    /// Bytes in a window of the GPT's text [default: 64]
    #[arg(long, hide_short_help = true, value_name = "N", value_parser = whole::<usize>(1..=8192))]
    pub context: Option<usize>,

    #[command(flatten)]
    pub text: TextArguments,
}

/// The flags of every program that makes several runs.
#[derive(Args, Debug)]
#[expect(missing_docs, reason = "the flags explain themselves")]
pub struct RunArguments {
    #[command(flatten)]
    pub train: TrainArguments,

    #[command(flatten)]
    pub launch: LaunchArguments,

    #[command(flatten)]
    pub gpt: GptArguments,

    #[command(flatten)]
    pub reports: ReportArguments,

    /// Replicas, stages, and parts of a layer, such as 2x2x1
    #[arg(long, help_heading = "Splitting the model", value_name = "DxPxT")]
    pub mesh: Option<Mesh>,

    /// Draw a step of each run, measured and predicted
    #[arg(long, help_heading = "Output", value_name = "FILE.svg")]
    pub gantt: Option<PathBuf>,
}

impl RunArguments {
    /// The devices of this process, and the mesh of all devices: the mesh of `--mesh`, or the usual one of so many devices. Fails
    /// with a [`UsageError`] when there are no such devices.
    pub fn plan(
        &self,
        launch: &Launch,
        usual: impl Fn(usize) -> Mesh,
    ) -> Result<(DevicePlan, Mesh), UsageError> {
        let asked = self.mesh.map(|mesh| mesh.devices()).or(self.launch.devices);
        let (several, devices) = launch.plan(&self.launch.each, asked)?;
        Ok((several, self.mesh.unwrap_or(usual(devices))))
    }

    /// Refuses flags of another model, processes that cannot send each other tensors, a mesh of another number of devices than
    /// `--devices`, and a batch that is too small for `each` micro-batches on each replica.
    pub fn check(
        &self,
        launch: &Launch,
        mesh: Mesh,
        each: usize,
        is_gpt: bool,
    ) -> Result<(), UsageError> {
        let (of_mesh, devices) = (mesh.devices(), self.launch.devices.unwrap_or(mesh.devices()));
        let (batch_size, pieces) = (self.train.batch_size, mesh.data * each);
        Err(UsageError::new(if !is_gpt && self.gpt != GptArguments::default() {
            "--blocks, --heads, --context and --text are about --model gpt".to_owned()
        } else if is_gpt && self.train.data.is_chosen() {
            "--data is about images, and --model gpt reads a text: take --text".to_owned()
        } else if !launch.has_messages() {
            "ranks send each other tensors, and NCCL, which alone connects these processes, has no messages between two: start \
             them with mpirun"
                .to_owned()
        } else if devices != of_mesh {
            format!(
                "--mesh {mesh} has {of_mesh} devices, and --devices is {devices}: leave one of the two out"
            )
        } else if batch_size < pieces {
            let replicas = counted(mesh.data, "replica");
            format!(
                "--batch-size {batch_size} cannot be cut into {pieces} micro-batches ({replicas} × {each}): take at least \
                 {pieces}"
            )
        } else {
            return Ok(());
        }))
    }

    /// The GPT of these flags, of such a width, and its sizes. Fails as [`sized_gpt`].
    pub fn gpt(&self, width: Option<u32>) -> Result<(Layers, NetworkSize)> {
        let (flags, usual) = (&self.gpt, Gpt::default());
        sized_gpt(&Gpt {
            context: flags.context.unwrap_or(usual.context),
            width: width.map_or(usual.width, |width| width as usize),
            heads: flags.heads.unwrap_or(usual.heads),
            blocks: flags.blocks.unwrap_or(usual.blocks),
            ..usual
        })
    }
}

/// A GPT and its sizes. Fails with a [`UsageError`] when heads do not divide the width.
pub fn sized_gpt(gpt: &Gpt) -> Result<(Layers, NetworkSize)> {
    let Gpt { vocabulary, context, width, heads, blocks } = *gpt;
    if !width.is_multiple_of(heads) {
        bail!(UsageError::new(format_args!(
            "--width {width} cannot be cut into {}: take a multiple, such as {}",
            counted(heads, "head"),
            width.next_multiple_of(heads)
        )));
    }
    let layers = Layers::gpt(gpt)?;
    let parameters = layers.parameters(0..layers.len())?;
    let size = NetworkSize {
        cause: format!("--width {width}"),
        advice: "a smaller --width",
        parameters: parameters.iter().map(ParameterSpec::elements).sum(),
        // The results of all operations, and their gradients for a block.
        training: context * (19 * width * (blocks + 1) + 3 * vocabulary),
        evaluation: context * (16 * width + 2 * vocabulary),
    };
    Ok((layers, size))
}

/// A run that is to be made: a list of instructions for the devices of a mesh.
#[expect(missing_docs, reason = "the names say it")]
pub struct Run<W> {
    /// The name in titles and files: `1F1B, 4 micro-batches, mesh 2x2x1`.
    pub name: String,
    /// The name above the epochs.
    pub title: String,
    /// The name in tables and sentences: `1F1B`.
    pub label: String,
    pub mesh: Mesh,
    pub checked: Checked,
    /// The layers of each unit.
    pub cut: Vec<Range<usize>>,
    /// The predicted step, and the predicted bytes of the first devices, or of all.
    pub step: Option<Timeline>,
    pub held: Vec<Held>,
    /// What the program alone says about the run.
    pub facts: W,
}

impl<W> Run<W> {
    /// Whether one device does everything.
    pub fn is_alone(&self) -> bool {
        self.mesh.devices() == 1
    }

    /// The number of micro-batches of each batch, on all replicas together. Each has its own statistics in a batch norm, and
    /// gradients are the sum over them.
    pub fn shards(&self) -> usize {
        self.mesh.data * self.checked.schedule().micro_batches
    }

    /// The name in a sentence.
    pub fn said(&self) -> String {
        let (shards, label) = (self.shards(), &self.label);
        let several = shards > 1 && self.is_alone();
        if several { format!("{label} on {shards} micro-batches") } else { label.clone() }
    }
}

/// The data, the model and the devices of a program.
#[expect(missing_docs, reason = "the names say it")]
pub struct Training {
    pub setup: TrainSetup,
    pub layers: Layers,
    /// Remarks about the flags and the times.
    pub notes: Vec<String>,
    /// The devices of this process, and one of them alone.
    pub several: DevicePlan,
    pub one: DevicePlan,
}

impl Training {
    /// Loads the data, and opens the files of flags. All processes call this together, with the devices of this process and
    /// the mesh of all. `weights` and `activations` are the copies that all devices hold at a time. Fails as
    /// [`TrainArguments::prepare`] does.
    pub fn prepare(
        launch: &Launch,
        flags: &mut RunArguments,
        (layers, size): (Layers, NetworkSize),
        (several, mesh): (DevicePlan, Mesh),
        (weights, activations): (usize, usize),
        of_runs: Vec<String>,
    ) -> Result<Self> {
        let RunArguments { train, reports, gpt, .. } = flags;
        let one = flags.launch.each.plan_one_of(&several)?;
        let of_tokens = layers.takes_tokens();
        let part = !of_tokens && sizing::limit_images(train, &several, IMAGES_ON_A_CPU);
        let notes = launch.note(&several).into_iter().chain(sizing::note(None, part));
        let mut notes: Vec<String> = notes.chain(of_runs).collect();
        let batches = several.len() as f64 / mesh.devices() as f64;
        let sizes = Footprint::new(size, &several);
        let footprint = Footprint { weights, activations, batches, ..sizes };
        let context = gpt.context.unwrap_or(Gpt::default().context);
        let text = of_tokens.then_some((&gpt.text, context));
        let mut setup = launch.one_first(|first| {
            train.data.follows = !first;
            train.prepare(reports, mesh.data, mesh.data, &footprint, text)
        })?;
        notes.extend(setup.data_note.take());
        Ok(Self { setup, layers, notes, several, one })
    }

    /// Builds a rank's part of some of the layers. `group` has the ranks that share each layer.
    pub fn build(
        &self,
        layers: &Range<usize>,
        device: &ComputeDevice,
        group: &SharedCommunicator,
    ) -> Result<Network<Stage>, Error> {
        let (seed, dtype) = (self.setup.options.seed, self.setup.dtype);
        self.layers.build_part(layers.clone(), seed, dtype, device.tensors(), group)
    }

    /// The shape of a sample.
    pub fn sample(&self) -> &[usize] {
        self.setup.data.train.shape()
    }

    /// Measures the cost of each layer on the first device. A batch has so many micro-batches, and so many ranks share each
    /// layer.
    pub fn costs(
        &self,
        (micro_batches, parts): (usize, usize),
        optimizer: &mut (dyn Optimizer + Send),
    ) -> Result<Vec<Cost>> {
        let Self { setup, layers, .. } = self;
        let batch = setup.options.batch_size.min(setup.data.train.len());
        let rows = batch.div_ceil(micro_batches);
        let setting = Setting { sample: self.sample(), rows, tries: TRIES, parts };
        let (units, dtype) = (partition::each(layers.len()), setup.dtype);
        let device = self.several.slots()[0].open()?;
        let on = device.tensors();
        Ok(device.run(|| partition::measure(layers, &units, setting, dtype, on, optimizer))?)
    }

    /// Makes the runs of a program in turn, reports their outcomes, and writes the files of flags. All processes call this
    /// together. `train` trains on a rank. A run is compared with the first run before it that `is_comparable`, and `by` orders
    /// the measured steps. `conclude` gives the doubts about times, and the program's part of the report. After a failure, the
    /// earlier runs are reported, and the failure stays the error of the program.
    pub fn make_runs<'a, W: Sync>(
        &self,
        (launch, runs, mut outputs): (&Launch, &'a [Run<W>], Outputs),
        train: impl Fn(
            &ComputeDevice,
            SharedCommunicator,
            &Run<W>,
            Report<'_>,
        ) -> Result<Trained, Error>
        + Sync,
        (is_comparable, by): (impl Fn(&Run<W>, &Run<W>) -> bool, fn(&Timeline) -> f64),
        (gantt, conclude): (
            Option<&Path>,
            impl FnOnce(&[Outcome<'a, W>]) -> (Vec<Doubt>, Vec<Block>),
        ),
    ) -> Result<()> {
        let (outcomes, made) = launch.make_runs(
            (&self.setup.headline(self.layers.name()), &self.notes),
            (runs, &mut outputs),
            |run| (&run.name, run.title.clone()),
            |run, report| {
                let plan = self.plan(run);
                let reports = report.of_ranks(plan.len());
                let mut ranks = launch.run(plan, reports, |device, all, report| {
                    let _rank = trace::rank(&run.name, all.rank(), device);
                    self.compare(&all, run)?;
                    train(device, all, run, report)
                })?;
                Ok(ranks.swap_remove(0))
            },
            |run, trained, before: &[Outcome<'a, W>], outputs| {
                let one = before.iter().find(|it| is_comparable(it.run, run));
                self.outcome(launch, (run, trained), one, by, outputs)
            },
        );
        if !launch.speaks() || outcomes.is_empty() {
            return made;
        }
        let (doubts, blocks) = conclude(&outcomes);
        made.and(self.report(&outcomes, (gantt, &doubts, &outputs), blocks))
    }

    /// The devices of this process for a run.
    fn plan<W>(&self, run: &Run<W>) -> &DevicePlan {
        if run.is_alone() { &self.one } else { &self.several }
    }

    /// Fails on a rank with other settings than rank 0. The executor and the training loop compare further settings.
    fn compare<W>(&self, all: &SharedCommunicator, run: &Run<W>) -> Result<(), Error> {
        let settings = [
            ("program version", format!("{:?}", Versions::of_this_binary())),
            ("model", self.layers.name().to_owned()),
            ("epochs", self.setup.options.epochs.to_string()),
            ("run", run.name.clone()),
            ("parts", format!("{:?}", run.cut)),
        ];
        alike::compare(all, &settings.map(|(what, value)| (what.to_owned(), value)))
    }

    /// Summarises a run, and adds the run to the outputs. `one` is the run that the weights are compared with.
    fn outcome<'a, W>(
        &self,
        launch: &Launch,
        (run, trained): (&'a Run<W>, Trained),
        one: Option<&Outcome<'a, W>>,
        by: fn(&Timeline) -> f64,
        outputs: &mut Outputs,
    ) -> Result<Outcome<'a, W>> {
        let (Trained { records, weights, held, steps, .. }, plan) = (&trained, self.plan(run));
        let (devices, hash) = (launch.devices(plan)?, WeightsHash::new(&weights[1])?);
        let method = (devices.len() > 1).then(|| run.title.clone());
        let summary = self.setup.summary(&run.name, plan, records, hash);
        let summary = Summary { devices, method, ..summary };
        outputs.run_ended(&summary, records)?;
        let batches = self.setup.data.train.len().div_ceil(self.setup.options.batch_size);
        let seconds_per_step = summary.seconds_per_epoch / batches as f64;
        // After an interrupt, a run may have trained for fewer epochs.
        let complete = one.filter(|it| it.summary.epochs_trained == summary.epochs_trained);
        let error = |one: Option<&Outcome<'_, W>>, at: usize| {
            one.map(|it| largest_difference(&weights[at], &it.trained.weights[at])).transpose()
        };
        let errors = [error(one, 0)?, error(complete, 1)?];
        let steps = run.step.as_ref().zip(Timeline::median(steps, by));
        let [predicted, measured] = steps.map(|(a, b)| [Some(a), Some(b)]).unwrap_or_default();
        if let Some(metrics) = &mut outputs.metrics {
            let line = json!({"run": run.name, "cut": run.cut, "seconds_per_step": seconds_per_step,
                "error_after_one_step": errors[0], "held": held, "predicted_held": run.held,
                "predicted": predicted, "measured": measured});
            metrics.write_json("split", &line)?;
        }
        let steps = steps.map(|(a, b)| [a.clone(), b.clone()]);
        Ok(Outcome { run, trained, summary, seconds_per_step, errors, steps })
    }

    /// Prints the results of all runs: a line each, a text by a GPT, and the blocks of the program. Then writes the files of flags.
    fn report<W>(
        &self,
        all: &[Outcome<'_, W>],
        (gantt, doubts, outputs): (Option<&Path>, &[Doubt], &Outputs),
        blocks: Vec<Block>,
    ) -> Result<()> {
        line("")?;
        for it in all {
            // The conclusion has a note for all busy runs.
            line(Summary { run: it.run.said(), busy: None, ..it.summary.clone() })?;
        }
        if self.layers.takes_tokens() {
            self.print_text(all)?;
        }
        for (table, conclusion) in blocks {
            if let Some((title, table)) = table {
                paragraph(format_args!("\n{title}"))?;
                table.print()?;
            }
            if !conclusion.is_empty() {
                paragraph(conclusion)?;
            }
        }
        let headline = self.setup.headline(self.layers.name());
        // An error of one file does not prevent the next file.
        let written = outputs.write(&headline);
        let has_pipelines = all.iter().any(|it| it.run.mesh.pipeline > 1);
        let drawn = all.iter().filter(|it| !has_pipelines || it.run.mesh.pipeline > 1);
        let steps = drawn.filter_map(|it| Some((&*it.run.name, it.steps.as_ref()?.each_ref())));
        let title = format!("One step of {headline}");
        Ok(written.and(draw_steps(gantt, &title, doubts, &steps.collect_vec()))?)
    }

    /// Prints the bits per byte on the validation text beside those of a bigram model, and a text that the first run's GPT
    /// writes.
    fn print_text<W>(&self, all: &[Outcome<'_, W>]) -> Result<()> {
        const START: &str = "The ";
        /// Fewer than four lines of a terminal.
        const BYTES: usize = 220;
        let LoadedData { train, test, .. } = &self.setup.data;
        let losses = all.iter().filter_map(|it| it.trained.records.last()).map(|it| it.test_loss);
        let losses = losses.filter(|loss| loss.is_finite());
        let (least, most) = losses.fold((f64::INFINITY, 0f64), |(a, b), it| (a.min(it), b.max(it)));
        let [least, most] = [least, most].map(|loss| format!("{:.2}", bits_per_byte(loss)));
        let bits = if least == most { least } else { format!("{least} to {most}") };
        let bigram = bigram_bits_per_byte(train.bytes(), test.bytes());
        paragraph(format_args!(
            "\nThe GPT needs {bits} bits for a byte of the validation text. A bigram model, which counts pairs of bytes, needs {bigram:.2}."
        ))?;
        let (Outcome { trained, summary, .. }, start) = (&all[0], START.as_bytes());
        let choice = (self.sample()[0], 0.7, self.setup.options.seed);
        let text = generate(&self.layers, &trained.weights[1], choice, start, BYTES)?;
        // Spaces are in the places of control characters.
        let text = String::from_utf8_lossy(&text).replace(char::is_control, " ");
        Ok(paragraph(format_args!("A text by {}: {text}", summary.run))?)
    }
}

/// The results of a run on a rank.
#[derive(Default)]
pub struct Trained {
    /// The epochs.
    pub records: Vec<EpochRecord>,
    /// The weights of the whole model: after the first step, before rounding errors have grown, and at the end. The first rank
    /// of each replica has them.
    pub weights: [Snapshot; 2],
    /// The hash of each replica's whole weights.
    pub replicas: Vec<String>,
    /// The bytes of each device.
    pub held: Vec<Held>,
    /// The timelines of the first steps.
    pub steps: Vec<Timeline>,
}

impl Trained {
    /// Trains with an executor. All ranks call this together. `parts` gives the weights of this rank, of which `group` has parts;
    /// all ranks call `parts` together. `sent` is the number of bytes that this rank has sent in collectives.
    pub fn with<U: Unit>(
        (executor, group): (&Executor<U>, &SharedCommunicator),
        Training { setup, layers, .. }: &Training,
        update: (&mut dyn Optimizer, usize),
        store: Option<&dyn Store>,
        (parts, sent): (impl Fn() -> Result<Snapshot, Error>, impl Fn() -> u64),
        mut report: Report<'_>,
    ) -> Result<Self, Error> {
        let whole = || executor.whole(layers.join(parts()?, group)?);
        let (mut first, mut before, mut of_steps) = (None, 0, Vec::new());
        let observe = |now: Progress<'_>| {
            if now.last.is_some() {
                // Between the last step of an epoch and the next step is an evaluation.
                of_steps.push((sent() - before) as usize);
                first = if now.steps == 1 { whole()? } else { first.take() };
            }
            before = sent();
            Ok(())
        };
        let (data, options) = (&setup.data, &setup.options);
        let records = train(executor, data, options, update, store, &mut report, observe)?.records;
        let weights = [first, whole()?].map(|whole| {
            let mut weights = whole.unwrap_or_default();
            // A pipeline has its weights by stage, and one device has parameters before buffers.
            weights.sort_by(|(a, _), (b, _)| a.cmp(b));
            weights
        });
        let mut held = executor.measured().held;
        held.sent += of_steps.into_iter().min().unwrap_or(0);
        let all = &**executor.rank().expect("an executor is on a rank");
        let hash = (!weights[1].is_empty()).then(|| WeightsHash::new(&weights[1])).transpose()?;
        let hashes = text::values_gathered(all, &hash.map(|hash| format!("{hash:?}")))?;
        let (replicas, held) =
            (hashes.into_iter().flatten().collect(), text::values_gathered(all, &held)?);
        Ok(Self { records, weights, replicas, held, steps: executor.timelines()? })
    }
}

/// The results of a run, beside those of one device.
pub struct Outcome<'a, W> {
    /// The run.
    pub run: &'a Run<W>,
    /// The results of rank 0, in the process that prints.
    pub trained: Trained,
    /// The line of the run.
    pub summary: Summary,
    /// The average of the epochs.
    pub seconds_per_step: f64,
    /// The largest differences from the weights of one device, after the first step and at the end.
    pub errors: [Option<f64>; 2],
    /// The predicted step, and the measured step in the middle.
    pub steps: Option<[Timeline; 2]>,
}

impl<W> Outcome<'_, W> {
    /// The bytes of the fullest device.
    pub fn bytes(&self) -> usize {
        self.trained.held.iter().map(|held| held.total).max().unwrap_or(0)
    }
}

/// A part of a report: a table below its title, if there is one, and a conclusion in sentences.
pub type Block = (Option<(&'static str, Table)>, String);

/// The largest finite error of all runs, after the first step or at the end.
pub fn largest_error<W>(all: &[Outcome<'_, W>], at: usize) -> Option<f64> {
    all.iter().filter_map(|it| it.errors[at]).filter(|it| it.is_finite()).reduce(f64::max)
}

/// The largest error of the predicted peaks, in percent. An interrupted run has no peaks.
pub fn error_of_peaks<W>(all: &[Outcome<'_, W>]) -> Option<f64> {
    let devices = all.iter().flat_map(|it| it.run.held.iter().zip(&it.trained.held));
    let errors = devices.map(|(predicted, found)| predicted.peak.largest_error(found.peak));
    errors.filter(|it| it.is_finite()).reduce(f64::max).map(|error| (100.0 * error).ceil())
}

/// The columns of bytes in a table: the cells are [`cells_of_bytes`].
pub const BYTES: [(&str, u8); 6] = [
    ("para-\nmeters", 2),
    ("gradi-\nents", 2),
    ("opt.\nstate", 3),
    ("activa-\ntions", 1),
    ("mes-\nsages", 4),
    ("in\nall", 0),
];

/// The cells of [`BYTES`]. The cell of messages may be empty.
pub fn cells_of_bytes(held: &Held, has_messages: bool) -> [String; 6] {
    let [parameters, gradients, optimizer, activations, messages] =
        held.peak.kinds().map(|(_, bytes)| megabytes(bytes));
    let messages = if has_messages { messages } else { String::new() };
    [parameters, gradients, optimizer, activations, messages, megabytes(held.total)]
}

/// A table of such rows, each behind its name. A column has a heading and a rank ([`Table::column`]). The table leaves a column
/// without cells out.
pub fn table(columns: &[(&str, u8)], rows: impl IntoIterator<Item = Vec<String>>) -> Table {
    let columns = columns.iter();
    let mut table = columns.fold(Table::new(""), |table, (name, rank)| table.column(name, *rank));
    rows.into_iter().for_each(|row| table.row(row));
    table
}

/// Writes the picture of a step of each run, if there is one. With doubts about times, the picture has no conclusion.
pub fn draw_steps<const N: usize>(
    path: Option<&Path>,
    title: &str,
    doubts: &[Doubt],
    steps: &[(&str, [&Timeline; N])],
) -> io::Result<()> {
    let doubt = (!doubts.is_empty()).then(|| ranked(doubts, String::new));
    let path = path.filter(|_| !steps.is_empty());
    write("--gantt", path, || chart(title, doubt, steps).svg(Place::File))
}

/// Writes the file of a flag, if there is one.
pub fn write(flag: &str, path: Option<&Path>, text: impl FnOnce() -> String) -> io::Result<()> {
    let write = |path| file::write_flag(flag, path, |file| file.write_all(text().as_bytes()));
    path.map_or(Ok(()), write)
}
