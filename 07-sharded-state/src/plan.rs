//! From flags to the runs of the program.

use anyhow::Result;
use concise_wrapper::launch::Launch;
use concise_wrapper::optimizer::AdamW;
use concise_wrapper::sizing;
use concise_wrapper::slow_link::Slowness;
use datasets::SAMPLE;
use devices::DevicePlan;
use harness::report::file::LazyFile;
use model_parallel::execute::Held;
use model_parallel::layers::Layers;
use model_parallel::partition::{self, Setting};
use model_parallel::{Checked, Timeline, UNBOUNDED, check};
use sharded_state::{Sharing, Strategy, memory};
use trainer::TrainSetup;
use trainer::memory::{Footprint, NetworkSize};

use crate::arguments::Arguments;
use crate::draw::draw;

/// On a CPU, the number of training and test images without `--train-size` and `--test-size`.
const IMAGES_ON_A_CPU: (usize, usize) = (10_240, 2_000);

/// The flags of a call that trains, checked, with the data loaded.
pub(crate) struct Prepared {
    pub(crate) flags: Arguments,
    pub(crate) setup: TrainSetup,
    pub(crate) layers: Layers,
    pub(crate) runs: Vec<Run>,
    pub(crate) notes: Vec<String>,
    pub(crate) slowness: Option<Slowness>,
    /// The devices of this process.
    pub(crate) several: DevicePlan,
    /// The names of all processes' devices.
    pub(crate) devices: Vec<String>,
}

/// A run that is to be made: its devices in this process, and all replicas.
pub(crate) struct Run {
    pub(crate) name: String,
    pub(crate) strategy: Strategy,
    pub(crate) plan: DevicePlan,
    pub(crate) replicas: usize,
    pub(crate) checked: Checked,
    /// The predicted step, and the predicted bytes of a rank.
    pub(crate) step: Timeline,
    pub(crate) held: Held,
}

impl Prepared {
    /// Checks the flags against each other and against the machine, then loads the data and opens files. With `--draw` prints
    /// the drawings, and returns `None`.
    pub(crate) fn new(mut flags: Arguments, launch: &Launch) -> Result<Option<Self>> {
        if flags.draw {
            return draw(&mut flags, launch).map(|()| None);
        }
        let (several, devices) = launch.plan(&flags.launch.each, flags.launch.devices)?;
        flags.check(launch, devices)?;
        let (layers, size) =
            (Layers::dense(&flags.features())?, NetworkSize::dense(&flags.features()));
        let run = |name: String, strategy: Strategy, plan: &DevicePlan, replicas: usize| {
            let schedule = strategy.schedule(layers.len(), flags.micro_batches, replicas);
            let (plan, checked) = (plan.clone(), check(schedule, UNBOUNDED)?);
            let (step, held) = (Timeline::joined(None), Held::default());
            Ok(Run { name, strategy, plan, replicas, checked, step, held })
        };
        let one = flags.launch.each.plan_one_of(&several)?;
        // Each process has a device, so no process trains alone. A resumed run waits for nobody.
        let trains_alone = launch.processes().is_none() && flags.checkpoints.is_none();
        let alone = trains_alone.then(|| run("one device".into(), Sharing::Ddp.plain(), &one, 1));
        let shared = flags.strategies().into_iter();
        let shared = shared.map(|it| run(it.to_string(), it, &several, devices));
        let runs = alone.into_iter().chain(shared).collect::<Result<Vec<_>>>()?;
        let slowness = flags.slow_link.map(|it| Slowness::of_megabytes(it, Default::default()));
        let mut notes: Vec<String> = launch.note(&several).into_iter().collect();
        let part = sizing::limit_images(&mut flags.train, &several, IMAGES_ON_A_CPU);
        notes.extend(sizing::note(None, part));
        let footprint = Footprint {
            // Parameters, gradients, moments and copies on their way of each device. Each run keeps its results and its threads' memory.
            weights: 8 * several.len() + 4 * runs.len(),
            // A unit keeps its input and its output.
            activations: 2,
            batches: several.len() as f64 / devices as f64,
            ..Footprint::new(size, &several)
        };
        let mut setup = launch.one_first(|first| {
            flags.train.data.follows = !first;
            flags.train.prepare(&flags.reports, devices, devices, &footprint)
        })?;
        notes.extend(setup.data_note.take());
        let resumes = flags.checkpoints.as_ref().is_some_and(|it| it.resume.is_some());
        setup.outputs.metrics.as_mut().filter(|_| resumes).into_iter().for_each(LazyFile::resume);
        let devices = Vec::new();
        Ok(Some(Self { flags, setup, layers, runs, notes, slowness, several, devices }))
    }

    /// Measures the units on the first device, for each size of a micro-batch. Then predicts all runs.
    pub(crate) fn predict(&mut self) -> Result<()> {
        let Self { flags, setup, layers, several, slowness, .. } = self;
        let (device, units) = (several.slots()[0].open()?, partition::each(layers));
        for ranks in [1, self.devices.len()] {
            let batch = setup.options.batch_size.min(setup.data.train.len());
            let rows = batch.div_ceil(ranks * flags.micro_batches);
            let setting = Setting { sample: &SAMPLE, rows, tries: 5 };
            let (dtype, tensors, adamw) = (setup.dtype, device.tensors(), &mut AdamW::default());
            let measure = || partition::measure(layers, &units, setting, dtype, tensors, adamw);
            let mut costs = device.run(measure)?;
            for cost in &mut costs {
                // Around a ring, a rank sends all chunks but one, for each half of an all-reduce.
                let half = cost.parameters * (ranks - 1) / ranks;
                // One device has no link: a sum is an addition for each other rank.
                let additions = cost.all_reduce * (ranks - 1) as f64;
                let link = slowness.map(|it| 2.0 * it.takes(half).as_secs_f64());
                cost.all_reduce = link.unwrap_or(additions);
            }
            for run in self.runs.iter_mut().filter(|run| run.replicas == ranks) {
                run.step = run.checked.simulate(&costs, 0.0)?;
                let sent = memory::sent(run.strategy.sharing, &costs, ranks);
                run.held = Held { peak: run.step.peak(0), total: run.step.peak_total(0), sent };
            }
        }
        Ok(())
    }
}
