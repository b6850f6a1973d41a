//! The parts of a run in which its GPUs are looked at: its epochs, without what comes before their second steps.
//!
//! Between epochs test images are evaluated, and other runs of a comparison take their turn. In a first step, kernels are
//! compiled and cuDNN makes its plans.

use std::time::{Duration, Instant};

use itertools::Itertools as _;

use super::{STEPS, View};

/// From, and until.
pub(super) type Interval = (Instant, Instant);

/// When a run's GPUs are looked at.
#[derive(Debug)]
pub(super) struct Windows {
    /// In order; no two overlap.
    intervals: Vec<Interval>,
    /// Steps of a rank that begin within.
    pub(super) steps: usize,
    /// Whether each epoch's first step is left out.
    pub(super) without_first: bool,
}

impl Windows {
    /// Of a run, by its spans; nothing counts that was done later than `until`. `None` if there was no step.
    ///
    /// If no epoch has a second step, first steps count too.
    pub(super) fn of(spans: &[View], began: Instant, until: Option<Instant>) -> Option<Self> {
        let named =
            |name| spans.iter().filter(move |span| span.target == STEPS && span.name == name);
        let interval = |span: &View| (began + span.start, began + span.end());
        // Ranks begin and end their epochs at about the same time.
        let epochs = merged(named("epoch").map(interval)).collect_vec();
        let steps = named("step").map(|step| (step.rank, interval(step))).collect_vec();
        let later = |&(from, until): &Interval| {
            let within = steps.iter().filter(|(_, step)| (from..until).contains(&step.0));
            let within = within.copied().collect_vec();
            let firsts = within.iter().copied().into_grouping_map().min();
            let all_began = firsts.into_values().map(|(_, end)| end).max()?;
            within.iter().any(|(_, step)| step.0 >= all_began).then_some((all_began, until))
        };
        let later = epochs.iter().filter_map(later).collect_vec();
        let without_first = !later.is_empty();
        let chosen = if without_first { later } else { epochs };
        let until = |(from, to): Interval| (from, until.map_or(to, |until| until.min(to)));
        let intervals = chosen.into_iter().map(until).filter(|(from, to)| from < to).collect_vec();
        let mut windows = Self { intervals, steps: 0, without_first };
        let begin_within = steps.iter().filter(|(_, step)| windows.contain(step.0));
        // As all ranks make the same steps.
        windows.steps = begin_within.counts_by(|(rank, _)| rank).into_values().max()?;
        Some(windows)
    }

    fn contain(&self, time: Instant) -> bool {
        self.intervals.iter().any(|&(from, until)| (from..until).contains(&time))
    }

    /// The parts of an interval that lie within.
    pub(super) fn parts(&self, (start, end): Interval) -> impl Iterator<Item = Interval> {
        let first = self.intervals.partition_point(|&(_, until)| until <= start);
        let touched = self.intervals[first..].iter().take_while(move |&&(from, _)| from < end);
        let parts = touched.map(move |&(from, until)| (start.max(from), end.min(until)));
        parts.filter(|(start, end)| start < end)
    }

    /// How long they are together.
    pub(super) fn time(&self) -> Duration {
        self.intervals.iter().map(|&(from, until)| until - from).sum()
    }
}

/// Intervals in order, those that overlap as one.
fn merged(intervals: impl Iterator<Item = Interval>) -> impl Iterator<Item = Interval> {
    intervals.sorted().coalesce(|(start, end), next| match next.0 <= end {
        true => Ok((start, end.max(next.1))),
        false => Err(((start, end), next)),
    })
}

/// How much time intervals cover, those that overlap once.
pub(super) fn covered(intervals: impl Iterator<Item = Interval>) -> Duration {
    merged(intervals).map(|(start, end)| end - start).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    fn span(name: &'static str, rank: usize, [start, end]: [u64; 2]) -> View {
        let (start, duration) = (ms(start), ms(end - start));
        View { run: 0, rank, target: STEPS, name, number: None, start, duration }
    }

    /// The windows' beginnings and ends, in milliseconds, and their steps.
    fn windows(spans: &[View], until: Option<u64>) -> Option<(Vec<[u128; 2]>, usize, bool)> {
        let began = Instant::now();
        let windows = Windows::of(spans, began, until.map(|until| began + ms(until)))?;
        let since = |time: Instant| (time - began).as_millis();
        let intervals = windows.intervals.iter().map(|&(from, to)| [since(from), since(to)]);
        Some((intervals.collect(), windows.steps, windows.without_first))
    }

    #[test]
    fn they_are_epochs_without_first_steps_on_any_rank() {
        let mut spans = vec![span("epoch", 0, [10, 50]), span("epoch", 0, [60, 100])];
        for (rank, delay) in [(0, 0), (1, 2)] {
            for start in [10, 20, 30, 60, 70, 80] {
                let start = start + delay;
                spans.push(span("step", rank, [start, start + 8]));
            }
        }
        // Rank 1 of the second epoch ends it later.
        spans.push(span("epoch", 1, [62, 103]));
        assert_eq!(windows(&spans, None), Some((vec![[20, 50], [70, 103]], 4, true)));
        assert_eq!(windows(&spans, Some(80)), Some((vec![[20, 50], [70, 80]], 3, true)));
        assert_eq!(windows(&spans, Some(60)), Some((vec![[20, 50]], 2, true)));
        assert_eq!(windows(&spans, Some(15)), None);
    }

    #[test]
    fn where_there_is_no_second_step_the_first_counts() {
        let spans = [span("epoch", 0, [10, 50]), span("step", 0, [12, 40])];
        assert_eq!(windows(&spans, None), Some((vec![[10, 50]], 1, false)));
        assert_eq!(windows(&spans[..1], None), None);
    }
}
