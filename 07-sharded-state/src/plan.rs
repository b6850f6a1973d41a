//! From flags to the runs of the program.

use std::sync::Arc;

use anyhow::Result;
use concise_wrapper::launch::Launch;
use concise_wrapper::optimizer::AdamW;
use concise_wrapper::slow_link::SlowNetwork;
use harness::cli::UsageError;
use harness::report::counted;
use harness::report::file::LazyFile;
use model_parallel::mesh::Mesh;
use model_parallel::runs::{self, Training};
use model_parallel::simulate::Held;
use model_parallel::{UNBOUNDED, check, partition};
use sharded_state::{Sharing, Strategy, memory};

use crate::arguments::Arguments;
use crate::draw::draw;

/// The flags of a call that trains, checked, with the data loaded.
pub(crate) struct Prepared {
    pub(crate) flags: Arguments,
    pub(crate) training: Training,
    pub(crate) runs: Vec<Run>,
}

/// A run under a strategy.
pub(crate) type Run = runs::Run<Facts>;

/// What this program says about a run.
pub(crate) struct Facts {
    pub(crate) strategy: Strategy,
    /// The links of `--slow-link`, which all ranks share.
    pub(crate) slow: Option<Arc<SlowNetwork>>,
}

impl Prepared {
    /// Checks the flags against each other and against the machine, then loads the data and opens files. With `--draw` prints
    /// the drawings, and returns `None`.
    pub(crate) fn new(mut flags: Arguments, launch: &Launch) -> Result<Option<Self>> {
        if flags.draw {
            return draw(&mut flags, launch).map(|()| None);
        }
        let of_replicas = |data| Mesh { data, ..Mesh::pipeline(1) };
        let (several, mesh) = flags.common.plan(launch, of_replicas)?;
        flags.check(launch, mesh)?;
        let model = flags.network()?;
        let mut notes = Vec::new();
        if mesh.tensor > 1 {
            model.0.check_parts(mesh.tensor).map_err(UsageError::new)?;
            let replicas = counted(mesh.data, "replica");
            notes.push(format!("{replicas}, each with {} parts of every layer", mesh.tensor));
        }
        let units = model.0.len();
        let (slowness, timeout) = (flags.slowness(), flags.common.launch.timeout());
        let run = |(name, strategy, mesh): (String, Strategy, Mesh)| {
            let schedule = strategy.schedule(units, flags.micro_batches, mesh.data);
            let [title, label] = [&name, &name].map(String::clone);
            let (checked, cut) = (check(schedule, UNBOUNDED)?, partition::each(units));
            let slow = slowness.filter(|_| mesh.devices() > 1);
            let slow = slow.map(|it| SlowNetwork::new(it, timeout));
            let (step, held, facts) = (None, Vec::new(), Facts { strategy, slow });
            Ok(Run { name, title, label, mesh, checked, cut, step, held, facts })
        };
        // Each process has a device, so no process trains alone. A resumed run waits for nobody.
        let trains_alone = launch.processes().is_none() && flags.checkpoints.is_none();
        let alone = ("one device".to_owned(), Sharing::Ddp.plain(), of_replicas(1));
        let shared = flags.strategies().into_iter().map(|it| (it.to_string(), it, mesh));
        let runs = trains_alone.then_some(alone).into_iter().chain(shared).map(run);
        let runs = runs.collect::<Result<Vec<_>>>()?;
        // Parameters, gradients, moments and copies on their way of each device. Each run keeps its results and its threads'
        // memory. A unit keeps its input and its output, on each rank of a group.
        let copies = (8 * several.len() + 4 * runs.len(), 2 * mesh.tensor);
        let plan = (several, mesh);
        let mut training =
            Training::prepare(launch, &mut flags.common, model, plan, copies, notes)?;
        let metrics = training.setup.outputs.metrics.as_mut();
        let resumes = flags.checkpoints.as_ref().is_some_and(|it| it.resume.is_some());
        metrics.filter(|_| resumes).into_iter().for_each(LazyFile::resume);
        Ok(Some(Self { flags, training, runs }))
    }

    /// Measures the units on the first device, for each size of a micro-batch. Then predicts all runs.
    pub(crate) fn predict(&mut self) -> Result<()> {
        let Self { flags, training, runs } = self;
        let slowness = flags.slowness();
        for of_ranks in runs.chunk_by_mut(|a, b| a.mesh == b.mesh) {
            let (Mesh { data: ranks, tensor, .. }, adamw) =
                (of_ranks[0].mesh, &mut AdamW::default());
            let pieces = (ranks * flags.micro_batches, tensor);
            let mut costs = training.costs(pieces, adamw)?;
            for cost in &mut costs {
                // Around a ring, a rank sends all chunks but one, for each half of an all-reduce.
                let half = cost.parameters * (ranks - 1) / ranks;
                // One device has no link: a sum is an addition for each other rank.
                let additions = cost.all_reduce * (ranks - 1) as f64;
                let link = slowness.map(|it| 2.0 * it.takes(half).as_secs_f64());
                cost.all_reduce = link.unwrap_or(additions);
            }
            for run in of_ranks {
                let step = run.checked.simulate(&costs, 0.0)?;
                let sent = memory::sent(run.facts.strategy.sharing, &costs, ranks);
                run.held = vec![Held { sent, ..step.held(0) }];
                run.step = Some(step);
            }
        }
        Ok(())
    }
}
