//! The flags that choose devices.

use std::num::NonZeroUsize;

use candle_core::cuda::set_gemm_reduced_precision_f32;
use clap::Args;

use crate::{DeviceKind, DevicePlan, MAX_DEVICES};
use harness::cli::UsageError;

/// Flags that choose devices.
#[derive(Args, Clone, Copy, Debug)]
#[command(next_help_heading = "Devices")]
pub struct DeviceArguments {
    /// Kind: auto, cpu or cuda
    #[arg(long, value_enum, value_name = "KIND", default_value_t = DeviceKind::Auto)]
    pub device: DeviceKind,

    /// Cores of each CPU slice [default: equal share]
    #[arg(long, value_name = "T", value_parser = parse_threads)]
    pub threads_per_device: Option<NonZeroUsize>,

    /// Let GPUs round the f32 inputs of products to TF32: faster, with eleven binary digits in place of 24
    #[arg(long, hide_short_help = true)]
    pub tf32: bool,
}

impl DeviceArguments {
    /// Plans `devices` devices, and sets whether this process rounds products to TF32. Fails with a [`UsageError`] when
    /// this machine cannot have these devices.
    pub fn plan(&self, devices: usize) -> Result<DevicePlan, UsageError> {
        let plan = DevicePlan::new(self.device, devices, self.threads_per_device)?;
        if self.tf32 && plan.is_of_slices() {
            return Err(UsageError::new(
                "--tf32: only GPUs round to TF32; leave it out, or use --device cuda",
            ));
        }
        set_gemm_reduced_precision_f32(self.tf32);
        Ok(if self.tf32 { plan.with_note("f32 products are rounded to TF32") } else { plan })
    }

    /// The same flags with so many cores for each device, if the user has not chosen a number.
    #[must_use]
    pub fn or_threads(self, threads: Option<NonZeroUsize>) -> Self {
        Self { threads_per_device: self.threads_per_device.or(threads), ..self }
    }

    /// Plans one device like each of `several`: of the same kind, with the same number of cores.
    pub fn plan_one_of(&self, several: &DevicePlan) -> Result<DevicePlan, UsageError> {
        Self { threads_per_device: several.threads_per_device(), ..*self }.plan(1)
    }

    /// Parses a number of devices. The error names the valid numbers.
    pub fn parse_devices(argument: &str) -> Result<usize, String> {
        match argument.parse() {
            Ok(devices) if (1..=MAX_DEVICES).contains(&devices) => Ok(devices),
            _ => Err(format!("a run has 1 to {MAX_DEVICES} devices")),
        }
    }
}

fn parse_threads(argument: &str) -> Result<NonZeroUsize, String> {
    let wanted = "a whole number of threads from 1 is expected, such as 2";
    argument.parse().map_err(|_| wanted.to_owned())
}

/// Flags that choose several devices.
#[derive(Args, Clone, Copy, Debug)]
#[command(next_help_heading = "Devices")]
pub struct SeveralDevices {
    /// Number of devices
    #[arg(long = "devices", default_value_t = Self::DEFAULT, value_name = "K",
          value_parser = DeviceArguments::parse_devices)]
    pub count: usize,

    /// The kind of device.
    #[command(flatten)]
    pub each: DeviceArguments,
}

impl SeveralDevices {
    /// The default number of devices.
    pub const DEFAULT: usize = 2;

    /// Plans all devices. Fails with a [`UsageError`] when this machine cannot have these devices.
    pub fn plan(&self) -> Result<DevicePlan, UsageError> {
        self.each.plan(self.count)
    }
}
