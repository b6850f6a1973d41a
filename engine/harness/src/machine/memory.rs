//! The memory of the machine, and the limits on this process: the smallest counts.

use std::path::Path;
use std::{fmt, fs};

/// An amount of memory that this process can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Amount {
    /// The amount in bytes.
    pub bytes: u64,
    /// The name of the limit that makes the amount smaller than the machine's. `None` without such a limit.
    pub limit: Option<&'static str>,
}

impl fmt::Display for Amount {
    /// `22 GB`, or `3.9 GB (ulimit -v)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", gigabytes(self.bytes as f64))?;
        self.limit.map_or(Ok(()), |limit| write!(f, " ({limit})"))
    }
}

/// The memory of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// The most that this process can have.
    pub total: Amount,
    /// The amount that this process can still take.
    pub free: Amount,
    /// The bytes of swap space that `total` does not contain. 0 if a limit is smaller than the machine's memory.
    pub swap: u64,
}

/// Reads the memory of this process. `None` where the system does not report it. Only Linux does.
pub fn memory() -> Option<Memory> {
    memory_below(Path::new("/"))
}

/// All memory of a source, and its free memory.
type Bound = [Amount; 2];

fn memory_below(root: &Path) -> Option<Memory> {
    let info = read(root, "proc/meminfo");
    let machine = || {
        let [total, free] = ["MemTotal:", "MemAvailable:"].map(|name| kibibytes(&info, name));
        Some([total?, free?].map(|bytes| Amount { bytes, limit: None }))
    };
    let bounds = machine().into_iter().chain(control_groups(root)).chain(address_space(root));
    let smaller = |a: Amount, b: Amount| if b.bytes < a.bytes { b } else { a };
    let [total, free] = bounds.reduce(|a, b| [smaller(a[0], b[0]), smaller(a[1], b[1])])?;
    let swap = kibibytes(&info, "SwapTotal:").filter(|_| total.limit.is_none());
    Some(Memory { total, free, swap: swap.unwrap_or(0) })
}

fn bound(limit: &'static str, total: u64, used: u64) -> Bound {
    [total, total.saturating_sub(used)].map(|bytes| Amount { bytes, limit: Some(limit) })
}

/// The limits of the control groups of this process, and of the ancestors of these groups. In a container, the path of a group may
/// be that of the host, of which the container has only the root.
fn control_groups(root: &Path) -> Vec<Bound> {
    let mut bounds = Vec::new();
    for group in read(root, "proc/self/cgroup").lines() {
        let fields: Vec<&str> = group.splitn(3, ':').collect();
        let [_, controllers, path] = fields[..] else { continue };
        // In the second version all controllers share one hierarchy, which has no name.
        let (mount, limits, used) = match controllers {
            "" => ("", &["memory.max", "memory.high"][..], "memory.current"),
            _ if controllers.split(',').any(|it| it == "memory") => {
                ("memory", &["memory.limit_in_bytes"][..], "memory.usage_in_bytes")
            }
            _ => continue,
        };
        let mount = root.join("sys/fs/cgroup").join(mount);
        let folders = Path::new(path.trim_start_matches('/')).ancestors();
        bounds.extend(folders.filter_map(|it| control_group(&mount.join(it), limits, used)));
    }
    bounds
}

/// The smallest limit of one control group. The system reclaims cached files, so they count as free.
fn control_group(folder: &Path, limits: &[&str], used: &str) -> Option<Bound> {
    let total = limits.iter().filter_map(|file| number(&read(folder, file), "")).min()?;
    let statistics = read(folder, "memory.stat");
    let cached = |prefix: &str| -> u64 {
        let names = ["inactive_file ", "active_file "].map(|name| format!("{prefix}{name}"));
        names.iter().filter_map(|name| number(&statistics, name)).sum()
    };
    // Only the first version of control groups has sums over descendants, under these names.
    let cached = cached("total_").max(cached(""));
    let used = number(&read(folder, used), "").unwrap_or(0).saturating_sub(cached);
    Some(bound("cgroup limit", total, used))
}

/// The limit of `ulimit -v`. The allocator maps memory early, so memory that the program has not written yet counts as free.
fn address_space(root: &Path) -> Option<Bound> {
    let total = number(&read(root, "proc/self/limits"), "Max address space")?;
    let status = read(root, "proc/self/status");
    let [mapped, data, written] =
        ["VmSize:", "VmData:", "RssAnon:"].map(|name| kibibytes(&status, name).unwrap_or(0));
    let used = mapped.saturating_sub(data.saturating_sub(written));
    Some(bound("ulimit -v", total, used))
}

/// Reads a file. A missing file has no text.
fn read(folder: &Path, file: &str) -> String {
    fs::read_to_string(folder.join(file)).unwrap_or_default()
}

/// The number behind a name at the beginning of a line.
fn number(text: &str, name: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(name))?;
    value.split_whitespace().next()?.parse().ok()
}

fn kibibytes(text: &str, name: &str) -> Option<u64> {
    number(text, name)?.checked_mul(1024)
}

