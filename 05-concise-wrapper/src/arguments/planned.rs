//! What a call comes to: checked flags, loaded data, and the runs to be made.

use std::fmt;
use std::time::Duration;

use checkpoints::Checkpoints;
use concise_wrapper::Precision;
use concise_wrapper::ddp::Reduction;
use concise_wrapper::optimiser::Extras;
use concise_wrapper::optimiser::Schedule;
use concise_wrapper::recording::Recording;
use concise_wrapper::slow_link::Slowness;
use devices::DeviceArguments;
use devices::DevicePlan;
use harness::cli::{UsageError, name_of};
use harness::records::TrainOptions;
use harness::report::file::LazyFile;
use harness::report::summary::Versions;
use scratch_data_parallel::breakage::Breakage;
use trainer::TrainSetup;

use super::{ModelKind, Norm, Scale, TestNorm, WrapperKind};

/// The flags of one call, checked, with the data loaded.
pub(crate) struct Prepared {
    pub(crate) setup: TrainSetup,
    pub(crate) precision: Precision,
    pub(crate) model: ModelKind,
    pub(crate) width: usize,
    pub(crate) norm: Norm,
    pub(crate) test_norm: TestNorm,
    pub(crate) extras: Extras,
    pub(super) wrapper: WrapperKind,
    /// The devices of this process.
    pub(crate) several: DevicePlan,
    /// The names of all processes' devices, known to the one that speaks once all can begin.
    pub(crate) devices: Vec<String>,
    /// Whether ranks are processes.
    pub(super) processes: bool,
    /// The devices of all processes.
    pub(super) world_size: usize,
    pub(super) device: DeviceArguments,
    pub(super) scale: Scale,
    pub(super) reduction: Reduction,
    pub(super) slowness: Option<Slowness>,
    pub(super) breakage: Option<Breakage>,
    pub(crate) compare: Option<u32>,
    /// Whether the steps of the run on several devices are recorded.
    pub(crate) records: bool,
    /// Where, if it is this process that writes.
    pub(crate) recording: Option<Recording<LazyFile>>,
    pub(super) checkpoints: Option<Checkpoints>,
    pub(super) notes: Vec<String>,
    /// How long a device may keep another waiting.
    pub(crate) timeout: Duration,
}

/// A run that is to be made.
pub(crate) struct Planned {
    pub(crate) name: &'static str,
    pub(crate) plan: DevicePlan,
    pub(crate) world_size: usize,
    pub(crate) wrapper: WrapperKind,
    pub(crate) options: TrainOptions,
    pub(crate) reduction: Reduction,
    pub(crate) norm: Norm,
    /// Of the link between the devices, where it is slowed down on purpose.
    pub(crate) slowness: Option<Slowness>,
    pub(crate) breakage: Option<Breakage>,
    /// Whether `--record` and `--checkpoint` are about this run.
    pub(crate) recorded: bool,
}

impl Planned {
    /// What has to be the same on all ranks, beside what the training loop compares.
    pub(crate) fn to_compare(&self, prepared: &Prepared) -> Vec<(String, String)> {
        let Self { reduction, norm, breakage, slowness, .. } = self;
        let records = prepared.records;
        [
            ("program version", format!("{:?}", Versions::of_this_binary())),
            ("model", prepared.model_name()),
            ("way of adding up gradients", format!("{reduction:?}")),
            ("batch norm", format!("{norm:?}")),
            ("--test-norm", name_of(&prepared.test_norm)),
            ("--break", format!("{breakage:?}")),
            ("--slow-link", format!("{slowness:?}")),
            ("--record", records.to_string()),
        ]
        .map(|(what, value)| (what.to_owned(), value))
        .to_vec()
    }
}

impl fmt::Display for Planned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TrainOptions { batch_size, learning_rate, .. } = self.options;
        write!(f, "{}: train({}, {batch_size}, {learning_rate})", self.name, self.world_size)
    }
}

impl Prepared {
    /// What is about to be trained, in one line.
    pub(crate) fn headline(&self) -> String {
        let mixed = if self.precision.is_mixed() { " in bf16" } else { "" };
        self.setup.headline(&format!("{}{mixed}", self.model_name()))
    }

    fn model_name(&self) -> String {
        match self.model {
            ModelKind::Lenet => "LeNet".to_owned(),
            ModelKind::Resnet18 => format!("ResNet-18 of width {}", self.width),
        }
    }

