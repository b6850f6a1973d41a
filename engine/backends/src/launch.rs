//! Where ranks come from: they are threads of this process, or processes that `mpirun`, `srun` or a launcher such as
//! `torchrun` has started.
//!
//! ```console
//! $ concise-wrapper --devices 4             # four threads
//! $ mpirun -n 4 concise-wrapper             # four processes, on one machine or on several
//! $ torchrun --nproc-per-node 4 --no-python concise-wrapper     # four, with a GPU each, which NCCL connects
//! ```
//!
//! The work of a rank is written once. Around this work, the process of rank 0 prints for all, and the processes
//! [agree](Launch::agree) that all of them can begin, as each reads its own command line and files.

use std::fmt::Display;
use std::io;
use std::time::Duration;

use anyhow::{Result, anyhow};
use clap::{Args, Parser};
use devices::{ComputeDevice, DeviceArguments, DevicePlan, SeveralDevices, available_cores};
use harness::cli::{self, ErrorReport, ReportedElsewhere, UsageError, report_error, whole};
use harness::report::outputs::Outputs;
use harness::report::{Report, counted, paragraph};
use harness::{interrupt, launcher};
use params_and_allreduce::communicator::{Error, SharedCommunicator};
use params_and_allreduce::thread::{DEFAULT_TIMEOUT, RankFailure, run_ranks_with};
use serde::Serialize;
use serde::de::DeserializeOwned;

#[cfg(feature = "mpi")]
use crate::mpi;
#[cfg(feature = "nccl")]
use crate::nccl;
use crate::{Processes, native, text};

/// Flags that choose ranks and their devices.
#[derive(Args, Clone, Copy, Debug)]
pub struct LaunchArguments {
    /// The kind of device.
    #[command(flatten)]
    pub each: DeviceArguments,

    /// Number of devices [default: 2]
    ///
    /// Under mpirun, the default is the number of processes.
    // Without clap's default: under mpirun, a given number has to be the number of processes.
    #[arg(long, value_name = "K", value_parser = DeviceArguments::parse_devices, display_order = 0)]
    pub devices: Option<usize>,

    /// Seconds that a device waits for another before the run ends
    #[arg(long, hide_short_help = true, default_value_t = DEFAULT_TIMEOUT.as_secs(), value_name = "SECONDS",
          value_parser = whole::<u64>(1..=86_400))]
    timeout: u64,
}

impl LaunchArguments {
    /// The time that a rank waits for a message.
    pub fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout)
    }
}

/// Where ranks come from.
///
/// All processes call [`agree`](Self::agree), [`make_runs`](Self::make_runs), [`of_speaker`](Self::of_speaker) and
/// [`devices`](Self::devices) together. The call fails when another process stops or stalls.
pub struct Launch {
    /// `None` if ranks are threads of this process.
    processes: Option<Processes>,
    /// A rank waits so long for a message.
    timeout: Duration,
}

impl Launch {
    /// Reads the command line, connects the processes, if there are several, and returns the result of `prepare` if all of
    /// them can go on. A rank waits for a message for the `timeout`. Fails when the flags are wrong, `prepare`, MPI or NCCL
    /// fails, or this program was built without the library that connects the processes.
    pub fn begin<A: Parser, T>(
        timeout: impl FnOnce(&A) -> Duration,
        prepare: impl FnOnce(A, &Self) -> Result<T>,
    ) -> Result<(Self, T)> {
        let arguments = cli::parse::<A>();
        let launch = Self::connect(arguments.as_ref().map_or(DEFAULT_TIMEOUT, timeout))?;
        let arguments = arguments.map_err(anyhow::Error::from);
        let prepared = launch.agree(arguments.and_then(|flags| prepare(flags, &launch)))?;
        Ok((launch, prepared))
    }

    /// Connects the processes, before any of them reads a file or opens a device.
    fn connect(timeout: Duration) -> Result<Self> {
        #[cfg(feature = "nccl")]
        if let Some(place) = launcher::place().map_err(UsageError::new)? {
            return Ok(Self { processes: Some(nccl::connect(&place, timeout)?), timeout });
        }
        launcher::check(cfg!(feature = "mpi")).map_err(UsageError::new)?;
        #[cfg(feature = "mpi")]
        if launcher::started().is_some_and(|started| started.processes > 1) {
            return Ok(Self { processes: Some(mpi::connect(timeout)?), timeout });
        }
        Ok(Self { processes: None, timeout })
    }

