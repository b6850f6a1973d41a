//! Where a launcher such as `torchrun` has put this process.
//!
//! It starts processes and tells each of them, in variables of its environment, how many there are, which of them
//! it is, and where they may meet. That is all: nothing connects them yet.
//!
//! | variable | means |
//! | --- | --- |
//! | `WORLD_SIZE` | how many processes there are |
//! | `RANK` | which of them this is, from 0 |
//! | `LOCAL_RANK` | which of those on its host, from 0: the number of its GPU |
//! | `MASTER_ADDR` | the host of rank 0 |
//! | `MASTER_PORT` | a port there, on which the launcher itself may listen |
//! | `NCCL_COMM_ID` | NCCL's own: where rank 0 is to listen; if it is not set, on the port after `MASTER_PORT` |
//!
//! `mpirun` and `srun` say it otherwise: see [`mpirun`].

use std::env;

use crate::mpirun;

/// The variable that tells NCCL where its processes meet.
pub const MEETING: &str = "NCCL_COMM_ID";

/// This process's place among those that a launcher started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Which of them this is, from 0.
    pub rank: usize,
    /// How many there are: at least two.
    pub world_size: usize,
    /// Which of those on its host, from 0.
    pub local_rank: usize,
    /// Where they meet, as NCCL wants it: `HOST:PORT`.
    pub meeting: String,
}

/// What a launcher has set that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Misplaced {
    /// A variable is missing.
    #[error(
        "a launcher started {world_size} processes (WORLD_SIZE), but did not set {name}: {meaning}"
    )]
    Missing {
        /// How many processes there are.
        world_size: usize,
        /// The variable.
        name: &'static str,
        /// What it is for.
        meaning: &'static str,
    },
    /// A variable has a value that it cannot have.
    #[error("{name} is {value:?}, which is not {expected}")]
    Wrong {
        /// The variable.
        name: &'static str,
        /// Its value.
        value: String,
        /// What it may be.
        expected: String,
    },
}

/// Where a launcher has put this process; `None` where it is alone, or `mpirun` or `srun` has started it.
///
/// # Errors
///
/// When the launcher's variables contradict each other, or one is missing.
pub fn place() -> Result<Option<Place>, Misplaced> {
    if mpirun::launcher().is_some() {
        return Ok(None);
    }
    read(|name| env::var(name).ok())
}

fn read(variable: impl Fn(&str) -> Option<String>) -> Result<Option<Place>, Misplaced> {
    let Some(world_size) = mpirun::processes(&variable) else { return Ok(None) };
    let text = |name, meaning| {
        let value = variable(name).filter(|value| !value.is_empty());
        value.ok_or(Misplaced::Missing { world_size, name, meaning })
    };
    let number = |name, meaning, below: usize| {
        let value = text(name, meaning)?;
        let number = value.parse().ok().filter(|&number: &usize| number < below);
        let expected = || format!("a number from 0 to {}", below - 1);
        number.ok_or_else(|| Misplaced::Wrong { name, value, expected: expected() })
    };
    let rank = number("RANK", "which of them this is", world_size)?;
    let local_rank = number("LOCAL_RANK", "the number of this process's GPU", world_size)?;
    let meeting = match variable(MEETING).filter(|meeting| !meeting.is_empty()) {
        Some(meeting) => meeting,
        None => {
            let host = text("MASTER_ADDR", "where rank 0 is")?;
            let last = usize::from(u16::MAX);
            let port = number("MASTER_PORT", "the port before the one on which they meet", last)?;
            // An address of IPv6 has colons of its own.
            let host = if host.contains(':') { format!("[{host}]") } else { host };
            format!("{host}:{}", port + 1)
        }
    };
    Ok(Some(Place { rank, world_size, local_rank, meeting }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SET: [(&str, &str); 5] = [
        ("RANK", "3"),
        ("WORLD_SIZE", "4"),
        ("LOCAL_RANK", "1"),
        ("MASTER_ADDR", "red"),
        ("MASTER_PORT", "29500"),
    ];

    /// What is read where these are set, and one of them otherwise.
    fn with(name: &str, value: Option<&str>) -> Result<Option<Place>, String> {
        let set = |asked: &str| match asked == name {
            true => value.map(str::to_owned),
            false => SET.iter().find(|(set, _)| *set == asked).map(|(_, it)| (*it).to_owned()),
        };
        read(set).map_err(|error| error.to_string())
    }

    fn met_at(name: &str, value: &str) -> String {
        with(name, Some(value)).unwrap().unwrap().meeting
    }

    #[test]
    fn a_launcher_says_who_and_where() {
        let place =
            Place { rank: 3, world_size: 4, local_rank: 1, meeting: "red:29501".to_owned() };
        assert_eq!(with("HOME", None), Ok(Some(place)));
        assert_eq!(met_at("MASTER_ADDR", "fe80::1"), "[fe80::1]:29501");
        assert_eq!(met_at(MEETING, "blue:7000"), "blue:7000");
        assert_eq!(met_at(MEETING, ""), "red:29501", "empty is as good as not set");
    }

    #[test]
    fn without_a_rank_and_others_there_is_no_launcher() {
        for (name, value) in [("RANK", None), ("WORLD_SIZE", None), ("WORLD_SIZE", Some("1"))] {
            assert_eq!(with(name, value), Ok(None), "{name}={value:?}");
        }
        assert_eq!(with("WORLD_SIZE", Some("many")), Ok(None));
    }

    #[test]
    fn what_cannot_be_is_named() {
        let told = |name, value| with(name, value).unwrap_err();
        assert_eq!(told("RANK", Some("4")), "RANK is \"4\", which is not a number from 0 to 3");
        assert_eq!(
            told("LOCAL_RANK", Some("-1")),
            "LOCAL_RANK is \"-1\", which is not a number from 0 to 3"
        );
        assert_eq!(
            told("MASTER_PORT", Some("65535")),
            "MASTER_PORT is \"65535\", which is not a number from 0 to 65534"
        );
        for name in ["LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"] {
            let told = told(name, None);
            let begins =
                format!("a launcher started 4 processes (WORLD_SIZE), but did not set {name}: ");
            assert!(told.starts_with(&begins), "{told}");
        }
    }
}
