//! Trains LeNet on one device.

mod conclusion;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use datasets::{CLASS_NAMES, CLASSES, Dataset, contact_sheet};
use devices::DeviceArguments;
use devices::{ComputeDevice, DeviceKind, DevicePlan};
use harness::cli::{self, ReportArguments, UsageError};
use harness::records::TrainOptions;
use harness::report::{file, line, paragraph};
use harness::statistics::median;
use model_state::weights_hash::WeightsHash;
use single_gpu::lenet::{Layers, Lenet};
use single_gpu::train::{train, train_batch};
use trainer::memory::{Footprint, NetworkSize};
use trainer::{TrainArguments, TrainSetup};

/// Images of each class on a contact sheet.
const SHEET_COLUMNS: usize = 20;

/// The flags for training, which a contact sheet does not use.
const OF_TRAINING: [&str; 13] = [
    "device",
    "threads_per_device",
    "tf32",
    "layers",
    "epochs",
    "batch_size",
    "lr",
    "seed",
    "dtype",
    "metrics",
    "plot",
    "trace",
    "timeline",
];

/// Train LeNet on one device: a GPU, or a slice of the CPU.
#[derive(Debug, Parser)]
#[command(
    version,
    before_help = "\
Examples:
  single-gpu --epochs 3
  single-gpu --data synthetic --layers plain --train-size 1000 --epochs 1
"
)]
struct Arguments {
    #[command(flatten)]
    train: TrainArguments,

    /// The layers to train with
    ///
    /// With plain layers, the program also prints the time of a step with each kind of layers.
    #[arg(long, value_enum, value_name = "KIND", default_value_t, help_heading = "What to train")]
    layers: Layers,

    #[command(flatten)]
    device: DeviceArguments,

    /// Refused, unless it is 1: other programs of the course have this flag.
    #[arg(long, hide = true, value_name = "K", value_parser = DeviceArguments::parse_devices)]
    devices: Option<usize>,

    #[command(flatten)]
    reports: ReportArguments,

    /// Draw training images of each class, and stop
    #[arg(long, value_name = "FILE.png", conflicts_with_all = OF_TRAINING, help_heading = "Output")]
    contact_sheet: Option<PathBuf>,
}

impl Arguments {
    /// The plan for the one device, on which the layers can run.
    fn plan(&self) -> Result<DevicePlan, UsageError> {
        if let Some(devices) = self.devices.filter(|&devices| devices > 1) {
            return Err(UsageError::new(format_args!(
                "--devices {devices}: this program trains on one device; cargo run --release -p scratch-data-parallel -- \
                 --devices {devices} trains LeNet on several"
            )));
        }
        let on_a_gpu = || {
            UsageError::new("--layers plain: plain layers run on the CPU only; use --device cpu")
        };
        if self.layers == Layers::Plain && self.device.device == DeviceKind::Cuda {
            return Err(on_a_gpu());
        }
        let plan = self.device.plan(1)?;
        // The plan of `--device auto` is a GPU on a machine that has one.
        if self.layers == Layers::Plain && !plan.is_of_slices() {
            return Err(on_a_gpu());
        }
        Ok(plan)
    }

    /// The memory of the run. A contact sheet trains nothing.
    fn footprint(&self, plan: &DevicePlan) -> Footprint {
        let lenet = NetworkSize::lenet();
        let training = match self.layers {
            _ if self.contact_sheet.is_some() => 0,
            Layers::Fast => lenet.training,
            // Plain convolutions copy each pixel once for each weight of a kernel.
            Layers::Plain => 210_000,
        };
        Footprint::new(NetworkSize { training, ..lenet }, plan)
    }
}

fn main() -> ExitCode {
    cli::conclude(cli::arguments().and_then(run))
}

