//! Processes that a launcher has started together: `mpirun`, `srun`, or a launcher such as `torchrun`.
//!
//! A program that cannot connect the processes refuses to run: otherwise each process would train the same model. `mpirun` and
//! `srun` set a variable to the number of processes, and MPI knows the rest. `torchrun` sets all that NCCL needs: `WORLD_SIZE`,
//! `RANK`, `LOCAL_RANK` (the number of the GPU on this host), and `MASTER_ADDR` and `MASTER_PORT`, where the launcher itself may
//! listen. Rank 0 of NCCL listens on the address in `NCCL_COMM_ID`, by default on [`meeting_port`] of `MASTER_ADDR`.

use std::{env, fmt, fs};

use anyhow::{Context as _, Result, bail};

/// The variables with the number of processes, and the launcher that sets them. Under `mpirun` in a Slurm job the last one
/// counts the helpers of `mpirun`.
const SIZES: [(&str, &str); 3] =
    [("OMPI_COMM_WORLD_SIZE", "mpirun"), ("PMI_SIZE", "mpirun"), (TASKS, SLURM)];

/// Slurm's number of tasks in a step.
const TASKS: &str = "SLURM_STEP_NUM_TASKS";
const SLURM: &str = "srun";

/// The name of the launchers that set `RANK` and `WORLD_SIZE`.
const OTHER: &str = "a launcher such as torchrun";
/// A variable that only `torchrun` sets.
const TORCHRUN: &str = "TORCHELASTIC_RUN_ID";

/// NCCL's variable with the address at which its processes meet.
pub const MEETING: &str = "NCCL_COMM_ID";

/// Processes that were started together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Started {
    /// The number of processes, this one included.
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

/// The place of this process among those that `torchrun` or a launcher like it has started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The number of this process, from 0.
    pub rank: usize,
    /// The number of processes: at least two.
    pub world_size: usize,
    /// The number of this process on its host, from 0.
    pub local_rank: usize,
    /// The address at which the processes meet, in NCCL's form: `HOST:PORT`.
    pub meeting: String,
}

/// Returns the processes that `mpirun` or `srun` has started together with this one.
pub fn started() -> Option<Started> {
    launched(variable).filter(|started| started.by != OTHER)
}

/// Returns the place of this process. `None` if it is alone, or if `mpirun` or `srun` has started it. Fails when a variable is wrong.
pub fn place() -> Result<Option<Place>> {
    read_place(variable)
}

/// Refuses to run as one of several processes that cannot be connected: without MPI, or by another launcher than `mpirun`.
pub fn check(built_with_mpi: bool) -> Result<()> {
    check_connected(built_with_mpi, launched(variable))
}

/// Refuses to run as one of several processes, in a program whose ranks are threads.
pub fn check_alone() -> Result<()> {
    check_is_alone(launched(variable))
}

/// Returns the name of this process's machine.
pub fn machine() -> String {
    fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned()
}

/// Returns the port on which rank 0 of NCCL's processes listens: not `MASTER_PORT`, which the launcher may use, and below the ports of
/// outgoing connections. Two jobs do not collide if their `MASTER_PORT`s are less than 10,000 apart.
pub fn meeting_port(master_port: u16) -> u16 {
    10_000 + master_port % 20_000
}

fn variable(name: &str) -> Option<String> {
    env::var(name).ok()
}

/// Says how to start one process, and not several.
fn without(by: &str) -> String {
    let shell = format!(", or in a shell of srun with env -u {TASKS}");
    format!("without {by}{}", if by == SLURM { &*shell } else { "" })
}

/// Returns the processes that any launcher has started together with this one.
fn launched(variable: impl Fn(&str) -> Option<String>) -> Option<Started> {
    let started = |(name, by)| Some(Started { processes: variable(name)?.parse().ok()?, by });
    // Other programs use `WORLD_SIZE` for their own purposes, but not together with `RANK`.
    let of_rank = started(("RANK", OTHER)).and_then(|_| started(("WORLD_SIZE", OTHER)));
    let of_rank = of_rank.filter(|of_rank| of_rank.processes > 1);
    match (SIZES.into_iter().find_map(started), of_rank) {
        (Some(Started { processes, by }), Some(of_rank))
            // mpirun or srun may have started torchrun, which has started this process.
            if processes == 1
                || by == SLURM
                    && (processes != of_rank.processes || variable(TORCHRUN).is_some()) =>
        {
            Some(of_rank)
        }
        (by_mpi, of_rank) => by_mpi.or(of_rank),
    }
}

