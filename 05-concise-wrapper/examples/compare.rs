//! Why are several devices less accurate than one? `cargo run --release -p concise-wrapper --example compare`.
//!
//! K times the batch and the rate make fewer and longer steps, and a local batch norm uses the images of one device. This program
//! changes one of the two at a time, with several seeds. It tests each network twice: with the running statistics of its batch
//! norms, and with the statistics of each batch of test images.

use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Parser;
use concise_wrapper::batch_norm::Norms;
use concise_wrapper::ddp::{Ddp, Reduction};
use concise_wrapper::optimizer::{Momentum, Sgd, scaled_rate};
use concise_wrapper::resnet::ResNet18;
use concise_wrapper::{Error, Model, Network, sizing, train};
use devices::{DevicePlan, SeveralDevices};
use harness::cli::{self, ReportArguments, UsageError, whole};
use harness::records::TrainOptions;
use harness::report::outputs::Outputs;
use harness::report::{Report, Table, line, number, paragraph};
use harness::statistics::{deviation, mean};
use harness::{interrupt, launcher};
use itertools::Itertools as _;
use params_and_allreduce::communicator::SharedCommunicator;
use params_and_allreduce::thread::{DEFAULT_TIMEOUT, run_ranks_with};
use trainer::memory::{Footprint, NetworkSize};
use trainer::{TrainArguments, TrainSetup};

/// Find out why K devices are less accurate than one.
///
/// The program trains ResNet-18 on one device and on K: with the same batch and rate and with K times both, with local and with
/// synchronised batch norm.
#[derive(Debug, Parser)]
#[command(mut_arg("lr", |rate| rate.default_value("0.1").help("Learning rate of one device")))]
#[command(mut_arg("batch_size", |size| size.help("Samples in a batch of one device")))]
#[command(mut_arg("epochs", |epochs| epochs.default_value("5")))]
#[command(mut_arg("seed", |seed| seed.help("The first seed")))]
struct Arguments {
    #[command(flatten)]
    train: TrainArguments,

    /// Planes of the first group [default: 64; 16 on a CPU]
    #[arg(long, value_name = "W", value_parser = whole::<u32>(1..=1024))]
    width: Option<u32>,

    /// Number of seeds
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = whole::<u32>(2..=100))]
    seeds: u32,

    #[command(flatten)]
    devices: SeveralDevices,
}

/// A combination of settings.
#[derive(Clone, Copy)]
struct Setting {
    devices: usize,
    synchronised: bool,
    batch_size: usize,
    learning_rate: f64,
}

/// The ways to test: with the running statistics, and with the statistics of each batch.
const TESTS: [Test; 2] = [Test::Running, Test::Batch];

#[derive(Clone, Copy)]
enum Test {
    Running,
    Batch,
}

fn main() -> ExitCode {
    cli::conclude(cli::arguments().and_then(run))
}

fn run(mut flags: Arguments) -> Result<()> {
    launcher::check_alone().map_err(UsageError::new)?;
    let plan = flags.devices.plan()?;
    let (devices, width) = (plan.len(), sizing::width(flags.width, &plan));
    if devices == 1 {
        bail!(UsageError::new("several devices are compared with one: use --devices 2 or more"));
    }
    let part = sizing::limit_images(&mut flags.train, &plan, (6_144, 2_000));
    let narrow = (flags.width.is_none() && plan.is_of_slices()).then_some(width);
    // With K times the batch each device has a whole batch.
    let footprint = Footprint::new(NetworkSize::resnet18(width), &plan);
    let footprint = Footprint { batches: devices as f64, ..footprint };
    let setup =
        flags.train.prepare(&ReportArguments::default(), devices, devices, &footprint, None)?;
    paragraph(setup.headline(&format!("ResNet-18 of width {width}")))?;
    let notes = setup.notes(&plan).map(str::to_owned).chain(sizing::note(narrow, part));
    notes.into_iter().try_for_each(|note| paragraph(format_args!("note: {note}")))?;

    let settings = settings(&setup.options, devices);
    let one = flags.devices.each.plan_one_of(&plan)?;
    let mut all = Vec::new();
    for nth in 0..flags.seeds {
        let seed = flags.train.seed.wrapping_add(nth.into());
        let network =
            Network::new(seed, setup.dtype, &candle_core::Device::Cpu, move |vb, norms| {
                ResNet18::new(width, norms, vb)
            })?;
        let mut of_seed = Vec::new();
        for setting in &settings {
            line(format_args!("\n{}", setting.title(seed)))?;
            let plan = if setting.devices == 1 { &one } else { &plan };
            of_seed.push(setting.train(&network, seed, plan, &setup)?);
            if interrupt::requested() {
                return Ok(paragraph("\nNot every run ended, so there is no comparison.")?);
            }
        }
        all.push(of_seed);
    }
    for (test, nth) in TESTS.into_iter().zip(0..) {
        let accuracies = |row: usize| all.iter().map(|seed| seed[row][nth]).collect();
        report(&settings, [0, 1, 2, 3, 4].map(accuracies), test)?;
    }
    Ok(())
}