fn run(arguments: Arguments) -> anyhow::Result<()> {
    let plan = arguments.plan()?;
    if let Some(path) = &arguments.contact_sheet {
        // Checked before images are loaded, which may mean a download.
        cli::writable("--contact-sheet", path, ("a PNG picture", &["png"]))?;
    }
    let footprint = arguments.footprint(&plan);
    let mut setup = arguments.train.prepare(&arguments.reports, 1, 1, &footprint, None)?;
    if let Some(path) = &arguments.contact_sheet {
        setup.notes(&plan).try_for_each(|note| line(format_args!("note: {note}")))?;
        return write_contact_sheet(path, &setup.data.train);
    }

    let headline = setup.headline("LeNet");
    paragraph(&headline)?;
    setup.notes(&plan).try_for_each(|note| paragraph(format_args!("note: {note}")))?;
    let device = plan.slots()[0].open_in_this_thread()?;
    if arguments.layers == Layers::Plain {
        let plain = seconds_per_step(Layers::Plain, 1, &setup, &device)?;
        let fast = seconds_per_step(Layers::Fast, 7, &setup, &device)?;
        let images = setup.options.batch_size.min(setup.data.train.len());
        paragraph(conclusion::layers(images, plain, fast))?;
    }
    let mut outputs = std::mem::take(&mut setup.outputs);
    let mut report = outputs.report("one device");
    let (options, layers) = (&setup.options, arguments.layers);
    let trained = train(&setup.data, options, layers, setup.dtype, &device, &mut report)?;
    drop(report);
    let hash = WeightsHash::new(&trained.weights)?;
    let summary = setup.summary("one device", &plan, &trained.records, hash);
    outputs.run_ended(&summary, &trained.records)?;
    line(format_args!("\n{summary}"))?;
    paragraph(format_args!("\n{}", conclusion::training(&summary, &trained.records)))?;
    outputs.write(&headline)?;
    Ok(())
}

/// Times training steps of a fresh LeNet on one batch, after a first step that does not count. Returns the median in seconds.
fn seconds_per_step(
    layers: Layers,
    steps: usize,
    setup: &TrainSetup,
    device: &ComputeDevice,
) -> candle_core::Result<f64> {
    let TrainOptions { batch_size, learning_rate, seed, .. } = setup.options;
    let images = batch_size.min(setup.data.train.len());
    let batch = setup.data.train.batch(&Vec::from_iter(0..images as u32), setup.dtype)?;
    let lenet = Lenet::new(seed, setup.dtype, device.tensors())?.with_layers(layers);
    let mut times = Vec::new();
    for _ in 0..=steps {
        let started = Instant::now();
        train_batch(&lenet, &batch, learning_rate)?.read()?;
        times.push(started.elapsed().as_secs_f64());
    }
    Ok(median(times.split_off(1)))
}

/// Writes the first images of each class to a PNG file, a class per row.
fn write_contact_sheet(path: &Path, images: &Dataset) -> anyhow::Result<()> {
    contact_sheet::write(path, images, SHEET_COLUMNS)
        .map_err(|error| file::flag_error("--contact-sheet", path, &error))?;
    file::announce("--contact-sheet", path)?;
    line(format_args!("{SHEET_COLUMNS} images a row"))?;
    for (label, name) in CLASS_NAMES.iter().enumerate().take(CLASSES) {
        line(format_args!("  row {}: {name}", label + 1))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn every_flag_is_about_training_or_goes_with_a_contact_sheet() {
        let goes = ["data", "train_size", "test_size", "devices", "contact_sheet"];
        let command = Arguments::command();
        // Flags that an environment variable can set are left out. They name the location and the
        // source of data.
        let flags = command.get_arguments().filter(|flag| flag.get_env().is_none());
        let flags: BTreeSet<_> = flags.map(|flag| flag.get_id().as_str()).collect();
        assert_eq!(flags, OF_TRAINING.into_iter().chain(goes).collect());
        assert_eq!(flags.len(), OF_TRAINING.len() + goes.len());
    }
}
