//! The devices of a call: this process's, and how many there are in all.

use devices::{DeviceArguments, SeveralDevices};
use devices::{DevicePlan, available_cores};
use harness::cli::UsageError;
use harness::report::counted;

use super::{Launch, Processes};

/// The devices of a call.
#[derive(Clone, Debug)]
pub struct Places {
    /// Those of this process.
    pub here: DevicePlan,
    /// How many all processes have together.
    pub world_size: usize,
}

impl Launch {
    /// The devices of a call: as many as are `asked` for, `each` like this; of processes, one for each.
    ///
    /// # Errors
    ///
    /// A [`UsageError`] when another number of devices was `asked` for than there are processes, or this machine
    /// cannot have them.
    pub fn place(
        &self,
        each: &DeviceArguments,
        asked: Option<usize>,
    ) -> Result<Places, UsageError> {
        let Some(Processes { everywhere, here }) = self.processes() else {
            let world_size = asked.unwrap_or(SeveralDevices::DEFAULT);
            return Ok(Places { here: each.plan(world_size)?, world_size });
        };
        if let Some(asked) = asked.filter(|&asked| asked != everywhere) {
            return Err(UsageError::new(format_args!(
                "{everywhere} processes were started, one for each device, and {asked} devices are asked for: leave \
                 that out, or start as many"
            )));
        }
        let here = each.plan(here)?;
        if !self.has_messages() && here.is_of_slices() {
            return Err(UsageError::new(
                "NCCL, which connects these processes, is for GPUs: leave --device cpu out, or start them with mpirun",
            ));
        }
        Ok(Places { here, world_size: everywhere })
    }

    /// What to know before believing a time that these devices take.
    pub fn note(&self, plan: &DevicePlan) -> Option<String> {
        match (self.processes(), plan.threads_per_device()) {
            (Some(_), Some(threads)) => {
                // Each process may have cores of its own.
                let cores = available_cores();
                (threads.get() > cores).then(|| {
                    let cores = counted(cores, "core");
                    format!(
                        "{threads} threads of a process share {cores}: mpirun binds a process to a core \
                         unless it is told --bind-to none"
                    )
                })
            }
            _ => plan.note().map(str::to_owned),
        }
    }
}
