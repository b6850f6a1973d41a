//! The devices of a call: this process's, and how many there are in all.

use concise_wrapper::launch::{Launch, Processes};
use single_gpu::cli::UsageError;
use single_gpu::device::{DevicePlan, available_cores};

use super::{Arguments, WrapperKind};

impl Arguments {
    /// The devices of this machine; from now on the number of devices is that of all machines.
    pub(super) fn place(&mut self, launch: &Launch) -> Result<DevicePlan, UsageError> {
        let Some(Processes { everywhere, here }) = launch.processes() else {
            return self.devices.plan();
        };
        let asked = self.devices.count;
        if self.devices_given && asked != everywhere {
            return Err(UsageError::new(format_args!(
                "mpirun started {everywhere} processes, one for each device, and --devices says {asked}: \
                 leave it out"
            )));
        }
        if self.compare.is_some() || self.wrapper != WrapperKind::Ddp {
            return Err(UsageError::new(
                "under mpirun each process is one rank of --wrapper ddp: without mpirun there are other \
                 wrappers, and --compare",
            ));
        }
        self.devices.count = everywhere;
        self.devices.each.plan(here)
    }
}

/// What to know before believing a time that these devices take.
pub(super) fn note(launch: &Launch, plan: &DevicePlan) -> Option<String> {
    match (launch.processes(), plan.threads_per_device()) {
        (Some(_), Some(threads)) => {
            // Each process may have cores of its own.
            let cores = available_cores();
            (threads.get() > cores).then(|| {
                format!(
                    "{threads} threads of a process share {cores} {}: mpirun binds a process to a core \
                     unless it is told --bind-to none",
                    if cores == 1 { "core" } else { "cores" }
                )
            })
        }
        _ => plan.note().map(str::to_owned),
    }
}