/// One device. Then several, with the same batch and rate and with K times both, with local and with synchronised batch norm.
fn settings(
    &TrainOptions { batch_size, learning_rate, .. }: &TrainOptions,
    k: usize,
) -> [Setting; 5] {
    let one = Setting { devices: 1, synchronised: false, batch_size, learning_rate };
    let several = |times: usize, synchronised| {
        let learning_rate = scaled_rate(learning_rate, times * batch_size, batch_size);
        Setting { devices: k, synchronised, batch_size: times * batch_size, learning_rate }
    };
    [one, several(1, false), several(1, true), several(k, false), several(k, true)]
}

impl Setting {
    fn norm(&self) -> &'static str {
        if self.synchronised { "synchronised" } else { "local" }
    }

    /// `ddp on 2 devices, local batch norm, seed 1: batch 2 × 128, lr 0.1`
    fn title(&self, seed: u64) -> String {
        let Self { devices, batch_size, .. } = *self;
        let several = format!("ddp on {devices} devices, {} batch norm", self.norm());
        let name = if devices == 1 { "one device".to_owned() } else { several };
        let batch = match batch_size.is_multiple_of(devices) && devices > 1 {
            true => format!("{devices} × {}", batch_size / devices),
            false => batch_size.to_string(),
        };
        format!("{name}, seed {seed}: batch {batch}, lr {}", number(self.learning_rate))
    }

    /// Trains a copy of the network, and tests it in all [`TESTS`].
    fn train(
        &self,
        network: &Network<ResNet18>,
        seed: u64,
        plan: &DevicePlan,
        setup: &TrainSetup,
    ) -> Result<[f64; 2]> {
        let &Self { batch_size, learning_rate, .. } = self;
        let options = TrainOptions { batch_size, learning_rate, seed, ..setup.options };
        let mut outputs = Outputs::default();
        let mut report = outputs.report("");
        if self.devices == 1 {
            let device = plan.slots()[0].open()?;
            return Ok(device.run(|| {
                let model = network.replica(device.tensors())?;
                train_and_test(&model, model.norms(), setup, &options, &mut report)
            })?);
        }
        let reports = report.of_ranks(self.devices);
        let rank = |_: &_, rank: SharedCommunicator, mut report: Report<'_>| {
            let network = network.replica(rank.device())?;
            let model = Ddp::new(network, rank, Reduction::default())?;
            let model = if self.synchronised { model.synchronise_norms()? } else { model };
            train_and_test(&model, model.network().norms(), setup, &options, &mut report)
        };
        Ok(run_ranks_with(plan, DEFAULT_TIMEOUT, reports, rank)?.swap_remove(0))
    }
}

/// Trains a model, and returns its accuracy on the test images in all [`TESTS`].
fn train_and_test(
    model: &impl Model,
    norms: &Norms,
    setup: &TrainSetup,
    options: &TrainOptions,
    report: &mut Report<'_>,
) -> Result<[f64; 2], Error> {
    let TrainSetup { data, .. } = setup;
    let sgd = &mut Sgd::new(Momentum::default());
    let trained = train(model, data, options, (sgd, 0), None, report, |_| Ok(()))?;
    norms.test_by_batch();
    let running = trained.records.last().map_or(f64::NAN, |record| record.test_accuracy);
    Ok([running, model.evaluate(&data.test)?.accuracy()])
}

