//! Processes that were started together: what connects them, and what they agree on before they begin.

use std::fmt::Display;
use std::sync::Arc;

use anyhow::{Result, anyhow};
#[cfg(feature = "mpi")]
use backends::mpi;
#[cfg(feature = "nccl")]
use backends::nccl;
use devices::DevicePlan;
use harness::cli::{ErrorReport, ReportedElsewhere, UsageError, report_error};
use harness::launcher;
use params_and_allreduce::communicator::{self, SharedCommunicator};

use super::Rank;
use crate::text::{value_of_rank_0, values_gathered};

/// All processes, and this one's place among them.
pub enum World {
    /// Connected by MPI.
    #[cfg(feature = "mpi")]
    Mpi(mpi::World),
    /// Connected by NCCL alone: each has a GPU of its own.
    #[cfg(feature = "nccl")]
    Nccl(Box<nccl::World>),
}

/// What either world says.
macro_rules! of_either {
    ($world:expr, $it:ident => $said:expr) => {
        match $world {
            #[cfg(feature = "mpi")]
            World::Mpi($it) => $said,
            #[cfg(feature = "nccl")]
            World::Nccl($it) => $said,
        }
    };
}

impl World {
    pub(super) fn rank(&self) -> usize {
        self.communicator().rank()
    }

    pub(super) fn world_size(&self) -> usize {
        self.communicator().world_size()
    }

    fn local_rank(&self) -> usize {
        of_either!(self, world => world.local_rank)
    }

    /// How many devices this machine has to have, that this process may have its own.
    pub(super) fn devices_here(&self) -> usize {
        match self {
            #[cfg(feature = "mpi")]
            Self::Mpi(world) => world.local_size,
            // It is not known how many there are. Each has the GPU of its own number.
            #[cfg(feature = "nccl")]
            Self::Nccl(world) => world.local_rank + 1,
        }
    }

    pub(super) fn communicator(&self) -> SharedCommunicator {
        of_either!(self, world => Arc::new(world.rank.clone()))
    }

    #[cfg_attr(
        not(feature = "mpi"),
        expect(unused_variables, reason = "NCCL's world has opened its device")
    )]
    pub(super) fn run<R, E>(
        &self,
        plan: &DevicePlan,
        work: impl Fn(&Rank<'_>) -> Result<R, E> + Sync,
    ) -> R
    where
        R: Send,
        E: From<communicator::Error> + Display + Send,
    {
        match self {
            #[cfg(feature = "mpi")]
            Self::Mpi(world) => world.run(plan, |rank| work(&rank.into())),
            // It has the plan's GPU already, as it would not be connected without.
            #[cfg(feature = "nccl")]
            Self::Nccl(world) => world.run(|rank| work(&rank.into())),
        }
    }

    /// See [`Launch::agree`](super::Launch::agree).
    pub(super) fn agree<T>(&self, outcome: Result<T>) -> Result<T> {
        let line = self.communicator();
        let mine = outcome.as_ref().err().map(ErrorReport::of);
        let all = values_gathered(&*line, &mine)?;
        let first =
            all.into_iter().zip(0usize..).find_map(|(complaint, rank)| Some((rank, complaint?)));
        let Some((rank, ErrorReport { code, message })) = value_of_rank_0(&*line, &first)? else {
            return outcome;
        };
        if self.rank() == 0 {
            let of_other = || match (code, message.unwrap_or_default()) {
                (2, message) => UsageError::new(format_args!("on rank {rank}: {message}")).into(),
                (_, message) => anyhow!("on rank {rank}: {message}"),
            };
            report_error(&outcome.err().filter(|_| rank == 0).unwrap_or_else(of_other));
        }
        // As soon as one process has ended like this, the others are ended, whatever they were about to say.
        line.barrier()?;
        Err(ReportedElsewhere(code).into())
    }

    /// See [`Launch::devices`](super::Launch::devices).
    pub(super) fn devices(&self, plan: &DevicePlan) -> Result<Vec<String>, communicator::Error> {
        let mine = (launcher::machine(), plan.slots()[self.local_rank()].to_string());
        let all = values_gathered(&*self.communicator(), &mine)?;
        let together = all.iter().all(|(machine, _)| *machine == mine.0);
        let name = |(machine, device): (String, String)| {
            if together { device } else { format!("{machine} {device}") }
        };
        Ok(all.into_iter().map(name).collect())
    }
}
