//! Whether this process is one of several that `mpirun` started.
//!
//! Such a process has to know before it does anything else: alone it would believe that it is the whole
//! run, and every one of them would train the same model beside the others. This module is part of every
//! build, so that a program without MPI can refuse instead.

use std::env;

/// Where launchers say how many processes they started: Open MPI's, and those that speak PMI (MPICH's).
const SIZES: [&str; 2] = ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE"];

/// Started by `mpirun`, and built without what would connect the processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "mpirun started {processes} processes of a program that was built without MPI: build it with \
     --features mpi, or start it without mpirun"
)]
pub struct NoMpi {
    processes: usize,
}

/// How many processes were started together with this one; `None` where no launcher says so.
pub fn world_size() -> Option<usize> {
    read(|name| env::var(name).ok())
}

/// Refuses to run as one of several processes that cannot be connected. Call this first thing.
///
/// # Errors
///
/// When `mpirun` started this process and the program was built without the feature `mpi`.
pub fn check() -> Result<(), NoMpi> {
    judge(cfg!(feature = "mpi"), world_size())
}

fn judge(mpi: bool, started: Option<usize>) -> Result<(), NoMpi> {
    match started {
        Some(processes) if !mpi => Err(NoMpi { processes }),
        _ => Ok(()),
    }
}

fn read(variable: impl Fn(&str) -> Option<String>) -> Option<usize> {
    SIZES.into_iter().find_map(|name| variable(name)?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launchers_are_recognised() {
        let with = |set: &'static str, value: &'static str| {
            read(move |name| (name == set).then(|| value.to_owned()))
        };
        assert_eq!(with("OMPI_COMM_WORLD_SIZE", "4"), Some(4));
        assert_eq!(with("PMI_SIZE", "2"), Some(2));
        assert_eq!(with("PMI_SIZE", "many"), None);
        assert_eq!(with("HOME", "3"), None);
    }

    #[test]
    fn several_processes_need_mpi_and_one_does_not() {
        assert_eq!(judge(false, None), Ok(()));
        assert_eq!(judge(true, Some(4)), Ok(()));
        let refusal = judge(false, Some(4)).unwrap_err().to_string();
        assert!(refusal.contains("4 processes") && refusal.contains("--features mpi"), "{refusal}");
    }
}
