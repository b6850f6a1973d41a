//! The flags about machines that are not here.

use clap::Args;
use cost_model::paper::Wire;

use super::parse_number;
use harness::cli::whole;

/// Flags about runs and measurements, which have no meaning on paper. Each flag about paper excludes them too: clap does not
/// ask for a missing `--on-paper` if another flag excludes `--on-paper`.
pub(super) const MEASURED: [&str; 9] = [
    "count",
    "device",
    "threads_per_device",
    "tf32",
    "ways",
    "slow_link",
    "latency",
    "within",
    "metrics",
];

/// Flags about machines that are not here.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "On paper")]
pub(super) struct PaperArguments {
    /// Run nothing: predict for 1 to 1024 devices that are not here
    #[arg(long, conflicts_with_all = MEASURED)]
    pub(super) on_paper: bool,

    /// TFLOP/s that a device sustains
    #[arg(long, value_name = "TFLOP/S", default_value_t = 20.0, value_parser = parse_number, requires = "on_paper",
          conflicts_with_all = MEASURED)]
    pub(super) tflops: f64,

    /// Milliseconds of a step that do not depend on the batch
    #[arg(hide_short_help = true, long, value_name = "MILLISECONDS", default_value_t = 1.0, value_parser = parse_number, requires = "on_paper",
          conflicts_with_all = MEASURED)]
    pub(super) fixed: f64,

    /// Devices in a host
    #[arg(hide_short_help = true, long, value_name = "D", default_value_t = 8, requires = "on_paper", conflicts_with_all = MEASURED,
          value_parser = whole::<u32>(1..=1024))]
    pub(super) devices_per_host: u32,

    /// Link between the devices of a host
    #[arg(long, value_enum, default_value_t = Wire::Nvlink, requires = "on_paper",
          conflicts_with_all = MEASURED)]
    pub(super) inside: Wire,

    /// Link between hosts
    #[arg(long, value_enum, default_value_t = Wire::Ethernet100, requires = "on_paper",
          conflicts_with_all = MEASURED)]
    pub(super) between: Wire,
}
