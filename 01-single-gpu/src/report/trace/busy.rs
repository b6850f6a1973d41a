//! What became of a GPU's time in a run: kernels, collectives and copies beside which no kernel ran, or idle.

use std::collections::HashMap;
use std::fmt;
use std::time::{Duration, Instant};

use itertools::Itertools as _;

use super::events::{Recorded, Span};
use super::windows::{Windows, covered};
use crate::device::activity::{Activity, Kind, Told};
use crate::report::{counted, seconds};

/// Kinds of activities that are told by themselves: those that took longest.
const LONGEST: usize = 12;

/// How many characters of a kernel's name are told.
const NAME: usize = 60;

/// What became of a GPU's time in the epochs of a run.
#[derive(Debug)]
pub(in crate::report) struct Busy {
    run: String,
    device: String,
    steps: usize,
    /// Whether first steps do not count.
    without_first: bool,
    time: Duration,
    /// While kernels ran that are not NCCL's.
    kernels: Duration,
    /// While NCCL's ran and no other: a rank that waits for others waits in one.
    collectives: Duration,
    /// While there was something to do, with kernels or without.
    busy: Duration,
    /// Names, how often, and how long in all: the longest first.
    of_kinds: Vec<(String, usize, Duration)>,
}

impl Busy {
    /// Of all runs, and all GPUs that they had.
    pub(super) fn of(recorded: &Recorded, told: &Told, began: Instant) -> Vec<Self> {
        let spans = recorded.spans.iter().map(Span::view).into_group_map_by(|span| span.run);
        let of_run = |(run, name): (usize, &String)| {
            let windows = Windows::of(spans.get(&run)?, began, told.whole_until)?;
            let of_gpu = |gpu| Self::of_gpu(name, gpu, &windows, &told.activities);
            Some(gpus(recorded, run).sorted().filter_map(of_gpu).collect_vec())
        };
        recorded.runs.iter().enumerate().filter_map(of_run).flatten().collect()
    }

    /// The runs that had GPUs of which none of these tells.
    pub(super) fn untold<'a>(recorded: &'a Recorded, told: &[Self]) -> Vec<&'a str> {
        let had_gpus = |run| gpus(recorded, run).next().is_some();
        let runs = recorded.runs.iter().enumerate();
        let untold =
            runs.filter(|(run, name)| had_gpus(*run) && told.iter().all(|busy| busy.run != **name));
        untold.map(|(_, name)| name.as_str()).collect()
    }

    fn of_gpu(run: &str, gpu: u32, windows: &Windows, activities: &[Activity]) -> Option<Self> {
        let of_gpu = activities.iter().filter(|activity| activity.device == gpu);
        let parts = of_gpu.flat_map(|activity| {
            let parts = windows.parts((activity.start, activity.end));
            parts.map(move |part| (&activity.kind, part))
        });
        let parts = parts.collect_vec();
        let covered_by = |counts: fn(&Kind) -> bool| {
            covered(parts.iter().filter(|(kind, _)| counts(kind)).map(|&(_, part)| part))
        };
        let kernels = covered_by(|kind| is_kernel(kind) && !is_collective(kind));
        let mut of_kinds: HashMap<&str, (usize, Duration)> = HashMap::new();
        for &(kind, (start, end)) in &parts {
            let (times, sum) = of_kinds.entry(kind.name()).or_default();
            *times += 1;
            *sum += end - start;
        }
        if of_kinds.is_empty() {
            return None;
        }
        let of_kinds =
            of_kinds.into_iter().map(|(name, (times, sum))| (name.to_owned(), times, sum));
        Some(Self {
            run: run.to_owned(),
            device: format!("cuda:{gpu}"),
            steps: windows.steps,
            without_first: windows.without_first,
            time: windows.time(),
            kernels,
            collectives: covered_by(is_kernel) - kernels,
            busy: covered_by(|_| true),
            of_kinds: of_kinds
                .sorted_by(|a, b| b.2.cmp(&a.2).then_with(|| a.0.cmp(&b.0)))
                .collect(),
        })
    }
}

