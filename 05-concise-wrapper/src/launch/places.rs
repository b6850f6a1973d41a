//! The devices of a call: this process's, and how many there are in all.

use single_gpu::cli::{SeveralDevices, UsageError};
use single_gpu::device::{DevicePlan, available_cores};

use super::{Launch, Processes};

impl Launch {
    /// The devices of this process; from now on the number in `devices` is that of all processes.
    ///
    /// # Errors
    ///
    /// A [`UsageError`] when another number of devices was `asked` for than there are processes, or this machine
    /// cannot have them.
    pub fn place(
        &self,
        devices: &mut SeveralDevices,
        asked: Option<usize>,
    ) -> Result<DevicePlan, UsageError> {
        let Some(Processes { everywhere, here }) = self.processes() else {
            devices.count = asked.unwrap_or(devices.count);
            return devices.plan();
        };
        if let Some(asked) = asked.filter(|&asked| asked != everywhere) {
            return Err(UsageError::new(format_args!(
                "mpirun started {everywhere} processes, one for each device, and {asked} devices are asked \
                 for: leave that out, or start as many"
            )));
        }
        devices.count = everywhere;
        devices.each.plan(here)
    }

    /// What to know before believing a time that these devices take.
    pub fn note(&self, plan: &DevicePlan) -> Option<String> {
        match (self.processes(), plan.threads_per_device()) {
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
}
