//! The free memory of this machine.

use std::fs::read_to_string;
use std::path::Path;

/// Returns the bytes of memory that this process can still take on Linux. `None` if the system does not report them.
///
/// A container may have less memory than its machine, so the limits of its control groups count, too.
pub fn available() -> Option<u64> {
    let machine = of_machine(&read_to_string("/proc/meminfo").ok()?)?;
    let groups = read_to_string("/proc/self/cgroup").unwrap_or_default();
    Some(groups.lines().filter_map(of_groups).fold(machine, u64::min))
}

/// Reads the free memory of the machine from `/proc/meminfo`.
fn of_machine(info: &str) -> Option<u64> {
    let free = info.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    free.trim().strip_suffix(" kB")?.parse::<u64>().ok()?.checked_mul(1024)
}

/// Returns the least memory that a control group and its ancestors leave. `line` is a line of `/proc/self/cgroup`.
fn of_groups(line: &str) -> Option<u64> {
    let (root, path, [limit, used]) = files(line)?;
    let left = |group: &Path| {
        let text = |file| read_to_string(root.join(group).join(file)).ok();
        of_group(&text(limit)?, &text(used)?, &text("memory.stat")?)
    };
    // In a container, the path may be that of the host. Then only the root exists.
    path.ancestors().filter_map(left).min()
}

/// Returns the folder of a hierarchy of control groups, the group's path below the folder, and the files with the limit
/// and the used memory. `None` for a line of `/proc/self/cgroup` that is not about memory.
fn files(line: &str) -> Option<(&'static Path, &Path, [&'static str; 2])> {
    let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
    let path = Path::new(path.trim_start_matches('/'));
    match controllers {
        "" => Some((Path::new("/sys/fs/cgroup"), path, ["memory.max", "memory.current"])),
        _ if controllers.split(',').any(|controller| controller == "memory") => {
            let files = ["memory.limit_in_bytes", "memory.usage_in_bytes"];
            Some((Path::new("/sys/fs/cgroup/memory"), path, files))
        }
        _ => None,
    }
}

/// Reads the free memory of a control group from its files. The system reclaims cached files, so they count as free.
/// `None` without a limit.
fn of_group(limit: &str, used: &str, statistics: &str) -> Option<u64> {
    let number = |text: &str| text.trim().parse::<u64>().ok();
    let cached = |name: &str| {
        let of_name = statistics.lines().find_map(|line| line.strip_prefix(name));
        of_name.and_then(number).unwrap_or(0)
    };
    // The first version of control groups has sums over descendants under these names, the second version has no others.
    let total = cached("total_inactive_file ") + cached("total_active_file ");
    let cached = if total > 0 { total } else { cached("inactive_file ") + cached("active_file ") };
    Some(number(limit)?.saturating_sub(number(used)?.saturating_sub(cached)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_a_machine_is_what_programs_can_take() {
        let info = "MemTotal:       24684084 kB\nMemFree:        20436660 kB\nMemAvailable:   23753824 kB\n";
        assert_eq!(of_machine(info), Some(23_753_824 * 1024));
        // Kernels before 3.14 have no such line.
        assert_eq!(of_machine("MemTotal: 24684084 kB\nMemFree: 20436660 kB\n"), None);
        assert_eq!(of_machine("MemAvailable: many kB\n"), None);
    }

    #[test]
    fn a_group_has_its_limit_without_what_is_used_and_not_reclaimable() {
        let statistics = "anon 3000\nfile 700\ninactive_file 500\nactive_file 100\n";
        assert_eq!(of_group("10000\n", "4000\n", statistics), Some(6600));
        assert_eq!(of_group("max\n", "4000\n", statistics), None);
        assert_eq!(of_group("3000\n", "4000\n", statistics), Some(0));
        let first = "cache 9\ninactive_file 1\nactive_file 1\ntotal_inactive_file 500\ntotal_active_file 200\n";
        assert_eq!(of_group("10000\n", "4000\n", first), Some(6700));
    }

    #[test]
    fn both_versions_of_control_groups_have_their_files() {
        let of_line = |line| {
            let (root, path, [limit, _]) = files(line)?;
            Some(root.join(path).join(limit).display().to_string())
        };
        let first = "/sys/fs/cgroup/memory/docker/a1/memory.limit_in_bytes".to_owned();
        assert_eq!(of_line("4:memory:/docker/a1"), Some(first.clone()));
        assert_eq!(of_line("4:hugetlb,memory:/docker/a1"), Some(first));
        let second = "/sys/fs/cgroup/user.slice/memory.max".to_owned();
        assert_eq!(of_line("0::/user.slice"), Some(second));
        assert_eq!(of_line("0::/"), Some("/sys/fs/cgroup/memory.max".to_owned()));
        for other in ["3:cpuset:/docker/a1", "2:cpu,cpuacct:/", "", "nonsense"] {
            assert_eq!(of_line(other), None, "{other}");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_machine_has_free_memory() {
        let free = available().expect("Linux reports its memory");
        assert!((1 << 20..1 << 50).contains(&free), "{free}");
    }
}