/// Formats bytes with about two digits: `61 GB`, `2.3 GB`, `850 MB`.
pub fn gigabytes(bytes: f64) -> String {
    match bytes / 1e9 {
        gigabytes if gigabytes >= 9.95 => format!("{gigabytes:.0} GB"),
        gigabytes if gigabytes >= 0.9995 => format!("{gigabytes:.1} GB"),
        gigabytes => format!("{:.0} MB", gigabytes * 1e3),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The files of a machine: a path and a text, in which `|` ends a line.
    const MACHINE: &str = "
proc/meminfo MemTotal: 9000 kB|MemFree: 7 kB|MemAvailable: 8000 kB|SwapTotal: 5 kB";

    /// The cases: a subject, the total and the free bytes, and the files that differ.
    const CASES: &str = r"
no limit: 9216000, 8192000

a group with cached files: 6000000 (cgroup limit), 2600000 (cgroup limit)
proc/self/cgroup 0::/slice/job
sys/fs/cgroup/slice/job/memory.max 6000000
sys/fs/cgroup/slice/job/memory.high max
sys/fs/cgroup/slice/job/memory.current 4000000
sys/fs/cgroup/slice/job/memory.stat file 7|inactive_file 500000|active_file 100000

a smaller limit above: 3000000 (cgroup limit), 2000000 (cgroup limit)
proc/self/cgroup 0::/slice/job
sys/fs/cgroup/slice/job/memory.max 6000000
sys/fs/cgroup/slice/memory.max 3000000
sys/fs/cgroup/slice/memory.current 1000000
sys/fs/cgroup/memory.max 5000000

a limit from which the system slows the group down, exceeded: 5000000 (cgroup limit), 0 (cgroup limit)
proc/self/cgroup 0::/job
sys/fs/cgroup/job/memory.max 6000000
sys/fs/cgroup/job/memory.high 5000000
sys/fs/cgroup/job/memory.current 5500000

a limit that leaves more than the machine has free: 9000000 (cgroup limit), 8192000
proc/self/cgroup 0::/
sys/fs/cgroup/memory.max 9000000

the first version, in a container with the path of the host: 4000000 (cgroup limit), 2700000 (cgroup limit)
proc/self/cgroup 5:cpu:/|4:hugetlb,memory:/docker/a1|0::/docker/a1
sys/fs/cgroup/memory/memory.limit_in_bytes 4000000
sys/fs/cgroup/memory/memory.usage_in_bytes 2000000
sys/fs/cgroup/memory/memory.stat inactive_file 1|active_file 1|total_inactive_file 500000|total_active_file 200000

the first version without a limit, beside another controller: 9216000, 8192000
proc/self/cgroup 5:cpu:/docker/a1|4:memory:/docker/a1/b2
sys/fs/cgroup/memory/docker/a1/b2/memory.limit_in_bytes 9223372036854771712
sys/fs/cgroup/memory/docker/a1/b2/memory.usage_in_bytes 2000000
sys/fs/cgroup/cpu/memory.limit_in_bytes 1

the second version, in a container that has the root of its group only: 2000000 (cgroup limit), 2000000 (cgroup limit)
proc/self/cgroup nonsense|0::/of/the/host
sys/fs/cgroup/memory.max 2000000

an address space smaller than all: 4096000 (ulimit -v), 2969600 (ulimit -v)
proc/self/limits Limit  Soft Limit|Max address space   4096000   unlimited   bytes
proc/self/cgroup 0::/
sys/fs/cgroup/memory.max 6000000
proc/self/status VmSize: 3000 kB|RssAnon: 100 kB|VmData: 2000 kB

an address space alone: 4096000 (ulimit -v), 4096000 (ulimit -v)
proc/meminfo nothing
proc/self/limits Limit  Soft Limit|Max address space   4096000   unlimited   bytes";

    /// The memory of the machine in which these files differ.
    fn of(files: &str) -> Option<Memory> {
        let root = tempfile::tempdir().expect("a folder");
        for file in [MACHINE, files].iter().flat_map(|it| it.trim_start().lines()) {
            let (path, text) = file.split_once(' ').expect("a path and a text");
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("it can be made");
            fs::write(path, text.replace('|', "\n") + "\n").expect("it can be written");
        }
        memory_below(root.path())
    }

    #[test]
    fn the_smallest_limit_counts() {
        let told = |it: Amount| {
            it.bytes.to_string() + &it.limit.map_or(String::new(), |limit| format!(" ({limit})"))
        };
        for case in CASES.trim_start().split("\n\n") {
            let (heading, files) = case.split_once('\n').unwrap_or((case, ""));
            let (subject, expected) = heading.split_once(": ").expect("a subject and bytes");
            let Memory { total, free, swap } = of(files).expect(subject);
            assert_eq!([total, free].map(told).join(", "), expected, "{subject}");
            assert_eq!(swap, if total.limit.is_none() { 5 << 10 } else { 0 }, "{subject}");
        }
        // Kernels before 3.14 do not report the available memory.
        for info in ["", "MemTotal: 9 kB|MemFree: 7 kB", "MemTotal: 9 kB|MemAvailable: many kB"] {
            assert_eq!(of(&format!("proc/meminfo {info}")), None, "{info}");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_machine_has_free_memory() {
        let Memory { total, free, .. } = memory().expect("Linux reports its memory");
        assert!((1 << 20..=total.bytes).contains(&free.bytes), "{free:?} of {total:?}");
    }

    #[test]
    fn amounts_have_about_two_digits_and_name_their_limit() {
        assert_eq!(
            [61.4e9, 9.96e9, 2.34e9, 1e9, 850e6, 1.2e6].map(gigabytes),
            ["61 GB", "10 GB", "2.3 GB", "1.0 GB", "850 MB", "1 MB"]
        );
        let amount = |limit| Amount { bytes: 3_900_000_000, limit }.to_string();
        assert_eq!([None, Some("ulimit -v")].map(amount), ["3.9 GB", "3.9 GB (ulimit -v)"]);
    }
}
