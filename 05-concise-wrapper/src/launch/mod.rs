//! Where ranks come from: they are threads of this process, or processes that `mpirun`, `srun` or a launcher such as
//! `torchrun` has started.
//!
//! ```console
//! $ concise-wrapper --devices 4             # four threads
//! $ mpirun -n 4 concise-wrapper             # four processes, on one machine or on several
//! $ torchrun --nproc-per-node 4 --no-python concise-wrapper     # four, with a GPU each, which NCCL connects
//! ```
//!
//! What a rank does is written once, for both. Two things differ around it. Every process runs `main`, so one of
//! them, rank 0's, speaks for all. And every process reads its own command line on its own machine, so it is
//! [agreed](Launch::agree) whether all of them can begin before any of them does.

mod arguments;
mod for_rank_0;
mod places;
#[cfg(any(feature = "mpi", feature = "nccl"))]
mod processes;

use std::time::Duration;

use anyhow::Result;
#[cfg(feature = "mpi")]
use backends::mpi;
#[cfg(feature = "nccl")]
use backends::nccl;
use clap::Parser;
use devices::{ComputeDevice, DevicePlan};
use harness::cli::{self, UsageError};
use harness::launcher;
use params_and_allreduce::communicator::{self, Communicator as _};
use params_and_allreduce::thread::{self, DEFAULT_TIMEOUT, RankFailure, run_ranks};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::ddp::Lines;
#[cfg(any(feature = "mpi", feature = "nccl"))]
use crate::text;

pub use arguments::LaunchArguments;
pub use for_rank_0::ForRank0;
pub use places::Places;
#[cfg(any(feature = "mpi", feature = "nccl"))]
pub use processes::World;

/// Where ranks come from.
pub enum Launch {
    /// Threads of this process.
    Threads {
        /// How long a rank waits for another.
        timeout: Duration,
    },
    /// Processes, of which this is one.
    #[cfg(any(feature = "mpi", feature = "nccl"))]
    Processes(World),
}

/// How many processes there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Processes {
    /// In all.
    pub everywhere: usize,
    /// On this machine; where that is not known, up to this one.
    pub here: usize,
}

/// One rank, wherever it came from.
pub struct Rank<'a> {
    /// Its number, from 0.
    pub number: usize,
    /// Its device.
    pub device: &'a ComputeDevice,
    /// Its connections.
    pub lines: Lines,
}

impl Launch {
    /// Reads the command line, meets the other processes, if there are any, and goes on if all of them can:
    /// with what `prepare` makes of the flags, of which one is how long a rank waits for another.
    ///
    /// # Errors
    ///
    /// Those of [`connect`](Self::connect); what is wrong with the flags, and what `prepare` returns, as in
    /// [`agree`](Self::agree).
    pub fn begin<A: Parser, T>(
        timeout: impl FnOnce(&A) -> Duration,
        prepare: impl FnOnce(A, &Self) -> Result<T>,
    ) -> Result<(Self, T)> {
        let arguments = cli::parse::<A>();
        let launch = Self::connect(arguments.as_ref().map_or(DEFAULT_TIMEOUT, timeout))?;
        let prepared = arguments.map_err(anyhow::Error::from);
        let prepared = prepared.and_then(|arguments| prepare(arguments, &launch));
        let prepared = launch.agree(prepared)?;
        Ok((launch, prepared))
    }

    /// Meets the processes that were started together with this one, if there are any; all of them call this,
    /// once, before they read a file or open a device.
    ///
    /// # Errors
    ///
    /// A [`UsageError`] when several processes were started and this program was built without what could connect
    /// them, or a launcher's variables make no sense; when MPI or NCCL cannot connect them all.
    pub fn connect(timeout: Duration) -> Result<Self> {
        #[cfg(feature = "nccl")]
        if let Some(place) = launcher::place().map_err(UsageError::new)? {
            let world = nccl::World::connect(&place, timeout)?;
            return Ok(Self::Processes(World::Nccl(Box::new(world))));
        }
        launcher::check(cfg!(feature = "mpi")).map_err(UsageError::new)?;
        #[cfg(feature = "mpi")]
        if launcher::world_size().is_some_and(|processes| processes > 1) {
            return Ok(Self::Processes(World::Mpi(mpi::World::connect(timeout)?)));
        }
        Ok(Self::Threads { timeout })
    }