    /// What to know before believing the numbers.
    pub(crate) fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The runs: one device, then the devices asked for. With checkpoints only the latter, for who resumes a run
    /// does not want to wait for another first; and as processes, each of which has one device.
    pub(crate) fn plan(&self) -> anyhow::Result<Vec<Planned>> {
        let one = self.on_one_device()?;
        if self.world_size > 1 {
            let several = self.on_several(self.scale, self.norm);
            let alone = self.processes || self.checkpoints.is_some();
            return Ok(if alone { vec![several] } else { vec![one, several] });
        }
        let wrapper = match self.wrapper {
            WrapperKind::DataParallel => WrapperKind::DataParallel,
            WrapperKind::Single | WrapperKind::Ddp => one.wrapper,
        };
        Ok(vec![Planned { wrapper, recorded: true, ..one }])
    }

    /// Where a run keeps its checkpoints, if it is the one that does.
    pub(crate) fn checkpoints(&self, planned: &Planned) -> Option<Checkpoints> {
        let mut checkpoints = self.checkpoints.clone().filter(|_| planned.recorded)?;
        let none = || "none".to_owned();
        let shards = match planned.reduction {
            Reduction::Reproducible { shards } => Some(shards),
            Reduction::Buckets { .. } => None,
        };
        let (model, width, norms) = match self.model {
            ModelKind::Lenet => ("LeNet", none(), none()),
            ModelKind::Resnet18 => {
                let norms = normalised_images(planned.norm, shards, planned.world_size);
                ("ResNet-18", self.width.to_string(), norms)
            }
        };
        checkpoints.configuration.extend([
            ("model", model.to_owned()),
            ("width", width),
            ("batch norm", norms),
            ("shards", shards.map_or_else(none, |shards| shards.to_string())),
        ]);
        Some(checkpoints)
    }

    /// The baseline.
    pub(crate) fn on_one_device(&self) -> Result<Planned, UsageError> {
        let by_shard = matches!(self.reduction, Reduction::Reproducible { .. });
        Ok(Planned {
            name: "one device",
            plan: self.device.plan_one_of(&self.several)?,
            world_size: 1,
            // By shard, one device works through the same shards.
            wrapper: if by_shard { self.wrapper } else { WrapperKind::Single },
            options: self.setup.options,
            reduction: self.reduction,
            norm: Norm::Local,
            slowness: None,
            breakage: None,
            recorded: false,
        })
    }

    /// The devices asked for.
    pub(crate) fn on_several(&self, scale: Scale, norm: Norm) -> Planned {
        let mut options = self.setup.options;
        if scale == Scale::Linear {
            let reference = options.batch_size;
            options.batch_size *= self.world_size;
            let schedule = Schedule::constant(options.learning_rate);
            options.learning_rate = schedule.scaled(options.batch_size, reference).rate;
        }
        let name = match self.wrapper {
            WrapperKind::DataParallel => "data parallel",
            WrapperKind::Ddp | WrapperKind::Single => "ddp",
        };
        let Self { wrapper, reduction, breakage, world_size, slowness, .. } = *self;
        let plan = self.several.clone();
        Planned {
            name,
            plan,
            world_size,
            wrapper,
            options,
            reduction,
            norm,
            slowness,
            breakage,
            recorded: true,
        }
    }
}

/// The images from which a batch norm computes its statistics, in words. Where these differ, the networks differ.
fn normalised_images(norm: Norm, shards: Option<usize>, world_size: usize) -> String {
    match norm {
        _ if shards.is_some() => "over each shard".to_owned(),
        Norm::Local if world_size > 1 => format!("over each of {world_size} parts of a batch"),
        Norm::Local | Norm::Sync => "over the whole batch".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_number_of_parts_to_normalise_by_is_another_run() {
        let whole = normalised_images(Norm::Local, None, 1);
        for devices in [1, 2, 4] {
            assert_eq!(normalised_images(Norm::Sync, None, devices), whole);
        }
        let by_shard = normalised_images(Norm::Local, Some(8), 1);
        assert_eq!(normalised_images(Norm::Local, Some(8), 4), by_shard);
        let [two, four] = [2, 4].map(|devices| normalised_images(Norm::Local, None, devices));
        let all = std::collections::BTreeSet::from([whole, by_shard, two, four]);
        assert_eq!(all.len(), 4, "{all:?}");
    }
}
