//! From flags to what is to be done: everything is checked, then the data is loaded and files are opened.

use std::fs::Metadata;
use std::time::Duration;

use checkpoints::Checkpoints;
use concise_wrapper::ddp::Reduction;
use concise_wrapper::launch::{Launch, LaunchArguments, Places};
use concise_wrapper::recording::Recording;
use concise_wrapper::slow_link::Slowness;
use concise_wrapper::{resnet, sizing};
use harness::cli::{ReportArguments, UsageError};
use harness::report::file::{self, LazyFile};
use harness::report::{counted, files_are_wanted};

use super::link::{check_link, sizes};
use super::{Arguments, ModelKind, Prepared, Scale};

/// On a CPU, so many training and test images are used, unless `--train-size` and `--test-size` say
/// otherwise.
const IMAGES_ON_A_CPU: (u64, u64) = (12_288, 2_000);

impl Arguments {
    /// Checks the flags against each other and against the machine, then loads the data.
    pub(crate) fn prepare(mut self, launch: &Launch) -> anyhow::Result<Prepared> {
        let Places { here: several, world_size } =
            launch.place(&self.launch.each, self.launch.devices)?;
        self.check(launch, world_size)?;
        let slowness = self.reduction.slow_link;
        let slowness = slowness.map(|speed| Slowness::of_megabytes(speed, Duration::ZERO));
        let timeout = self.timeout();
        let precision = self.precision(&several)?;
        let reduction = self.reduction(launch, &several, world_size)?;
        let in_turn = !self.reduction.no_overlap
            && matches!(reduction, Reduction::Buckets { overlap: false, .. });
        let records = self.record.is_some();
        if !launch.speaks() {
            self.train.reports = ReportArguments::default();
            self.record = None;
        }
        let Self {
            launch: LaunchArguments { each: device, .. },
            model,
            width,
            wrapper,
            bn,
            test_norm,
            scale,
            optimiser,
            mut train,
            breakage,
            compare,
            record,
            checkpoints,
            ..
        } = self;
        if let Some(checkpoints) = checkpoints.as_ref().filter(|_| launch.speaks()) {
            // It alone reads and writes them.
            checkpoints.check()?;
        }
        let resumes = checkpoints.as_ref().is_some_and(|checkpoints| checkpoints.resume.is_some());
        let mut notes: Vec<String> = launch.note(&several).into_iter().collect();
        // Nobody asked for it.
        if in_turn {
            notes.push(
                "with --bn sync NCCL adds buckets up after the backward pass, as with --no-overlap: two sums at a time would \
                 come in another order on each GPU"
                    .to_owned(),
            );
        }
        // Without anybody having asked for it.
        let narrow = width.is_none() && several.is_of_slices();
        let width = sizing::width(width, &several);
        if let Some(slowness) = slowness.filter(|_| world_size > 1) {
            let sizes = sizes(model, width, precision)?;
            check_link(slowness, timeout, &sizes, world_size, reduction)?;
        }
        if model == ModelKind::Resnet18 {
            let part = sizing::limit_images(&mut train, &several, IMAGES_ON_A_CPU);
            notes.extend(sized_to_a_cpu(narrow.then_some(width), part));
        }
        let scale = scale.unwrap_or(match reduction {
            Reduction::Reproducible { .. } => Scale::None,
            Reduction::Buckets { .. } => Scale::Linear,
        });
        let extras = optimiser.extras();
        let further = [("--record", record.as_deref())];
        train.reports.check(&further)?;
        if let Some(Checkpoints { folder, .. }) = &checkpoints {
            train.reports.check_folder(&further, "--checkpoint", folder)?;
        }
        if let Some(path) = record.as_deref().filter(|_| resumes) {
            // Before any file is made anew: nothing is lost by a flag that is refused.
            let has_text = |found: Metadata| found.is_file() && found.len() > 0;
            if path.metadata().is_ok_and(has_text) {
                return Err(UsageError::new(format_args!(
                    "--record {}: this is there already, perhaps from before the run was cut: with --resume, take a new \
                     file",
                    path.display()
                ))
                .into());
            }
        }
        // Which of the two `--compare` takes is not said by a flag: it takes both.
        let each_has_a_batch = scale == Scale::Linear && compare.is_none();
        let mut setup =
            train.prepare_for_shards(world_size, if each_has_a_batch { 1 } else { world_size })?;
        if checkpoints.is_some() {
            files_are_wanted();
        }
        if resumes {
            setup.outputs.resume();
        }
        let recording = match record {
            Some(path) => {
                let refused = |error| UsageError::new(file::flag_error("--record", &path, &error));
                let file = LazyFile::new(&path).map_err(refused)?;
                Some(Recording::new(format_args!("--record {}", path.display()), file))
            }
            None => None,
        };
        Ok(Prepared {
            setup,
            precision,
            model,
            width,
            norm: bn,
            test_norm,
            extras,
            wrapper,
            several,
            devices: Vec::new(),
            processes: launch.processes().is_some(),
            world_size,
            device,
            scale,
            reduction,
            slowness,
            breakage,
            compare,
            records,
            recording,
            checkpoints,
            notes,
            timeout,
        })
    }
}

/// What was decided for the reader, if anything was: the planes of ResNet-18's first group, and whether part of the images
/// are left out.
fn sized_to_a_cpu(width: Option<usize>, part: bool) -> Option<String> {
    let planes = width.map(|width| {
        format!("{} in the first group in place of {}", counted(width, "plane"), resnet::WIDTH)
    });
    Some(match (planes, part) {
        (Some(planes), true) => format!(
            "sized to a CPU: {planes}, and part of the images; --width and --train-size change that"
        ),
        (Some(planes), false) => format!("sized to a CPU: {planes}; --width changes that"),
        (None, true) => "sized to a CPU: part of the images; --train-size changes that".to_owned(),
        (None, false) => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_nobody_asked_for_is_noted() {
        assert_eq!(sized_to_a_cpu(None, false), None);
        let told = |width, part| sized_to_a_cpu(width, part).expect("a note");
        assert!(told(Some(16), true).ends_with("--width and --train-size change that"));
        let planes =
            "sized to a CPU: 16 planes in the first group in place of 64; --width changes that";
        assert_eq!(told(Some(16), false), planes);
        let images = "sized to a CPU: part of the images; --train-size changes that";
        assert_eq!(told(None, true), images);
    }
}
