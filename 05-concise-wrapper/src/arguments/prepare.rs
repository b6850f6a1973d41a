//! From flags to what is to be done: everything is checked, then the data is loaded and files are opened.

use std::fs::File;
use std::io::{self, BufWriter};
use std::path::Path;
use std::time::Duration;

use concise_wrapper::ddp::Reduction;
use concise_wrapper::launch::Launch;
use concise_wrapper::recording::Recording;
use concise_wrapper::resnet;
use concise_wrapper::slow_link::Slowness;
use single_gpu::cli::{ReportArguments, UsageError};
use single_gpu::report::file;

use super::{Arguments, ModelKind, Prepared, Scale};

/// On a CPU the network is so much narrower, unless `--width` says otherwise: an epoch takes seconds.
const WIDTH_ON_A_CPU: usize = 16;

/// On a CPU, so many training and test images are used, unless `--train-size` and `--test-size` say
/// otherwise.
const IMAGES_ON_A_CPU: (u64, u64) = (12_288, 2_000);

impl Arguments {
    /// Checks the flags against each other and against the machine, then loads the data.
    pub(crate) fn prepare(mut self, launch: &Launch) -> anyhow::Result<Prepared> {
        let asked = self.devices_given.then_some(self.devices.count);
        let several = launch.place(&mut self.devices, asked)?;
        self.check(launch)?;
        let slowness = self.reduction.slow_link.map(|megabytes| Slowness {
            latency: Duration::ZERO,
            bandwidth: megabytes * f64::from(1 << 20),
        });
        let (precision, reduction) = (self.precision(&several)?, self.reduction(&several)?);
        let records = self.record.is_some();
        if !launch.speaks() {
            self.train.reports = ReportArguments::default();
            self.record = None;
        }
        let Self {
            devices,
            model,
            width,
            wrapper,
            bn,
            scale,
            optimiser,
            mut train,
            breakage,
            compare,
            record,
            checkpoints,
            ..
        } = self;
        if launch.speaks() {
            // It alone reads and writes them.
            checkpoints.check()?;
        }
        let mut notes: Vec<String> = launch.note(&several).into_iter().collect();
        let on_cpu = several.threads_per_device().is_some();
        let width = match width {
            Some(width) => width as usize,
            None if on_cpu => WIDTH_ON_A_CPU,
            None => resnet::WIDTH,
        };
        if on_cpu && model == ModelKind::Resnet18 {
            let (training, test) = IMAGES_ON_A_CPU;
            let part = train.train_size.is_none();
            train.train_size.get_or_insert(training);
            train.test_size.get_or_insert(test);
            if part || width < resnet::WIDTH {
                notes.push(format!(
                    "sized to a CPU: {width} planes in the first group in place of {}, and part of the \
                     images; --width and --train-size change that",
                    resnet::WIDTH
                ));
            }
        }
        let scale = scale.unwrap_or(match reduction {
            Reduction::Reproducible { .. } => Scale::None,
            Reduction::Buckets { .. } => Scale::Linear,
        });
        let extras = optimiser.extras();
        let refused = |path: &Path, error: io::Error| {
            UsageError::new(format_args!("--record {}: {error}", path.display()))
        };
        if let Some(path) = &record {
            file::check(path).map_err(|error| refused(path, error))?;
        }
        let setup = train.prepare(devices.count)?;
        let recording = match record {
            Some(path) => {
                let file = File::create(&path).map_err(|error| refused(&path, error))?;
                Some(Recording::new(BufWriter::new(file)))
            }
            None => None,
        };
        let device = devices.each;
        Ok(Prepared {
            setup,
            precision,
            model,
            width,
            norm: bn,
            extras,
            wrapper,
            several,
            devices: Vec::new(),
            processes: launch.processes().is_some(),
            world_size: devices.count,
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
        })
    }
}