/// Prints the accuracies of all settings in a test, the effects of the settings, and the conclusion.
fn report(settings: &[Setting; 5], accuracies: [Vec<f64>; 5], test: Test) -> Result<()> {
    let normalised = match test {
        Test::Running => "",
        Test::Batch => ", normalised by the statistics of their own batches",
    };
    paragraph(format_args!(
        "\nAccuracy on the test images{normalised}, with {} seeds (spread: the standard deviation over the seeds):",
        accuracies[0].len()
    ))?;
    table(settings, &accuracies).print()?;
    paragraph(
        "\nMean accuracy of the rows with a change, less that of the rows without it, all else equal. A difference is clear \
         if it is larger than the largest spread of these rows:",
    )?;
    let effects = effects(settings[1].devices, &accuracies);
    effects_table(&effects).print()?;
    Ok(paragraph(format_args!("\n{}", conclusion(&effects, test)))?)
}

fn table(settings: &[Setting; 5], accuracies: &[Vec<f64>; 5]) -> Table {
    let table = Table::new("devices, batch norm").column("batch", 1).column("lr", 2);
    let mut table = table.column("mean", 0).column("spread", 0).words("each seed", 3);
    for (setting, accuracies) in settings.iter().zip(accuracies) {
        let &Setting { devices, batch_size, learning_rate, .. } = setting;
        let several = format!("{devices} devices, {}", setting.norm());
        let name = if devices == 1 { "one device".to_owned() } else { several };
        let [mean, spread] = [mean(accuracies), deviation(accuracies)].map(|it| format!("{it:.3}"));
        let seeds = format!("{:.3}", accuracies.iter().format(" "));
        table.row([name, batch_size.to_string(), number(learning_rate), mean, spread, seeds]);
    }
    table
}

/// The effect of a change on the accuracy.
#[derive(Clone, Debug)]
struct Effect {
    change: String,
    /// The average of the rows with the change, less the average of the rows that differ in nothing else.
    difference: f64,
    /// The largest spread of these rows.
    spread: f64,
}

impl Effect {
    /// Whether other seeds alone would not explain the difference. A difference that is printed as 0.000 is not clear.
    fn is_clear(&self) -> bool {
        self.difference.abs() > self.spread.max(0.0005)
    }
}

/// The effects of all settings.
fn effects(
    devices: usize,
    [one, local, sync, local_scaled, sync_scaled]: &[Vec<f64>; 5],
) -> [Effect; 3] {
    let effect = |change: String, without: &[&Vec<f64>], with: &[&Vec<f64>]| {
        let of = |rows: &[&Vec<f64>]| mean(&rows.iter().map(|row| mean(row)).collect_vec());
        let spreads = without.iter().chain(with).map(|row| deviation(row));
        let difference = of(with) - of(without);
        Effect { change, difference, spread: spreads.fold(0.0, f64::max) }
    };
    let in_place = format!("{devices} devices in place of one");
    let times = format!("{devices} times the batch and the rate");
    let norms = "synchronised in place of local batch norm".to_owned();
    [
        effect(in_place, &[one], &[local, sync]),
        effect(times, &[local, sync], &[local_scaled, sync_scaled]),
        effect(norms, &[local, local_scaled], &[sync, sync_scaled]),
    ]
}

fn effects_table(effects: &[Effect]) -> Table {
    let table = Table::new("change").column("difference", 0).column("spread", 1);
    let mut table = table.words("clear", 0);
    for it in effects {
        let (difference, spread) = (format!("{:+.3}", it.difference), format!("{:.3}", it.spread));
        let clear = if it.is_clear() { "yes" } else { "no" };
        table.row([it.change.clone(), difference, spread, clear.to_owned()]);
    }
    table
}

