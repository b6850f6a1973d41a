//! From flags to the runs of the program.

use std::time::Instant;

use anyhow::Result;
use candle_core::{DType, Device, Tensor};
use concise_wrapper::launch::Launch;
use concise_wrapper::optimizer::AdamW;
use concise_wrapper::sizing;
use concise_wrapper::slow_link::Slowness;
use datasets::SAMPLE;
use devices::DevicePlan;
use model_parallel::layers::Layers;
use model_parallel::partition::{self, Setting};
use model_parallel::{Action, Checked, Cost, Timeline, UNBOUNDED, check};
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::Error;
use sharded_state::{Sharing, Strategy};
use trainer::TrainSetup;
use trainer::memory::{Footprint, NetworkSize};

use crate::arguments::Arguments;
use crate::draw::draw;

/// On a CPU, the number of training and test images without `--train-size` and `--test-size`.
const IMAGES_ON_A_CPU: (usize, usize) = (10_240, 2_000);

/// The number of times that each unit and the link are measured. The least time counts.
const TRIES: usize = 5;

/// The flags of a call that trains, checked, with the data loaded.
pub(crate) struct Prepared {
    pub(crate) flags: Arguments,
    pub(crate) setup: TrainSetup,
    pub(crate) layers: Layers,
    pub(crate) runs: Vec<Run>,
    pub(crate) notes: Vec<String>,
    /// The speed of `--slow-link`, if there are several devices.
    pub(crate) slowness: Option<Slowness>,
    /// The devices of this process, and one of them alone.
    several: DevicePlan,
    one: DevicePlan,
    /// The names of all processes' devices.
    pub(crate) devices: Vec<String>,
}

/// A run that is to be made.
pub(crate) struct Run {
    pub(crate) name: String,
    pub(crate) strategy: Strategy,
    pub(crate) replicas: usize,
    pub(crate) checked: Checked,
    /// The prediction, in the process that prints: a step, and the bytes that a rank sends.
    pub(crate) predicted: (Timeline, usize),
}

impl Run {
    /// The name, and the number of devices if there are several.
    pub(crate) fn title(&self) -> String {
        match self.replicas {
            1 => self.name.clone(),
            devices => format!("{} on {devices} devices", self.name),
        }
    }

    /// Predicts a step of units with these costs.
    fn predict(&mut self, costs: &[Cost]) -> Result<()> {
        let (step, ranks) = (self.checked.simulate(costs, 0.0)?, self.replicas);
        // Around a ring, a rank sends all chunks but one.
        let of_half = |unit: usize| costs[unit].parameters * (ranks - 1) / ranks;
        let sent = step.spans.iter().map(|it| match it.instruction.action {
            Action::AllReduce => 2 * of_half(it.instruction.unit),
            Action::Gather | Action::ReduceScatter => of_half(it.instruction.unit),
            _ => 0,
        });
        self.predicted = (step.clone(), sent.sum());
        Ok(())
    }
}

