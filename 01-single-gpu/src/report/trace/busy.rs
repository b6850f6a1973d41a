//! What became of a GPU's time in a run: kernels, copies beside which no kernel ran, and nothing.

use std::collections::HashMap;
use std::fmt;
use std::time::{Duration, Instant};

use itertools::Itertools as _;

use super::STEPS;
use super::events::{Recorded, Span};
use crate::device::activity::{Activity, Kind};
use crate::report::{counted, seconds};

/// Kinds of activities that are told by themselves: those that took longest.
const TOLD: usize = 12;

/// A GPU's time, from a run's first step to its last.
#[derive(Debug)]
pub(in crate::report) struct Busy {
    run: String,
    device: String,
    steps: usize,
    time: Duration,
    /// While kernels ran.
    kernels: Duration,
    /// While there was something to do, with kernels or without.
    busy: Duration,
    /// Names, how often, and how long in all: the longest first.
    of_kinds: Vec<(String, usize, Duration)>,
}

impl Busy {
    /// Of all runs, and all GPUs that they had.
    pub(super) fn of(recorded: &Recorded, activities: &[Activity], began: Instant) -> Vec<Self> {
        let of_run = |(run, name): (usize, &String)| {
            let ranks = recorded.ranks.iter().filter(|(place, _)| place.run == run);
            // Ranks that share a GPU say so behind its name.
            let gpu = |(_, device): &(_, String)| device.split(' ').next().map(str::to_owned);
            let gpus = ranks.filter_map(gpu).unique().sorted().collect_vec();
            let steps = recorded.spans.iter().filter(|span| {
                let view = span.view();
                (view.run, view.target) == (run, STEPS) && view.name == "step"
            });
            let steps = steps.collect_vec();
            gpus.into_iter()
                .filter_map(|gpu| Self::of_steps(name, gpu, &steps, activities, began))
                .collect_vec()
        };
        recorded.runs.iter().enumerate().flat_map(of_run).collect()
    }

    fn of_steps(
        run: &str,
        device: String,
        steps: &[&Span],
        activities: &[Activity],
        began: Instant,
    ) -> Option<Self> {
        let first = began + steps.iter().map(|step| step.start).min()?;
        let last = began + steps.iter().map(|step| step.start + step.duration).max()?;
        let within = |activity: &&Activity| {
            format!("cuda:{}", activity.device) == device
                && activity.start < last
                && activity.end > first
        };
        let within = activities.iter().filter(within).collect_vec();
        if within.is_empty() {
            return None;
        }
        let clipped = |of: &Activity| (of.start.max(first), of.end.min(last));
        let kernels = within.iter().filter(|activity| matches!(activity.kind, Kind::Kernel(_)));
        let mut of_kinds: HashMap<&str, (usize, Duration)> = HashMap::new();
        for activity in &within {
            let (times, sum) = of_kinds.entry(activity.kind.name()).or_default();
            *times += 1;
            *sum += activity.end - activity.start;
        }
        let of_kinds =
            of_kinds.into_iter().map(|(name, (times, sum))| (name.to_owned(), times, sum));
        // Of one rank, as all ranks make the same steps.
        let of_ranks = steps.iter().counts_by(|step| step.place.rank);
        Some(Self {
            run: run.to_owned(),
            device,
            steps: of_ranks.into_values().max()?,
            time: last - first,
            kernels: covered(kernels.map(|activity| clipped(activity))),
            busy: covered(within.iter().map(|activity| clipped(activity))),
            of_kinds: of_kinds
                .sorted_by(|a, b| b.2.cmp(&a.2).then_with(|| a.0.cmp(&b.0)))
                .collect(),
        })
    }
}

/// How much time intervals cover, those that overlap once.
fn covered(intervals: impl Iterator<Item = (Instant, Instant)>) -> Duration {
    let merged = intervals.sorted().coalesce(|(start, end), next| match next.0 <= end {
        true => Ok((start, end.max(next.1))),
        false => Err(((start, end), next)),
    });
    merged.map(|(start, end)| end - start).sum()
}