/// The numbers of a run's GPUs.
fn gpus(recorded: &Recorded, run: usize) -> impl Iterator<Item = u32> {
    let ranks = recorded.ranks.iter().filter(move |(place, _)| place.run == run);
    ranks.filter_map(|(_, device)| number(device)).unique()
}

/// The number of a rank's GPU, if it has one.
fn number(device: &str) -> Option<u32> {
    // Ranks that share a GPU say so behind its name.
    device.strip_prefix("cuda:")?.split(' ').next()?.parse().ok()
}

fn is_kernel(kind: &Kind) -> bool {
    matches!(kind, Kind::Kernel(_))
}

fn is_collective(kind: &Kind) -> bool {
    kind.name().starts_with("nccl")
}

/// A name, or its beginning and its end, where cuDNN's say of what size their tiles are.
fn shortened(name: &str) -> String {
    let length = name.chars().count();
    if length <= NAME {
        return name.to_owned();
    }
    let half = NAME / 2;
    let (begin, end) = (name.chars().take(half), name.chars().skip(length - (NAME - half - 1)));
    begin.chain(['…']).chain(end).collect()
}

impl fmt::Display for Busy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { run, device, time, .. } = self;
        let share = |of: Duration| 100.0 * of.as_secs_f64() / time.as_secs_f64();
        let which = if self.without_first { " (without each epoch's first)" } else { "" };
        write!(
            f,
            "{device} in {} of \"{run}\"{which}, {} s: kernels {:.1} %, ",
            counted(self.steps, "step"),
            seconds(time.as_secs_f64()),
            share(self.kernels),
        )?;
        if !self.collectives.is_zero() {
            write!(f, "NCCL alone {:.1} %, ", share(self.collectives))?;
        }
        let with_kernels = self.kernels + self.collectives;
        write!(
            f,
            "copies alone {:.1} %, idle {:.1} %",
            share(self.busy - with_kernels),
            share(*time - self.busy),
        )?;
        for (name, times, sum) in self.of_kinds.iter().take(LONGEST) {
            let each = sum.as_secs_f64() * 1e6 / *times as f64;
            let a_step = *times as f64 / self.steps as f64;
            let (share, name) = (share(*sum), shortened(name));
            write!(f, "\n  {share:5.1} %  {a_step:6.1} a step  {each:8.1} µs each  {name}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::events::{Fields, Place};
    use super::super::{STEPS, TRACKS};
    use super::*;

    fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    /// Epochs and steps of ranks at these milliseconds.
    fn recorded(device: &str, spans: &[(&'static str, usize, [u64; 2])]) -> Recorded {
        let span = |&(name, rank, [start, end]): &(&'static str, usize, [u64; 2])| Span {
            name,
            track: TRACKS.iter().position(|track| *track == STEPS).unwrap(),
            place: Place { run: 0, rank },
            start: ms(start),
            duration: ms(end - start),
            fields: Fields::default(),
        };
        let ranks = spans.iter().map(|&(_, rank, _)| (Place { run: 0, rank }, device.to_owned()));
        Recorded {
            runs: vec!["one".to_owned()],
            ranks: ranks.collect(),
            spans: spans.iter().map(span).collect(),
            left_out: 0,
        }
    }

    /// Three steps, of which the first does not count: 100 ms.
    fn steps(device: &str) -> Recorded {
        let spans = [("epoch", 0, [0, 110]), ("step", 0, [0, 10]), ("step", 0, [10, 60])];
        recorded(device, &[spans.as_slice(), &[("step", 0, [60, 110])]].concat())
    }

    fn activity(began: Instant, kind: Kind, [start, end]: [u64; 2]) -> Activity {
        Activity { device: 0, stream: 7, kind, start: began + ms(start), end: began + ms(end) }
    }

    fn kernel(name: &str) -> Kind {
        Kind::Kernel(name.into())
    }

    fn told(activities: impl Into<Vec<Activity>>) -> Told {
        Told { activities: activities.into(), ..Told::default() }
    }

    #[test]
    fn time_is_of_kernels_of_copies_alone_and_of_nothing() {
        let began = Instant::now();
        let activities = [
            // Before the second step, and across its beginning.
            activity(began, kernel("early"), [0, 5]),
            activity(began, kernel("first"), [5, 20]),
            // Two at once, and a copy half beside one of them.
            activity(began, kernel("second"), [30, 50]),
            activity(began, kernel("second"), [40, 60]),
            activity(began, Kind::Copy("copy to the GPU"), [50, 70]),
            activity(began, Kind::Memset, [80, 85]),
            Activity { device: 1, ..activity(began, kernel("elsewhere"), [20, 30]) },
        ];
        let recorded = steps("cuda:0 (shared)");
        let [busy] = Busy::of(&recorded, &told(activities), began).try_into().unwrap();
        let expected = [
            "cuda:0 in 2 steps of \"one\" (without each epoch's first), 0.10 s: kernels 40.0 %, copies alone 15.0 %, \
             idle 45.0 %",
            "   40.0 %     1.0 a step   20000.0 µs each  second",
            "   20.0 %     0.5 a step   20000.0 µs each  copy to the GPU",
            "   10.0 %     0.5 a step   10000.0 µs each  first",
            "    5.0 %     0.5 a step    5000.0 µs each  memset",
        ];
        assert_eq!(busy.to_string().lines().collect_vec(), expected);
    }

    #[test]
    fn who_waits_for_others_in_nccl_is_not_said_to_compute() {
        let began = Instant::now();
        let activities = [
            activity(began, kernel("one"), [10, 30]),
            activity(began, kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL"), [20, 60]),
            activity(began, Kind::Copy("copy to the GPU"), [50, 70]),
        ];
        let busy = &Busy::of(&steps("cuda:0"), &told(activities), began)[0];
        let line = busy.to_string();
        let end = "kernels 20.0 %, NCCL alone 30.0 %, copies alone 10.0 %, idle 40.0 %";
        assert_eq!(line.lines().next().unwrap().split_once(" s: ").unwrap().1, end);
    }

    #[test]
    fn nothing_is_said_of_the_time_after_something_was_left_out() {
        let began = Instant::now();
        let whole_until = Some(began + ms(60));
        let activities = vec![activity(began, kernel("some"), [20, 45])];
        let told = Told { activities, left_out: 9, whole_until, ..Told::default() };
        let line = Busy::of(&steps("cuda:0"), &told, began)[0].to_string();
        assert!(line.starts_with("cuda:0 in 1 step of "), "{line}");
        assert!(line.contains("kernels 50.0 %"), "{line}");
    }

    #[test]
    fn where_nothing_was_told_nothing_is() {
        let began = Instant::now();
        let recorded_on_gpu = steps("cuda:0");
        assert!(Busy::of(&recorded_on_gpu, &Told::default(), began).is_empty());
        assert_eq!(Busy::untold(&recorded_on_gpu, &[]), ["one"]);
        let told = told([activity(began, kernel("some"), [20, 30])]);
        let recorded_on_cpu = steps("cpu:0 (2 cores)");
        assert!(Busy::of(&recorded_on_cpu, &told, began).is_empty());
        assert!(Busy::untold(&recorded_on_cpu, &[]).is_empty());
        let busy = Busy::of(&recorded_on_gpu, &told, began);
        assert!(Busy::untold(&recorded_on_gpu, &busy).is_empty());
        assert!(Busy::of(&recorded("cuda:0", &[]), &told, began).is_empty());
    }

    #[test]
    fn of_a_long_name_both_ends_are_told() {
        let name = format!("sm90_{}_tilesize128x64", "x".repeat(60));
        let short = shortened(&name);
        assert_eq!(short.chars().count(), NAME);
        assert!(short.starts_with("sm90_x") && short.ends_with("_tilesize128x64"), "{short}");
        assert_eq!(shortened("descend_8"), "descend_8");
    }
}
