//! Whether this process is one of several that `mpirun` started.
//!
//! Such a process has to know before it does anything else: alone it would believe that it is the whole
//! run, and every one of them would train the same model beside the others. This module is part of every
//! build, so that a program without MPI can refuse instead. What starts such processes from within a program, as
//! tests do, is here too.

use std::env;
use std::io;
use std::process::Command;

/// Where launchers say how many processes they started: Open MPI's, and those that speak PMI (MPICH's).
const SIZES: [&str; 2] = ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE"];

/// What other launchers set, such as `torchrun`: their processes have no MPI to meet through.
const LAUNCHERS: [&str; 2] = ["RANK", "WORLD_SIZE"];

/// Started together with others, and nothing connects them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unconnected {
    /// Built without what would connect the processes.
    #[error(
        "mpirun started {0} processes of a program that was built without MPI: build it with --features mpi, or \
         start it without mpirun"
    )]
    NoMpi(usize),
    /// A program whose ranks are threads.
    #[error(
        "mpirun started {0} processes, but this program's ranks are threads: start it without mpirun, with \
         --devices {0}"
    )]
    RanksAreThreads(usize),
    /// Not started by `mpirun`.
    #[error(
        "RANK and WORLD_SIZE say that a launcher started {0} processes, which could meet through MPI only: start \
         them with mpirun"
    )]
    OtherLauncher(usize),
}

/// How many processes `mpirun` started together with this one; `None` where it says nothing.
pub fn world_size() -> Option<usize> {
    started(|name| env::var(name).ok())
}

/// Refuses to run as one of several processes that cannot be connected. Call this first thing.
///
/// # Errors
///
/// When `mpirun` started this process and the program was built without the feature `mpi`, or another launcher
/// started several.
pub fn check() -> Result<(), Unconnected> {
    judge(cfg!(feature = "mpi"), |name| env::var(name).ok())
}

/// Refuses to run as one of several processes, in a program that does not want to be connected: its ranks are
/// threads, and each process would believe that it is the whole run. Call this first thing.
///
/// # Errors
///
/// When this process is one of several.
pub fn check_alone() -> Result<(), Unconnected> {
    match world_size().filter(|processes| *processes > 1) {
        Some(processes) => Err(Unconnected::RanksAreThreads(processes)),
        None => check(),
    }
}

/// The beginning of a command that starts processes on this machine: how many of which program is to follow, as in
/// `-n 4 PROGRAM`. Where MPI is Open MPI, they may be root's, more than there are cores, and use any core.
///
/// # Errors
///
/// When there is no `mpirun` here.
pub fn command() -> io::Result<Command> {
    Command::new("mpirun").arg("--version").output()?;
    let mut command = Command::new("mpirun");
    command
        .envs([("OMPI_ALLOW_RUN_AS_ROOT", "1"), ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")])
        .envs([("OMPI_MCA_rmaps_base_oversubscribe", "1")])
        .envs([("OMPI_MCA_hwloc_base_binding_policy", "none")]);
    Ok(command)
}

fn judge(mpi: bool, variable: impl Fn(&str) -> Option<String>) -> Result<(), Unconnected> {
    if let Some(processes) = started(&variable) {
        return if mpi || processes == 1 { Ok(()) } else { Err(Unconnected::NoMpi(processes)) };
    }
    let numbers = LAUNCHERS.map(|name| variable(name)?.parse().ok());
    match numbers {
        [Some(_), Some(processes)] if processes > 1 => Err(Unconnected::OtherLauncher(processes)),
        _ => Ok(()),
    }
}

fn started(variable: impl Fn(&str) -> Option<String>) -> Option<usize> {
    SIZES.into_iter().find_map(|name| variable(name)?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The environment that a launcher makes.
    fn with(set: &'static [(&str, &str)]) -> impl Fn(&str) -> Option<String> {
        |name| set.iter().find(|(set, _)| *set == name).map(|(_, value)| (*value).to_owned())
    }

    #[test]
    fn launchers_are_recognised() {
        assert_eq!(started(with(&[("OMPI_COMM_WORLD_SIZE", "4")])), Some(4));
        assert_eq!(started(with(&[("PMI_SIZE", "2")])), Some(2));
        assert_eq!(started(with(&[("PMI_SIZE", "many")])), None);
        assert_eq!(started(with(&[("HOME", "3")])), None);
    }

    #[test]
    fn several_processes_need_mpi_and_one_does_not() {
        assert_eq!(judge(false, with(&[])), Ok(()));
        assert_eq!(judge(true, with(&[("PMI_SIZE", "4")])), Ok(()));
        assert_eq!(judge(false, with(&[("PMI_SIZE", "1")])), Ok(()));
        let refusal = judge(false, with(&[("PMI_SIZE", "4")])).unwrap_err().to_string();
        assert!(refusal.contains("4 processes") && refusal.contains("--features mpi"), "{refusal}");
    }

    #[test]
    fn processes_of_another_launcher_are_not_left_to_train_side_by_side() {
        let torchrun: &[_] = &[("RANK", "1"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "1")];
        for mpi in [false, true] {
            assert_eq!(judge(mpi, with(torchrun)), Err(Unconnected::OtherLauncher(2)));
            assert_eq!(judge(mpi, with(&[("RANK", "0"), ("WORLD_SIZE", "1")])), Ok(()));
            assert_eq!(judge(mpi, with(&[("WORLD_SIZE", "8")])), Ok(()), "somebody's own variable");
        }
    }
}