impl Prepared {
    /// Checks the flags against each other and against the machine, then loads the data and opens files. With `--draw` prints
    /// the drawings, and returns `None`.
    pub(crate) fn new(mut flags: Arguments, launch: &Launch) -> Result<Option<Self>> {
        if flags.draw {
            draw(&flags, launch)?;
            return Ok(None);
        }
        let (several, devices) = launch.plan(&flags.launch.each, flags.launch.devices)?;
        flags.check(launch, devices)?;
        let layers = Layers::dense(&flags.features())?;
        let size = NetworkSize::dense(&flags.features());
        let slowness = flags.slow_link.filter(|_| devices > 1);
        let slowness = slowness.map(|speed| Slowness::of_megabytes(speed, Default::default()));
        if let Some(slowness) = slowness {
            let largest = flags.features().windows(2).map(|it| (it[0] + 1) * it[1]).max();
            let bytes = largest.unwrap_or(0) * flags.train.dtype.size_in_bytes();
            slowness.check(flags.launch.timeout(), devices, (0, bytes), Some(Algorithm::Ring))?;
        }
        let mut notes: Vec<String> = launch.note(&several).into_iter().collect();
        let part = sizing::limit_images(&mut flags.train, &several, IMAGES_ON_A_CPU);
        notes.extend(sizing::note(None, part));
        let one = flags.launch.each.plan_one_of(&several)?;
        let run = |name: String, strategy: Strategy, replicas: usize| {
            let schedule = strategy.schedule(layers.len(), flags.micro_batches, replicas);
            Ok(Run {
                name,
                strategy,
                replicas,
                checked: check(schedule, UNBOUNDED)?,
                predicted: (Timeline::joined(None), 0),
            })
        };
        let alone = Strategy { sharing: Sharing::Ddp, prefetches: false, recomputes: None };
        // Each process has a device, so no process trains alone.
        let alone = launch.processes().is_none().then(|| run("one device".to_owned(), alone, 1));
        let strategies = flags.strategies().map(|it| run(it.to_string(), it, devices));
        let runs = alone.into_iter().chain(strategies).collect::<Result<Vec<_>>>()?;
        flags.check_files(launch.speaks())?;
        let footprint = Footprint {
            // Parameters, gradients and two moments, copies of them on their way, and the results of the runs.
            weights: 6 * several.len() + 2 * runs.len(),
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
        let devices = Vec::new();
        Ok(Some(Self { flags, setup, layers, runs, notes, slowness, several, one, devices }))
    }

    /// The devices of this process for a run.
    pub(crate) fn devices_of(&self, run: &Run) -> &DevicePlan {
        if run.replicas == 1 { &self.one } else { &self.several }
    }

    /// Measures the link and each unit, and predicts all runs. All processes call this together, and the process that prints
    /// predicts.
    pub(crate) fn predict(&mut self, launch: &Launch) -> Result<()> {
        self.devices = launch.devices(&self.several)?;
        let seconds_per_byte = self.measure_link(launch)?;
        launch.agree(if launch.speaks() { self.measure(seconds_per_byte) } else { Ok(()) })
    }

    /// The seconds that an all-reduce takes for each byte.
    fn measure_link(&self, launch: &Launch) -> Result<f64> {
        let ranks = self.devices.len() as f64;
        if let Some(slowness) = self.slowness {
            return Ok(2.0 * (ranks - 1.0) / ranks / slowness.bandwidth);
        }
        let numbers = 1 << 18;
        let values = vec![(); self.several.len()];
        let of_ranks = launch.run(&self.several, values, |_, comm, ()| {
            let tensor = Tensor::zeros(numbers, DType::F32, &Device::Cpu)?;
            let mut least = f64::INFINITY;
            for _ in 0..TRIES {
                comm.barrier()?;
                let start = Instant::now();
                comm.all_reduce(&tensor, Algorithm::Ring)?;
                least = least.min(start.elapsed().as_secs_f64());
            }
            Ok::<_, Error>(least)
        })?;
        Ok(of_ranks[0] / (4 * numbers) as f64)
    }

    /// Measures the units on the first device, for each size of a micro-batch. Then predicts all runs.
    fn measure(&mut self, seconds_per_byte: f64) -> Result<()> {
        let device = self.several.slots()[0].open()?;
        let batch = self.setup.options.batch_size.min(self.setup.data.train.len());
        for replicas in [1, self.devices.len()] {
            let rows = batch.div_ceil(replicas * self.flags.micro_batches);
            let setting = Setting { sample: &SAMPLE, rows, tries: TRIES };
            let (layers, dtype, adamw) = (&self.layers, self.setup.dtype, &mut AdamW::default());
            let (units, tensors) = (partition::each(layers), device.tensors());
            let measure = || partition::measure(layers, &units, setting, dtype, tensors, adamw);
            let mut costs = device.run(measure)?;
            costs.iter_mut().for_each(|it| it.all_reduce = seconds_per_byte * it.parameters as f64);
            let mut runs = self.runs.iter_mut().filter(|run| run.replicas == replicas);
            runs.try_for_each(|run| run.predict(&costs))?;
        }
        Ok(())
    }
}