    /// The processes, if ranks are processes.
    pub fn processes(&self) -> Option<&Processes> {
        self.processes.as_ref()
    }

    /// The values of all processes, in rank order.
    fn values<T: Serialize + DeserializeOwned>(&self, mine: T) -> Result<Vec<T>, Error> {
        match self.processes() {
            Some(it) => text::values(&*it.comm, &mine),
            None => Ok(vec![mine]),
        }
    }

    /// Whether two ranks can exchange messages. If not, there are only collectives of all ranks.
    pub fn has_messages(&self) -> bool {
        self.processes().is_none_or(|it| it.has_messages)
    }

    /// Whether this process prints for all.
    pub fn speaks(&self) -> bool {
        self.processes().is_none_or(|it| it.comm.rank() == 0)
    }

    /// Prints a line, in the process that prints for all. Fails like [`paragraph`].
    pub fn say(&self, text: impl Display) -> io::Result<()> {
        if self.speaks() { paragraph(text) } else { Ok(()) }
    }

    /// Makes the runs of a program in turn, in all processes together, below its headline and its notes. `name` has the name and
    /// the title of a run, `train` trains, and `conclude` makes an outcome of the result and of the outcomes before. Runs after an
    /// interrupt of any process are left out: a signal may have reached one process alone. Returns the outcomes, and the first
    /// failure, which ends the program after its report.
    pub fn make_runs<'a, R, T, O>(
        &self,
        (headline, notes): (&str, &[String]),
        (runs, outputs): (&'a [R], &mut Outputs),
        name: impl Fn(&R) -> (&str, String),
        train: impl Fn(&'a R, Report<'_>) -> Result<T>,
        conclude: impl Fn(&'a R, T, &[O], &mut Outputs) -> Result<O>,
    ) -> (Vec<O>, Result<()>) {
        let mut outcomes = Vec::new();
        let mut make = |run: &'a R| {
            let (name, title) = name(run);
            self.say(format_args!("\n{title}"))?;
            if self.values(interrupt::requested())?.contains(&true) {
                return Ok(self.say("  left out after the interrupt")?);
            }
            let report = if self.speaks() { outputs.report(name) } else { Report::silent() };
            let trained = train(run, report)?;
            outcomes.push(conclude(run, trained, &outcomes, outputs)?);
            Ok(())
        };
        let notes = notes.iter().map(|note| format!("note: {note}"));
        let begun = [headline.to_owned()].into_iter().chain(notes).try_for_each(|it| self.say(it));
        let made = begun.map_err(Into::into).and_then(|()| runs.iter().try_for_each(&mut make));
        (outcomes, made)
    }

    /// Plans the devices of this process. Returns the plan and the number of devices of all processes. Fails when there are
    /// not as many processes as `devices`, or this machine does not have the devices.
    pub fn plan(
        &self,
        each: &DeviceArguments,
        devices: Option<usize>,
    ) -> Result<(DevicePlan, usize), UsageError> {
        let Some(Processes { comm, has_messages, devices_here, cores, .. }) = self.processes()
        else {
            let devices = devices.unwrap_or(SeveralDevices::DEFAULT);
            return Ok((each.plan(devices)?, devices));
        };
        let processes = comm.world_size();
        if let Some(devices) = devices.filter(|&devices| devices != processes) {
            return Err(UsageError::new(format_args!(
                "{processes} processes were started, one for each device, and --devices is {devices}: leave --devices out, or \
                 start {devices} processes"
            )));
        }
        let plan = each.or_threads(*cores).plan(*devices_here)?;
        if !has_messages && plan.is_of_slices() {
            return Err(UsageError::new(
                "NCCL, which connects these processes, is for GPUs: leave --device cpu out, or start the processes with mpirun",
            ));
        }
        Ok((plan, processes))
    }