impl fmt::Display for Busy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { run, device, steps, time, kernels, busy, of_kinds } = self;
        let share = |of: Duration| 100.0 * of.as_secs_f64() / time.as_secs_f64();
        write!(
            f,
            "{device} in {} of \"{run}\", {} s: kernels {:.1} %, copies alone {:.1} %, nothing {:.1} %",
            counted(*steps, "step"),
            seconds(time.as_secs_f64()),
            share(*kernels),
            share(*busy - *kernels),
            share(*time - *busy),
        )?;
        for (name, times, sum) in of_kinds.iter().take(TOLD) {
            let each = sum.as_secs_f64() * 1e6 / *times as f64;
            let a_step = *times as f64 / *steps as f64;
            let name: String = name.chars().take(60).collect();
            write!(
                f,
                "\n  {:5.1} %  {a_step:6.1} a step  {each:8.1} µs each  {name}",
                share(*sum)
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::events::{Fields, Place, Span};
    use super::super::{STEPS, TRACKS};
    use super::*;

    fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    /// Steps of each rank at these milliseconds.
    fn recorded(device: &str, steps: &[(usize, [u64; 2])]) -> Recorded {
        let span = |&(rank, [start, end]): &(usize, [u64; 2])| Span {
            name: "step",
            track: TRACKS.iter().position(|track| *track == STEPS).unwrap(),
            place: Place { run: 0, rank },
            start: ms(start),
            duration: ms(end - start),
            fields: Fields::default(),
        };
        let ranks =
            steps.iter().map(|(rank, _)| (Place { run: 0, rank: *rank }, device.to_owned()));
        Recorded {
            runs: vec!["one".to_owned()],
            ranks: ranks.collect(),
            spans: steps.iter().map(span).collect(),
            left_out: 0,
        }
    }

    fn activity(began: Instant, kind: Kind, [start, end]: [u64; 2]) -> Activity {
        Activity { device: 0, stream: 7, kind, start: began + ms(start), end: began + ms(end) }
    }

    fn kernel(name: &str) -> Kind {
        Kind::Kernel(name.into())
    }

    #[test]
    fn time_is_of_kernels_of_copies_alone_and_of_nothing() {
        let began = Instant::now();
        let recorded = recorded("cuda:0 (shared)", &[(0, [10, 60]), (1, [12, 58]), (0, [60, 110])]);
        let activities = [
            // Before the first step, and across its beginning.
            activity(began, kernel("early"), [0, 5]),
            activity(began, kernel("first"), [5, 20]),
            // Two at once, and a copy half beside one of them.
            activity(began, kernel("second"), [30, 50]),
            activity(began, kernel("second"), [40, 60]),
            activity(began, Kind::Copy("copy to the GPU"), [50, 70]),
            activity(began, Kind::Set, [80, 85]),
            Activity { device: 1, ..activity(began, kernel("elsewhere"), [20, 30]) },
        ];
        let [busy] = Busy::of(&recorded, &activities, began).try_into().unwrap();
        assert_eq!((busy.steps, busy.time), (2, ms(100)));
        assert_eq!((busy.kernels, busy.busy), (ms(40), ms(55)));
        let told = busy.to_string();
        let lines: Vec<&str> = told.lines().collect();
        assert_eq!(
            lines[0],
            "cuda:0 in 2 steps of \"one\", 0.10 s: kernels 40.0 %, copies alone 15.0 %, nothing 45.0 %"
        );
        assert_eq!(lines[1], "   40.0 %     1.0 a step   20000.0 µs each  second");
        assert_eq!(lines[2], "   20.0 %     0.5 a step   20000.0 µs each  copy to the GPU");
        assert_eq!(lines.len(), 5);
    }

    #[test]
    fn where_nothing_was_told_nothing_is() {
        let began = Instant::now();
        assert!(Busy::of(&recorded("cuda:0", &[(0, [10, 60])]), &[], began).is_empty());
        let of_cpu = recorded("cpu:0 (2 cores)", &[(0, [10, 60])]);
        let activities = [activity(began, kernel("some"), [20, 30])];
        assert!(Busy::of(&of_cpu, &activities, began).is_empty());
        assert!(Busy::of(&recorded("cuda:0", &[]), &activities, began).is_empty());
    }
}
