//! Trains LeNet on one device.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use datasets::{CLASS_NAMES, CLASSES, contact_sheet};
use devices::DeviceArguments;
use harness::cli;
use harness::interrupt;
use harness::report::{file, line};
use ops::weights_hash::WeightsHash;
use single_gpu::train::train;
use trainer::TrainArguments;

/// Images of each class on a contact sheet.
const SHEET_COLUMNS: usize = 20;

/// Flags about what is trained, how, and what that leaves behind: of no use to a contact sheet.
const OF_TRAINING: [&str; 12] = [
    "device",
    "threads_per_device",
    "tf32",
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
#[command(version)]
struct Arguments {
    #[command(flatten)]
    device: DeviceArguments,

    #[command(flatten)]
    train: TrainArguments,

    /// Write the first training images of each class to this PNG file, and stop
    #[arg(long, value_name = "FILE", conflicts_with_all = OF_TRAINING)]
    contact_sheet: Option<PathBuf>,
}

fn main() -> ExitCode {
    cli::main(run)
}

fn run(arguments: Arguments) -> anyhow::Result<()> {
    let plan = arguments.device.plan(1)?;
    if let Some(path) = &arguments.contact_sheet {
        // Before images are loaded, which may mean a download.
        cli::writable("--contact-sheet", path)?;
    }
    let mut setup = arguments.train.prepare(plan.len())?;
    if let Some(path) = &arguments.contact_sheet {
        let train = &setup.data.train;
        let (images, _) = train.pixels().as_chunks();
        let labelled = images.iter().zip(train.labels().iter().copied());
        let rows = contact_sheet::rows_of_classes(labelled, SHEET_COLUMNS);
        let (width, height, pixels) = contact_sheet::contact_sheet(&rows, SHEET_COLUMNS);
        contact_sheet::write_png(path, width, height, &pixels)
            .map_err(|error| file::flag_error("--contact-sheet", path, &error))?;
        line(format_args!("{}: {SHEET_COLUMNS} images a row", path.display()))?;
        for (label, name) in CLASS_NAMES.iter().enumerate().take(CLASSES) {
            line(format_args!("  row {}: {name}", label + 1))?;
        }
        return Ok(());
    }

    interrupt::watch()?;
    let headline = setup.headline("LeNet");
    line(&headline)?;
    if let Some(note) = plan.note() {
        line(format_args!("note: {note}"))?;
    }
    let device = plan.slots()[0].open()?;
    let mut outputs = std::mem::take(&mut setup.outputs);
    let mut report = outputs.report("one device");
    let trained = train(&setup.data, &setup.options, setup.dtype, &device, &mut report)?;
    drop(report);
    let hash = WeightsHash::new(&trained.weights)?;
    let summary = setup.summary("one device", &plan, &trained.records, hash);
    outputs.run_ended(&summary, &trained.records)?;
    outputs.print_sparklines()?;
    line(&summary)?;
    outputs.write(&headline)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn every_flag_is_about_training_or_goes_with_a_contact_sheet() {
        let goes = ["data", "train_size", "test_size", "contact_sheet"];
        let command = Arguments::command();
        // Where data are, and come from, may be said by a variable.
        let flags = command.get_arguments().filter(|flag| flag.get_env().is_none());
        let flags: BTreeSet<_> = flags.map(|flag| flag.get_id().as_str()).collect();
        assert_eq!(flags, OF_TRAINING.into_iter().chain(goes).collect());
        assert_eq!(flags.len(), OF_TRAINING.len() + goes.len());
    }
}