    /// A note about times that are measured on the devices of a plan.
    pub fn note(&self, plan: &DevicePlan) -> Option<String> {
        let Some(threads) = plan.threads_per_device().filter(|_| self.processes().is_some()) else {
            return plan.note().map(str::to_owned);
        };
        // The launcher may bind each process to some of the cores.
        let cores = available_cores();
        (threads.get() > cores).then(|| {
            format!(
                "{threads} threads of a process share {}: mpirun binds a process to a core unless it has the flag --bind-to none",
                counted(cores, "core")
            )
        })
    }

    // ANCHOR: agree
    /// Goes on only if all processes can, each with its own outcome. If one has failed, rank 0 prints the error of the first
    /// rank that failed, and all processes return a [`ReportedElsewhere`].
    pub fn agree<T>(&self, outcome: Result<T>) -> Result<T> {
        // The processes have agreed on this error already.
        if outcome.as_ref().is_err_and(|error| error.is::<ReportedElsewhere>()) {
            return outcome;
        }
        let Some(Processes { comm, .. }) = self.processes() else { return outcome };
        let all = self.values(outcome.as_ref().err().map(ErrorReport::of))?;
        let first = all.into_iter().zip(0..).find_map(|(report, rank)| Some((rank, report?)));
        let Some((failed, ErrorReport { code, message })) = first else { return outcome };
        if self.speaks() {
            let message = format!("on rank {failed}: {}", message.unwrap_or_default());
            let of_other =
                if code == 2 { UsageError::new(message).into() } else { anyhow!(message) };
            report_error(&outcome.err().filter(|_| failed == 0).unwrap_or(of_other));
        }
        // When one process ends, the launcher ends all processes. So rank 0 prints before any process ends.
        comm.barrier()?;
        Err(ReportedElsewhere(code).into())
    }
    // ANCHOR_END: agree

    /// Calls `work` in the first process of each machine, and then in the others, with whether the process is the first: so
    /// one process downloads, and the others find its files. All processes call this together. The others wait at most the
    /// time limit. Fails as [`agree`](Self::agree) when one of the first processes fails, and when `work` fails.
    pub fn one_first<T>(&self, work: impl FnOnce(bool) -> Result<T>) -> Result<T> {
        if self.processes().is_none_or(|it| it.local_rank == 0) {
            return self.agree(work(true));
        }
        self.agree(Ok(()))?;
        work(false)
    }

    /// The value of the process that prints, on all processes.
    pub fn of_speaker<T: Serialize + DeserializeOwned>(&self, mine: T) -> Result<T, Error> {
        Ok(self.values(mine)?.swap_remove(0))
    }

    /// The names of all ranks' devices, in rank order.
    pub fn devices(&self, plan: &DevicePlan) -> Result<Vec<String>, Error> {
        let Some(Processes { local_rank, .. }) = self.processes() else {
            return Ok(plan.slots().iter().map(ToString::to_string).collect());
        };
        let all = self.values((launcher::machine(), plan.slots()[*local_rank].to_string()))?;
        let several = all.iter().any(|(machine, _)| *machine != all[0].0);
        let name = |(host, device)| if several { format!("{host} {device}") } else { device };
        Ok(all.into_iter().map(name).collect())
    }

    /// Runs `work` for every rank of this process, on its device and with its own value of `values`, which has one for every
    /// device of the plan. Returns the results in rank order. A process has one rank, with the first value. Fails as
    /// [`run_ranks_with`] does, and in a process as [`Processes::run`] does.
    pub fn run<T, R, E>(
        &self,
        plan: &DevicePlan,
        values: Vec<T>,
        work: impl Fn(&ComputeDevice, SharedCommunicator, T) -> Result<R, E> + Sync,
    ) -> Result<Vec<R>, RankFailure<E>>
    where
        T: Send,
        R: Send,
        E: From<Error> + Display + Send,
    {
        let timeout = self.timeout;
        // ANCHOR: run
        match &self.processes {
            None => run_ranks_with(plan, timeout, values, |device, comm, value| {
                work(device, native(comm, timeout), value)
            }),
            Some(processes) => {
                let value = values.into_iter().next().expect("a value for every device");
                Ok(vec![processes.run(plan, |device, comm| work(device, comm, value))])
            }
        }
        // ANCHOR_END: run
    }
}