/// Explains the clear differences, or says that there are none.
fn conclusion(effects: &[Effect], test: Test) -> &'static str {
    let mut clear = effects.iter().filter(|effect| effect.is_clear()).peekable();
    match test {
        _ if clear.peek().is_none() => "No setting makes a difference that these seeds can show.",
        Test::Running if clear.any(|effect| effect.difference < 0.0) => {
            "The next tables find out whether the weights are worse, or only the running statistics of batch norm."
        }
        _ => "Other seeds would not explain the clear differences.",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The settings of one device and two.
    fn two() -> [Setting; 5] {
        settings(&TrainOptions { epochs: 4, batch_size: 256, learning_rate: 0.1, seed: 1 }, 2)
    }

    /// Accuracies as on the page on batch norm.
    const PAGE: [[f64; 3]; 5] = [
        [0.723, 0.807, 0.797],
        [0.795, 0.794, 0.805],
        [0.769, 0.795, 0.812],
        [0.498, 0.761, 0.624],
        [0.603, 0.610, 0.557],
    ];

    #[test]
    fn a_difference_is_clear_if_it_is_larger_than_the_spread() {
        let effects_of = |accuracies: [[f64; 3]; 5]| effects(2, &accuracies.map(Vec::from));
        assert_eq!(
            effects_table(&effects_of(PAGE)).text(80),
            "change                                     difference  spread  clear\n\
             2 devices in place of one                      +0.019   0.046  no\n\
             2 times the batch and the rate                 -0.186   0.132  yes\n\
             synchronised in place of local batch norm      -0.022   0.132  no"
        );
        let equal = |accuracies: [f64; 5]| accuracies.map(|accuracy| [accuracy; 3]);
        let (none, worse, better) = ("No setting", "The next tables", "Other seeds");
        for (accuracies, test, clear, expected) in [
            (PAGE, Test::Running, [false, true, false], worse),
            (PAGE, Test::Batch, [false, true, false], better),
            ([[0.8, 0.81, 0.79]; 5], Test::Running, [false; 3], none),
            // A difference below what is printed is none, even without any spread.
            (equal([0.8, 0.8004, 0.8004, 0.8004, 0.8004]), Test::Running, [false; 3], none),
            (equal([0.8, 0.8, 0.85, 0.6, 0.65]), Test::Running, [true; 3], worse),
            (equal([0.8, 0.8, 0.8, 0.9, 0.9]), Test::Running, [false, true, false], better),
        ] {
            let effects = effects_of(accuracies);
            assert_eq!(effects.each_ref().map(Effect::is_clear), clear, "{effects:?}");
            assert!(conclusion(&effects, test).starts_with(expected), "{effects:?}");
        }
    }

    #[test]
    fn the_table_fits_and_drops_the_seeds_first() {
        let wide = table(&two(), &PAGE.map(Vec::from)).text(80);
        assert!(
            wide.contains("2 devices, synchronised    512  0.2  0.590   0.029  0.603 0.610 0.557"),
            "{wide}"
        );
        let narrow = table(&two(), &PAGE.map(Vec::from)).text(60);
        assert!(narrow.contains("512  0.2  0.590   0.029\n"), "{narrow}");
        assert!(narrow.ends_with("(too narrow for: each seed)"), "{narrow}");
        for (text, columns) in [(wide, 80), (narrow, 60)] {
            assert!(text.lines().all(|line| line.chars().count() <= columns), "{text}");
        }
        let many = table(&two(), &[(); 5].map(|()| vec![0.5; 100])).text(80);
        assert!(many.lines().all(|line| line.chars().count() <= 80));
    }

    /// The program, with these flags, on few images.
    fn outcome(flags: &[&str]) -> Result<(), String> {
        let images = ["compare", "--device=cpu", "--data=synthetic", "--train-size=40"];
        let quick = ["--test-size=20", "--epochs=1", "--width=2"];
        let flags = images.into_iter().chain(quick).chain(flags.iter().copied());
        let flags = Arguments::try_parse_from(flags).map_err(|error| error.to_string())?;
        run(flags).map_err(|error| error.to_string())
    }

    #[test]
    fn all_settings_are_trained_and_flags_that_make_no_sense_are_refused() {
        outcome(&["--seeds=2", "--batch-size=16", "--devices=3"]).unwrap();
        for (flags, expected) in [
            (&["--devices=1"][..], "use --devices 2 or more"),
            (&["--seeds=101"], "a whole number from 2 to 100 is expected"),
            (&["--devices=3", "--batch-size=2"], "cannot be cut into 3 shards"),
        ] {
            let error = outcome(flags).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
