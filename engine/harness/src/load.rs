//! Notices when other programs use the cores that a measurement needs.

use std::fs;
use std::time::Instant;

use crate::machine::available_cores;
use crate::verdict::SHORTEST;

/// A run that gets less of its cores was held up, if the cores were not idle.
const ENOUGH: f64 = 0.85;

/// A machine is busy from this share of its cores on.
const BUSY: f64 = 0.9;

/// The processor time of this process and of the whole machine, up to a moment.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    at: Instant,
    /// `None` where the system has no `/proc`.
    ticks: Option<Ticks>,
}

/// Processor time in the system's unit, over all cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ticks {
    own: u64,
    busy: u64,
    all: u64,
}

impl Load {
    /// Reads the processor times of this moment.
    pub fn now() -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let ticks = Ticks::read(&read("/proc/self/stat"), &read("/proc/stat"));
        Self { at: Instant::now(), ticks }
    }

    /// Returns a note if other programs have used the cores since then, while `threads` threads had work. Only Linux counts that.
    pub fn note(&self, threads: usize) -> Option<String> {
        let (before, after) = (self.ticks?, Self::now().ticks?);
        note(before, after, self.at.elapsed().as_secs_f64(), threads.min(available_cores()))
    }
}

/// The note about a measurement of `seconds` on `cores` cores. A process that waits on an idle machine has no note, and
/// neither has a short measurement: the system counts processor time in hundredths of a second.
fn note(before: Ticks, after: Ticks, seconds: f64, cores: usize) -> Option<String> {
    let share = (after.own - before.own) as f64 / 100.0 / (seconds * cores as f64);
    let busy =
        after.busy.checked_sub(before.busy)? as f64 / after.all.checked_sub(before.all)? as f64;
    let percent = 100.0 * share;
    (seconds >= SHORTEST && share < ENOUGH && busy > BUSY).then(|| {
        format!("other programs used the cores: this run got {percent:.0} % of its processor time, so its times are not reliable")
    })
}

impl Ticks {
    /// Reads the texts of `/proc/self/stat` and `/proc/stat`.
    fn read(process: &str, machine: &str) -> Option<Self> {
        // The second field is the program's name in parentheses, and a name may have spaces.
        let fields: Vec<&str> = process.rsplit_once(')')?.1.split_whitespace().collect();
        let ticks = |at: usize| fields.get(at)?.parse::<u64>().ok();
        let own = ticks(11)? + ticks(12)?;
        // user, nice, system, idle, waiting for a disk, interrupts, soft interrupts, taken by other virtual machines.
        let line = machine.lines().next()?.strip_prefix("cpu ")?;
        let machine: Vec<u64> = line.split_whitespace().flat_map(str::parse).take(8).collect();
        let all: u64 = machine.iter().sum();
        Some(Self { own, busy: all - machine.get(3)? - machine.get(4)?, all })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_texts_of_linux_are_read() {
        let process = "42 (a (b) c) R 1 2 3 4 -1 6 7 8 9 10 1234 56 0 0 20 0 3 0";
        let machine = "cpu  100 20 30 800 50 6 7 8 900 0\ncpu0 1 2 3 4 5 6 7 8 9 0\n";
        let ticks = Ticks { own: 1290, busy: 171, all: 1021 };
        assert_eq!(Ticks::read(process, machine), Some(ticks));
        assert_eq!(Ticks::read("", machine), None);
        assert_eq!(Ticks::read(process, "cpu0 1 2 3"), None);
    }

    #[test]
    fn a_run_that_others_hold_up_has_a_note_and_no_other_run() {
        // Ten seconds on a machine of two cores: 2000 ticks in all.
        let note = |own: u64, busy: u64, cores| {
            let ticks = |own, busy, all| Ticks { own, busy, all };
            note(ticks(5, 7, 9), ticks(5 + own, 7 + busy, 2009), 10.0, cores)
        };
        let text = note(1220, 2000, 2).unwrap();
        assert!(text.contains("this run got 61 % of its processor time"), "{text}");
        assert_eq!(note(1900, 2000, 2), None, "nearly all of the time");
        assert_eq!(note(1220, 1250, 2), None, "it waited for itself");
        assert_eq!(note(990, 2000, 1), None, "others used the other core");
        assert!(note(500, 2000, 1).is_some());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_busy_thread_takes_processor_time() {
        let before = Load::now();
        let mut spun = 0u64;
        while before.at.elapsed().as_millis() < 300 {
            spun = std::hint::black_box(spun + 1);
        }
        let (before, after) = (before.ticks.unwrap(), Load::now().ticks.unwrap());
        assert!(after.own > before.own && after.busy > before.busy && after.all > before.all);
    }
}
