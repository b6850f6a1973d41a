//! Whether this process is one of several that `mpirun` or `srun` started.
//!
//! Such a process has to know before it does anything else: alone it would believe that it is the whole
//! run, and every one of them would train the same model beside the others. This module is part of every
//! build, so that a program without MPI can refuse instead. What starts such processes from within a program, as
//! tests do, is here too.

use std::env;
use std::fmt;
use std::io;
use std::process::Command;

/// Where launchers say how many processes they started: Open MPI's, those that speak PMI (MPICH's), and Slurm's,
/// which sets nothing else with PMIx. Under `mpirun` in a Slurm job, Slurm's variable counts `mpirun`'s helpers, so it
/// is asked last.
const SIZES: [(&str, &str); 3] =
    [("OMPI_COMM_WORLD_SIZE", "mpirun"), ("PMI_SIZE", "mpirun"), ("SLURM_STEP_NUM_TASKS", SLURM)];

/// Slurm's launcher.
const SLURM: &str = "srun";

/// What `torchrun` alone sets.
const TORCHRUN: &str = "TORCHELASTIC_RUN_ID";

/// What those are called that set `RANK` and `WORLD_SIZE`.
const OTHER: &str = "a launcher such as torchrun";

/// Started together with others, and nothing connects them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unconnected {
    /// Built without what would connect the processes.
    #[error(
        "{0} of a program that was built without MPI: build it with --features mpi, or start it without {by}",
        by = .0.by
    )]
    NoMpi(Started),
    /// A program whose ranks are threads.
    #[error(
        "{0}, but this program's ranks are threads: start it without {by}, with --devices {processes}",
        by = .0.by,
        processes = .0.processes
    )]
    RanksAreThreads(Started),
    /// Not started by `mpirun`.
    #[error(
        "RANK and WORLD_SIZE say that a launcher started {0} processes: start them with mpirun (DDP, with a GPU for each, \
         can do with NCCL: built with --features nccl)"
    )]
    OtherLauncher(usize),
}

/// How many processes were started together, and by what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Started {
    /// With this one.
    pub processes: usize,
    /// The launcher's name.
    pub by: &'static str,
}

impl fmt::Display for Started {
    /// `mpirun started 4 processes`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} started {} processes", self.by, self.processes)
    }
}

/// What started this process, if it says so.
pub fn launcher() -> Option<Started> {
    started(|name| env::var(name).ok())
}

/// How many processes were started together with this one; `None` where no launcher says so.
pub fn world_size() -> Option<usize> {
    launcher().map(|started| started.processes)
}

/// Refuses to run as one of several processes that cannot be connected. Call this first thing.
///
/// # Errors
///
/// When `mpirun` started this process and the program was built without the feature `mpi`, or another launcher
/// started several.
pub fn check(built_with_mpi: bool) -> Result<(), Unconnected> {
    judge(built_with_mpi, |name| env::var(name).ok())
}