fn check_connected(mpi: bool, started: Option<Started>) -> Result<()> {
    match started {
        Some(Started { by: OTHER, processes }) => bail!(
            "RANK and WORLD_SIZE say that a launcher started {processes} processes: start them with mpirun (DDP, with a \
             GPU for each, can do with NCCL: built with --features nccl)"
        ),
        Some(started) if !mpi && started.processes > 1 => bail!(
            "{started} of a program that was built without MPI: build it with --features mpi, or start it {}",
            without(started.by)
        ),
        _ => Ok(()),
    }
}

fn check_is_alone(started: Option<Started>) -> Result<()> {
    match started.filter(|started| started.processes > 1) {
        Some(started @ Started { by, processes }) => {
            let how = format!("start it with --devices {processes} {}", without(by));
            bail!("{started}, but this program's ranks are threads: {how}")
        }
        None => Ok(()),
    }
}

fn read_place(variable: impl Fn(&str) -> Option<String>) -> Result<Option<Place>> {
    let Some(Started { by: OTHER, processes: world_size }) = launched(&variable) else {
        return Ok(None);
    };
    let set = |name| variable(name).filter(|value| !value.is_empty());
    let text = |name, meaning| {
        let launched = format!("a launcher started {world_size} processes (WORLD_SIZE)");
        set(name).with_context(|| format!("{launched}, but did not set {name}: {meaning}"))
    };
    let number = |name, meaning, last: usize| {
        let value = text(name, meaning)?;
        let refusal = || format!("{name} is {value:?}, which is not a number from 0 to {last}");
        value.parse().ok().filter(|&number: &usize| number <= last).with_context(refusal)
    };
    let rank = number("RANK", "the number of this process", world_size - 1)?;
    let local_rank = number("LOCAL_RANK", "the number of this process's GPU", world_size - 1)?;
    let of_rank_0 = || {
        let host = text("MASTER_ADDR", "the host of rank 0")?;
        let port = number("MASTER_PORT", "a port of this host", u16::MAX.into())?;
        // An IPv6 address contains colons.
        let host = if host.contains(':') { format!("[{host}]") } else { host };
        anyhow::Ok(format!("{host}:{}", meeting_port(port as u16)))
    };
    let meeting = set(MEETING).map_or_else(of_rank_0, Ok)?;
    Ok(Some(Place { rank, world_size, local_rank, meeting }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The variables that a launcher sets.
    fn with(set: &'static [(&str, &str)]) -> impl Fn(&str) -> Option<String> {
        |name| set.iter().find(|(set, _)| *set == name).map(|(_, value)| (*value).to_owned())
    }

    const RANK: (&str, &str) = ("RANK", "0");
    const FOUR: (&str, &str) = ("WORLD_SIZE", "4");
    const HOST: (&str, &str) = ("MASTER_ADDR", "red");

    #[test]
    fn launchers_are_recognised() {
        for (set, expected) in [
            (&[("OMPI_COMM_WORLD_SIZE", "4")][..], Some((4, "mpirun"))),
            (&[("PMI_SIZE", "2")], Some((2, "mpirun"))),
            (&[("PMI_SIZE", "many")], None),
            (&[("HOME", "3")], None),
            // A step of Slurm's, a job script of Slurm's, and a helper of mpirun's in a step of one task.
            (&[("SLURM_NTASKS", "3"), (TASKS, "3")], Some((3, SLURM))),
            (&[("SLURM_NTASKS", "3"), ("SLURM_PROCID", "0")], None),
            (&[(TASKS, "1"), ("OMPI_COMM_WORLD_SIZE", "4")], Some((4, "mpirun"))),
            // Both variables of torchrun, with more than one process.
            (&[RANK, FOUR], Some((4, OTHER))),
            (&[FOUR], None),
            (&[RANK, ("WORLD_SIZE", "1")], None),
            // One torchrun on each of some hosts.
            (&[RANK, FOUR, (TASKS, "1")], Some((4, OTHER))),
            (&[RANK, FOUR, (TASKS, "2")], Some((4, OTHER))),
            (&[RANK, FOUR, ("OMPI_COMM_WORLD_SIZE", "1")], Some((4, OTHER))),
            (&[RANK, FOUR, (TASKS, "4"), (TORCHRUN, "x")], Some((4, OTHER))),
            // A script that sets torchrun's variables from Slurm's, or for another program under mpirun.
            (&[RANK, FOUR, (TASKS, "4")], Some((4, SLURM))),
            (&[RANK, FOUR, ("OMPI_COMM_WORLD_SIZE", "2")], Some((2, "mpirun"))),
        ] {
            let found = launched(with(set)).map(|started| (started.processes, started.by));
            assert_eq!(found, expected, "{set:?}");
        }
    }

    #[test]
    fn processes_that_nothing_connects_are_not_left_to_train_side_by_side() {
        let started = |processes, by| Some(Started { processes, by });
        let refusals = |started| {
            let refusal = |outcome: Result<()>| outcome.err().map(|error| error.to_string());
            let connected = [false, true].map(|mpi| refusal(check_connected(mpi, started)));
            (connected, refusal(check_is_alone(started)))
        };
        for alone in [None, started(1, "mpirun")] {
            assert_eq!(refusals(alone), ([None, None], None));
        }
        let how = "without srun, or in a shell of srun with env -u SLURM_STEP_NUM_TASKS";
        for (by, how) in [("mpirun", "without mpirun"), (SLURM, how)] {
            let without_mpi =
                "of a program that was built without MPI: build it with --features mpi";
            let needs_mpi = format!("{by} started 4 processes {without_mpi}, or start it {how}");
            let only_threads = "but this program's ranks are threads: start it with --devices 4";
            let threads = format!("{by} started 4 processes, {only_threads} {how}");
            assert_eq!(refusals(started(4, by)), ([Some(needs_mpi), None], Some(threads)));
        }
        let ([without, with_mpi], threads) = refusals(started(2, OTHER));
        assert_eq!(without, with_mpi);
        let expected = "RANK and WORLD_SIZE say that a launcher started 2 processes: ";
        assert!(without.as_ref().is_some_and(|text| text.starts_with(expected)), "{without:?}");
        let expected = "a launcher such as torchrun started 2 processes, but this program's ranks are threads: start it with \
                        --devices 2 without a launcher such as torchrun";
        assert_eq!(threads.as_deref(), Some(expected));
    }

    /// The place that torchrun's variables say, with another value of one of them.
    fn place_with(name: &str, value: Option<&str>) -> Result<Option<Place>, String> {
        let torchrun =
            with(&[("RANK", "3"), FOUR, ("LOCAL_RANK", "1"), HOST, ("MASTER_PORT", "29500")]);
        let set =
            |asked: &str| if asked == name { value.map(str::to_owned) } else { torchrun(asked) };
        read_place(set).map_err(|error| error.to_string())
    }

    #[test]
    fn torchruns_variables_say_the_place() {
        let meeting = |name, value| place_with(name, Some(value)).unwrap().unwrap().meeting;
        let place =
            Place { rank: 3, world_size: 4, local_rank: 1, meeting: "red:19500".to_owned() };
        assert_eq!(place_with("HOME", None), Ok(Some(place)));
        assert_eq!(meeting("MASTER_ADDR", "fe80::1"), "[fe80::1]:19500");
        assert_eq!(meeting(MEETING, "blue:7000"), "blue:7000");
        assert_eq!(meeting(MEETING, ""), "red:19500", "empty is as good as not set");
        // Without a rank and others there is no launcher.
        let size = "WORLD_SIZE";
        for (name, value) in [("RANK", None), (size, None), (size, Some("1")), (size, Some("many"))]
        {
            assert_eq!(place_with(name, value), Ok(None), "{name} {value:?}");
        }
    }

    #[test]
    fn an_impossible_value_is_named() {
        let error = |name, value| place_with(name, value).unwrap_err();
        for (name, value, last) in
            [("RANK", "4", "3"), ("LOCAL_RANK", "-1", "3"), ("MASTER_PORT", "65536", "65535")]
        {
            let refusal = format!("{name} is {value:?}, which is not a number from 0 to {last}");
            assert_eq!(error(name, Some(value)), refusal);
        }
        let launched = "a launcher started 4 processes (WORLD_SIZE), but did not set";
        for name in ["LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"] {
            let error = error(name, None);
            assert!(error.starts_with(&format!("{launched} {name}: ")), "{error}");
        }
    }

    #[test]
    fn jobs_with_neighbouring_ports_do_not_collide() {
        for port in 0..=u16::MAX {
            let own = meeting_port(port);
            assert!((10_000..30_000).contains(&own) && own != port, "{port}: {own}");
            for distance in [1, 2, 3, 100, 9_999] {
                let Some(neighbour) = port.checked_add(distance) else { break };
                let theirs = meeting_port(neighbour);
                assert!(own != neighbour && theirs != port && own != theirs, "{port}, {neighbour}");
            }
        }
    }
}
