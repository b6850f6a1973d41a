//! The cores of this process, and the cores that processes of one machine share.

use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::path::Path;
use std::{fs, thread};

/// The number of cores that this process may use. A limit of a container counts.
pub fn available_cores() -> usize {
    thread::available_parallelism().map_or(1, NonZeroUsize::get)
}

/// The physical cores of this process, if they are fewer than its [`available_cores`]: some of these are hyperthreads of one core,
/// which share its arithmetic units. `None` also where the system does not report hyperthreads.
pub fn fewer_physical_cores() -> Option<usize> {
    physical_cores_below(Path::new("/"), &CoreSet::of_this_process(), available_cores())
}

fn physical_cores_below(root: &Path, usable: &CoreSet, available: usize) -> Option<usize> {
    let hyperthreads = |core: usize| {
        let file = format!("sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list");
        let list = fs::read_to_string(root.join(file)).unwrap_or_else(|_| core.to_string());
        CoreSet::of_list(&list)
    };
    // Each hyperthread of a core has the same list.
    let physical: BTreeSet<CoreSet> = usable.cores().map(hyperthreads).collect();
    Some(physical.len()).filter(|cores| (1..available).contains(cores))
}

/// The words of a [`CoreSet`].
const WORDS: usize = 64;

/// A set of cores: core `n` is bit `n % 64` of word `n / 64`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CoreSet(pub [u64; WORDS]);

impl CoreSet {
    /// The cores that this process may use. The set is empty where the system has no list of them.
    pub fn of_this_process() -> Self {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        Self::of_list(list.unwrap_or_default())
    }

    /// Parses a list such as `0-3,8`. Cores that the set has no room for are left out.
    fn of_list(list: &str) -> Self {
        let mut words = [0; WORDS];
        for part in list.trim().split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (Ok(first), Ok(last)) = (first.parse(), last.parse::<usize>()) else { continue };
            (first..=last.min(64 * WORDS - 1))
                .for_each(|core: usize| words[core / 64] |= 1 << (core % 64));
        }
        Self(words)
    }

    fn has(&self, core: usize) -> bool {
        self.0[core / 64] >> (core % 64) & 1 == 1
    }

    /// The numbers of the cores, in ascending order.
    fn cores(&self) -> impl Iterator<Item = usize> {
        (0..64 * WORDS).filter(|&core| self.has(core))
    }

    /// The number of cores for a process with this set: processes divide a core that they may all use. `all` are the words of all
    /// sets. If the number of `available` cores is smaller than the set, it limits all processes together, as in a container.
    pub fn share(&self, all: &[u64], available: usize) -> NonZeroUsize {
        let all: Vec<Self> = all.as_chunks().0.iter().map(|words| Self(*words)).collect();
        let users = |core: usize| all.iter().filter(|set| set.has(core)).count().max(1);
        let parts = self.cores().map(|core| 1.0 / users(core) as f64);
        // A third of a core, three times, is one core.
        let share = (parts.sum::<f64>() + 1e-6) as usize;
        let of_container = available / all.len().max(1);
        let share = match self.cores().count() {
            0 => of_container,
            cores if cores > available => share.min(of_container),
            _ => share,
        };
        NonZeroUsize::new(share).unwrap_or(NonZeroUsize::MIN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The shares of processes with these lists of cores.
    fn shares(lists: &[&str], available: usize) -> Vec<usize> {
        let sets: Vec<CoreSet> = lists.iter().map(|list| CoreSet::of_list(list)).collect();
        let all: Vec<u64> = sets.iter().flat_map(|set| set.0).collect();
        sets.iter().map(|set| set.share(&all, available).get()).collect()
    }

    #[test]
    fn only_cores_that_processes_share_are_divided() {
        // Each process has four cores of its own: `mpirun --map-by slot:PE=4`.
        assert_eq!(shares(&["0-3", "4-7", "8-11", "12-15"], 4), [4; 4]);
        // No process is bound.
        assert_eq!(shares(&["0-15"; 4], 16), [4; 4]);
        assert_eq!(shares(&["0-1,4"; 3], 3), [1; 3]);
        // Two processes on each socket.
        assert_eq!(shares(&["0-7", "8-15", "0-7", "8-15"], 8), [4; 4]);
        // More processes than cores.
        assert_eq!(shares(&["0-1"; 8], 2), [1; 8]);
        assert_eq!(shares(&["0-3", "2-5"], 4), [3, 3]);
        // A container may use four of 64 cores, in all processes together.
        assert_eq!(shares(&["0-63"; 2], 4), [2; 2]);
        assert_eq!(shares(&["", ""], 4), [2; 2]);
    }

    #[test]
    fn lists_of_the_system_are_understood() {
        let cores = |list: &str| CoreSet::of_list(list).cores().collect::<Vec<_>>();
        assert_eq!(cores("\t0-2,64,4095"), [0, 1, 2, 64, 4095]);
        assert_eq!(cores("4094-9999"), [4094, 4095]);
        assert!(cores("").is_empty() && cores("none").is_empty());
        if cfg!(target_os = "linux") {
            assert_ne!(CoreSet::of_this_process(), CoreSet::of_list(""));
        }
    }

    #[test]
    fn hyperthreads_of_one_core_are_one_physical_core() {
        let root = tempfile::tempdir().expect("a folder");
        for (core, siblings) in [(0, "0,4"), (1, "1,5"), (4, "0,4"), (5, "1,5")] {
            let folder = root.path().join(format!("sys/devices/system/cpu/cpu{core}/topology"));
            fs::create_dir_all(&folder).expect("it can be made");
            fs::write(folder.join("thread_siblings_list"), siblings).expect("it can be written");
        }
        let of =
            |list, available| physical_cores_below(root.path(), &CoreSet::of_list(list), available);
        assert_eq!(of("0-1,4-5", 4), Some(2));
        // A process that may not use core 5, and one that may use both cores once. Core 7 has no files, and is a core.
        assert_eq!((of("0-1,4", 3), of("0,5", 2)), (Some(2), None));
        assert_eq!((of("0,4,7", 3), of("7,8", 2)), (Some(2), None));
        // A container may use the time of two cores, on any of them.
        assert_eq!(of("0-1,4-5", 2), None);
    }
}