/// Refuses to run as one of several processes, in a program that does not want to be connected: its ranks are
/// threads, and each process would believe that it is the whole run. Call this first thing.
///
/// # Errors
///
/// When this process is one of several.
pub fn check_alone() -> Result<(), Unconnected> {
    judge_alone(|name| env::var(name).ok())
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

/// How many processes a launcher started, where it says so: other programs use `WORLD_SIZE` for their own ends, and
/// not together with `RANK`.
pub(crate) fn processes(variable: impl Fn(&str) -> Option<String>) -> Option<usize> {
    let number = |name| variable(name)?.parse().ok();
    let _rank: usize = number("RANK")?;
    number("WORLD_SIZE").filter(|&processes| processes > 1)
}

fn judge(mpi: bool, variable: impl Fn(&str) -> Option<String>) -> Result<(), Unconnected> {
    if let Some(started) = started(&variable) {
        return if mpi || started.processes == 1 {
            Ok(())
        } else {
            Err(Unconnected::NoMpi(started))
        };
    }
    match processes(variable) {
        Some(processes) => Err(Unconnected::OtherLauncher(processes)),
        None => Ok(()),
    }
}

fn judge_alone(variable: impl Fn(&str) -> Option<String>) -> Result<(), Unconnected> {
    let other = || {
        let processes = processes(&variable)?;
        Some(Started { processes, by: OTHER })
    };
    match started(&variable).or_else(other).filter(|started| started.processes > 1) {
        Some(started) => Err(Unconnected::RanksAreThreads(started)),
        None => Ok(()),
    }
}

fn started(variable: impl Fn(&str) -> Option<String>) -> Option<Started> {
    let told = |(name, by)| Some(Started { processes: variable(name)?.parse().ok()?, by });
    let said = SIZES.into_iter().find_map(told);
    // What mpirun or srun has started may be torchrun, and this one of its processes.
    let of_torchrun = |said: &Started| match processes(&variable) {
        Some(_) if said.processes == 1 => true,
        Some(processes) if said.by == SLURM => {
            processes != said.processes || variable(TORCHRUN).is_some()
        }
        _ => false,
    };
    said.filter(|said| !of_torchrun(said))
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
        let by = |by, processes| Some(Started { processes, by });
        assert_eq!(started(with(&[("OMPI_COMM_WORLD_SIZE", "4")])), by("mpirun", 4));
        assert_eq!(started(with(&[("PMI_SIZE", "2")])), by("mpirun", 2));
        assert_eq!(started(with(&[("PMI_SIZE", "many")])), None);
        assert_eq!(started(with(&[("HOME", "3")])), None);
        // A step of Slurm's, a job script of Slurm's, and a helper of mpirun's in a step of one task.
        let step = &[("PMIX_RANK", "1"), ("SLURM_NTASKS", "3"), ("SLURM_STEP_NUM_TASKS", "3")];
        assert_eq!(started(with(step)), by("srun", 3));
        assert_eq!(started(with(&[("SLURM_NTASKS", "3"), ("SLURM_PROCID", "0")])), None);
        let both = &[("SLURM_STEP_NUM_TASKS", "1"), ("OMPI_COMM_WORLD_SIZE", "4")];
        assert_eq!(started(with(both)), by("mpirun", 4));
    }

    #[test]
    fn several_processes_need_mpi_and_one_does_not() {
        assert_eq!(judge(false, with(&[])), Ok(()));
        assert_eq!(judge(true, with(&[("PMI_SIZE", "4")])), Ok(()));
        assert_eq!(judge(false, with(&[("PMI_SIZE", "1")])), Ok(()));
        let refusal = judge(false, with(&[("PMI_SIZE", "4")])).unwrap_err().to_string();
        assert!(refusal.contains("4 processes") && refusal.contains("--features mpi"), "{refusal}");
        let slurm = with(&[("SLURM_STEP_NUM_TASKS", "4")]);
        let refusal = judge(false, slurm).unwrap_err().to_string();
        assert!(refusal.starts_with("srun started 4 processes"), "{refusal}");
        assert!(refusal.ends_with("start it without srun"), "{refusal}");
    }

    #[test]
    fn processes_of_another_launcher_are_not_left_to_train_side_by_side() {
        let torchrun: &[_] = &[("RANK", "1"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "1")];
        for mpi in [false, true] {
            assert_eq!(judge(mpi, with(torchrun)), Err(Unconnected::OtherLauncher(2)));
            assert_eq!(judge(mpi, with(&[("RANK", "0"), ("WORLD_SIZE", "1")])), Ok(()));
            assert_eq!(judge(mpi, with(&[("WORLD_SIZE", "8")])), Ok(()), "somebody's own variable");
        }
        let told = judge_alone(with(torchrun)).unwrap_err().to_string();
        assert_eq!(
            told,
            "a launcher such as torchrun started 2 processes, but this program's ranks are threads: start it without \
             a launcher such as torchrun, with --devices 2"
        );
    }

    #[test]
    fn one_launcher_may_have_started_another() {
        const RANKS: [(&str, &str); 2] = [("RANK", "0"), ("WORLD_SIZE", "4")];
        let by = |set: &'static [(&str, &str)]| started(with(set)).map(|started| started.by);
        // One torchrun on each of some hosts.
        assert_eq!(by(&[RANKS[0], RANKS[1], ("SLURM_STEP_NUM_TASKS", "1")]), None);
        assert_eq!(by(&[RANKS[0], RANKS[1], ("SLURM_STEP_NUM_TASKS", "2")]), None);
        assert_eq!(by(&[RANKS[0], RANKS[1], ("OMPI_COMM_WORLD_SIZE", "1")]), None);
        let of_one_each = &[RANKS[0], RANKS[1], ("SLURM_STEP_NUM_TASKS", "4"), (TORCHRUN, "x")];
        assert_eq!(by(of_one_each), None);
        // A script that sets torchrun's variables from Slurm's, or for somebody else under mpirun.
        assert_eq!(by(&[RANKS[0], RANKS[1], ("SLURM_STEP_NUM_TASKS", "4")]), Some("srun"));
        assert_eq!(by(&[RANKS[0], RANKS[1], ("OMPI_COMM_WORLD_SIZE", "2")]), Some("mpirun"));
    }
}
