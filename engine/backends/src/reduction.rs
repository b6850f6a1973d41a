//! The flags of an all-reduce of gradients in buckets.

use std::time::Duration;

use clap::Args;
use devices::DevicePlan;
use harness::cli::{UsageError, number, whole};
use params_and_allreduce::Algorithm;

use crate::check;
use crate::launch::Launch;
use crate::slow_link::{Slowness, parse_speed};

/// The flags of DDP's all-reduce. Without these flags, it is the default value.
#[derive(Args, Clone, Copy, Debug, Default, PartialEq)]
#[command(next_help_heading = "Devices")]
pub struct ReductionArguments {
    /// Cut each batch into S shards: the same bits on any K
    #[arg(long, value_name = "S", value_parser = whole::<u32>(1..=1024))]
    #[arg(conflicts_with_all = ["algorithm", "bucket_mb", "no_overlap"])]
    pub shards: Option<u32>,

    /// How DDP's buckets are added up across devices [default: ring]
    #[arg(hide_short_help = true, long, value_enum)]
    pub algorithm: Option<Algorithm>,

    /// The most that a bucket of gradients holds, in MB; the first holds at most 1 [default: 25]
    #[arg(long, hide_short_help = true, value_name = "MB", value_parser = number(
        f64::MIN_POSITIVE..=1e6, "this is a number of megabytes above 0 and up to 1000000, such as 25"))]
    bucket_mb: Option<f64>,

    /// Send the buckets after the backward pass, not during it
    #[arg(hide_short_help = true, long)]
    pub no_overlap: bool,

    /// Slow the link between the devices down
    ///
    /// --timeline then shows how much of the communication hides behind the backward pass.
    #[arg(long, value_name = "MB/S", value_parser = parse_speed)]
    slow_link: Option<f64>,
}

impl ReductionArguments {
    /// Returns the algorithm. The default is a ring, or the native all-reduce of ranks without messages. Fails with a
    /// [`UsageError`] when these ranks cannot run the algorithm on the devices of `plan`.
    pub fn algorithm(&self, launch: &Launch, plan: &DevicePlan) -> Result<Algorithm, UsageError> {
        let usual = if launch.has_messages() { Algorithm::Ring } else { Algorithm::Native };
        let algorithm = self.algorithm.unwrap_or(usual);
        check(algorithm, plan)
            .map_err(|error| UsageError::new(format_args!("--algorithm {algorithm}: {error}")))?;
        Ok(algorithm)
    }

    /// Returns the largest size of a bucket in bytes.
    pub fn bucket_bytes(&self) -> Option<usize> {
        self.bucket_mb.map(|megabytes| (megabytes * f64::from(1 << 20)) as usize)
    }

    /// Returns the slowness of the link.
    pub fn slow_link(&self) -> Option<Slowness> {
        self.slow_link.map(|speed| Slowness::of_megabytes(speed, Duration::ZERO))
    }
}