    /// How many processes there are; `None` where ranks are threads.
    pub fn processes(&self) -> Option<Processes> {
        match self {
            Self::Threads { .. } => None,
            #[cfg(any(feature = "mpi", feature = "nccl"))]
            Self::Processes(world) => {
                Some(Processes { everywhere: world.world_size(), here: world.devices_here() })
            }
        }
    }

    /// Whether two ranks can send each other messages. Else there are collectives of all ranks, and nothing more.
    pub fn has_messages(&self) -> bool {
        match self {
            Self::Threads { .. } => true,
            #[cfg(any(feature = "mpi", feature = "nccl"))]
            Self::Processes(world) => world.communicator().has_messages(),
        }
    }

    /// Whether this process speaks for all.
    pub fn speaks(&self) -> bool {
        match self {
            Self::Threads { .. } => true,
            #[cfg(any(feature = "mpi", feature = "nccl"))]
            Self::Processes(world) => world.rank() == 0,
        }
    }

    /// Goes on only if all processes can; all call this together, each with what it has come to.
    ///
    /// # Errors
    ///
    /// Where this process has failed or another has. Of processes, rank 0's has then told the first rank's error, and
    /// all get a [`ReportedElsewhere`](harness::cli::ReportedElsewhere).
    pub fn agree<T>(&self, outcome: Result<T>) -> Result<T> {
        match self {
            Self::Threads { .. } => outcome,
            #[cfg(any(feature = "mpi", feature = "nccl"))]
            Self::Processes(world) => world.agree(outcome),
        }
    }

    /// Whether any process says so, on all of them; all call this together.
    ///
    /// # Errors
    ///
    /// When another process stops or stalls.
    pub fn any(&self, mine: bool) -> Result<bool, communicator::Error> {
        match self {
            Self::Threads { .. } => Ok(mine),
            #[cfg(any(feature = "mpi", feature = "nccl"))]
            Self::Processes(world) => {
                let all = text::values_gathered(&*world.communicator(), &mine)?;
                text::value_of_rank_0(&*world.communicator(), &all.contains(&true))
            }
        }
    }

    /// What the process that speaks has, on all of them; all call this together.
    ///
    /// # Errors
    ///
    /// When another process stops or stalls.
    pub fn of_speaker<T: Serialize + DeserializeOwned>(
        &self,
        mine: T,
    ) -> Result<T, communicator::Error> {
        match self {
            Self::Threads { .. } => Ok(mine),
            #[cfg(any(feature = "mpi", feature = "nccl"))]
            Self::Processes(world) => text::value_of_rank_0(&*world.communicator(), &mine),
        }
    }

    /// The names of all ranks' devices, in rank order, on the process that speaks; all call this together.
    ///
    /// # Errors
    ///
    /// When another process stops or stalls.
    pub fn devices(&self, plan: &DevicePlan) -> Result<Vec<String>, communicator::Error> {
        match self {
            Self::Threads { .. } => Ok(plan.slots().iter().map(ToString::to_string).collect()),
            #[cfg(any(feature = "mpi", feature = "nccl"))]
            Self::Processes(world) => world.devices(plan),
        }
    }

    /// Runs `work` for every rank of this process, and returns what came of it, in rank order.
    ///
    /// # Errors
    ///
    /// The failure of the rank that failed first; of threads that never end after it, see [`run_ranks`]. As a process, a rank
    /// that fails says so on standard error and ends all the others; then this does not return.
    pub fn run<R, E>(
        &self,
        plan: &DevicePlan,
        work: impl Fn(&Rank<'_>) -> Result<R, E> + Sync,
    ) -> Result<Vec<R>, RankFailure<E>>
    where
        R: Send,
        E: From<communicator::Error> + std::fmt::Display + Send,
    {
        // ANCHOR: run
        match self {
            Self::Threads { timeout } => run_ranks(plan, *timeout, |rank| work(&rank.into())),
            #[cfg(any(feature = "mpi", feature = "nccl"))]
            Self::Processes(world) => Ok(vec![world.run(plan, work)]),
        }
        // ANCHOR_END: run
    }
}

/// What a rank has is the same, wherever it comes from.
macro_rules! of_rank {
    ($rank:ty) => {
        impl<'a> From<&'a $rank> for Rank<'a> {
            fn from(rank: &'a $rank) -> Self {
                Self { number: rank.rank(), device: rank.compute_device(), lines: rank.into() }
            }
        }
    };
}

of_rank!(thread::Rank);
#[cfg(feature = "mpi")]
of_rank!(mpi::Rank);
#[cfg(feature = "nccl")]
of_rank!(nccl::Rank);
