//! The flags of a program whose ranks may be processes.

use std::time::Duration;

use clap::Args;
use devices::DeviceArguments;
use params_and_allreduce::thread::DEFAULT_TIMEOUT;

/// Flags that choose ranks and their devices.
#[derive(Args, Clone, Copy, Debug)]
pub struct LaunchArguments {
    /// Which devices.
    #[command(flatten)]
    pub each: DeviceArguments,

    /// Number of devices [default: 2; under mpirun the number of processes]
    // No default for clap to fill in: whether the number was asked for makes a difference under mpirun.
    #[arg(long, value_name = "K", value_parser = DeviceArguments::parse_devices)]
    pub devices: Option<usize>,

    /// Seconds that a device waits for another before the run ends
    #[arg(long, default_value_t = DEFAULT_TIMEOUT.as_secs(), value_name = "SECONDS",
          value_parser = clap::value_parser!(u64).range(1..=86_400))]
    timeout: u64,
}

impl LaunchArguments {
    /// How long a rank waits for another.
    pub fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout)
    }
}
