//! What processes agree on before they begin.

use anyhow::{Result, anyhow};
use params_and_allreduce::collective::barrier;
use params_and_allreduce::communicator;
use params_and_allreduce::mpi::World;
use single_gpu::cli::{Complaint, ToldElsewhere, UsageError, tell};
use single_gpu::device::DevicePlan;

use crate::text::{value_of_rank_0, values_gathered};

/// See [`Launch::agree`](super::Launch::agree).
pub(super) fn agree<T>(world: &World, outcome: Result<T>) -> Result<T> {
    let mine = outcome.as_ref().err().map(Complaint::of);
    let all = values_gathered(&world.line(), &mine)?;
    let first =
        all.into_iter().zip(0usize..).find_map(|(complaint, rank)| Some((rank, complaint?)));
    let Some((rank, Complaint { code, message })) = value_of_rank_0(&world.line(), &first)? else {
        return outcome;
    };
    if world.rank() == 0 {
        let of_other = || match (code, message.unwrap_or_default()) {
            (2, message) => UsageError::new(format_args!("on rank {rank}: {message}")).into(),
            (_, message) => anyhow!("on rank {rank}: {message}"),
        };
        tell(&outcome.err().filter(|_| rank == 0).unwrap_or_else(of_other));
    }
    // As soon as one process has ended like this, mpirun ends the others, whatever they were about to say.
    barrier(&world.line())?;
    Err(ToldElsewhere(code).into())
}

/// See [`Launch::devices`](super::Launch::devices).
pub(super) fn devices(
    world: &World,
    plan: &DevicePlan,
) -> Result<Vec<String>, communicator::Error> {
    let mine = (world.machine(), plan.slots()[world.local_rank()].to_string());
    let all = values_gathered(&world.line(), &mine)?;
    let together = all.iter().all(|(machine, _)| *machine == mine.0);
    let name = |(machine, device): (String, String)| {
        if together { device } else { format!("{machine} {device}") }
    };
    Ok(all.into_iter().map(name).collect())
}
