//! A Gantt chart: each stage's predicted and measured step, one below the other, along one axis of time.

use harness::report::chart::{Bar, Chart, Colour, Row};

use super::{Span, Timeline};
use crate::pipeline::schedule::Action;

/// A step of one pipeline, as it was expected and as it was.
#[derive(Clone, Copy, Debug)]
pub struct Beside<'a> {
    /// Above its rows.
    pub name: &'a str,
    /// From what its layers cost.
    pub predicted: &'a Timeline,
    /// By itself.
    pub measured: &'a Timeline,
}

/// The chart of one or several pipelines; each begins at 0.
///
/// Where nothing is drawn, a stage waits, sends or receives.
pub fn chart(title: &str, pipelines: &[Beside<'_>]) -> Chart {
    let both = pipelines.iter().flat_map(|beside| [beside.predicted, beside.measured]);
    let seconds = both.map(Timeline::makespan).fold(0.0, f64::max);
    let group = |beside: &Beside<'_>| {
        let percent = |timeline: &Timeline| timeline.bubble() * 100.0;
        let heading = format!(
            "{}: bubble {:.0} % predicted (pale), {:.0} % measured",
            beside.name,
            percent(beside.predicted),
            percent(beside.measured)
        );
        let rows = (0..beside.measured.stages).flat_map(|stage| {
            let predicted = row(beside.predicted, stage, format!("stage {stage} predicted"), true);
            [predicted, row(beside.measured, stage, "measured".to_owned(), false)]
        });
        (Some(heading), rows.collect())
    };
    let groups = pipelines.iter().map(group).collect();
    let title = format!("{title}: one step; micro-batches forward (blue), backward (green)");
    Chart { title, seconds, groups }
}

fn row(timeline: &Timeline, stage: usize, name: String, pale: bool) -> Row {
    let start = timeline.start();
    let bar = |span: &Span| {
        let (label, colour) = match span.instruction.action {
            Action::Forward(i) => (i.to_string(), Colour::Blue),
            Action::Backward(i) | Action::BackwardInput(i) => (i.to_string(), Colour::Green),
            Action::BackwardWeight(i) => (i.to_string(), Colour::Purple),
            _ => return None,
        };
        Some(Bar { start: span.start - start, end: span.end - start, label, colour })
    };
    Row { name, bars: timeline.of_stage(stage).filter_map(bar).collect(), pale }
}

#[cfg(test)]
mod tests {
    use crate::pipeline::channel::UNBOUNDED;
    use crate::pipeline::predict::{Costs, StageCost};
    use crate::pipeline::{Kind, check, predict};

    use super::*;

    #[test]
    fn every_stage_is_drawn_twice_with_its_passes() {
        let cost =
            StageCost { forward: 0.01, backward_input: 0.01, backward_weight: 0.01, update: 0.0 };
        let checked = check(Kind::OneFOneB.schedule(2, 3).unwrap(), UNBOUNDED).unwrap();
        let predicted = predict(&checked, &Costs::equal(2, cost)).unwrap();
        let mut measured = predicted.clone();
        for span in &mut measured.spans {
            // Another origin, and half as quick.
            (span.start, span.end) = (span.start * 2.0 + 5.0, span.end * 2.0 + 5.0);
        }
        let beside = Beside { name: "1F1B", predicted: &predicted, measured: &measured };
        let chart = chart("title", &[beside]);
        assert!((chart.seconds - measured.makespan()).abs() < 1e-12);
        let [(heading, rows)] = chart.groups.as_slice() else { panic!("{:?}", chart.groups) };
        assert!(heading.as_ref().unwrap().contains("bubble 25 % predicted"), "{heading:?}");
        assert_eq!(rows.len(), 4);
        assert!(rows.iter().all(|row| row.bars.len() == 6));
        assert_eq!(rows.iter().map(|row| row.pale).collect::<Vec<_>>(), [true, false, true, false]);
        assert!(rows[1].bars[0].start.abs() < 1e-12);
        assert!(chart.svg().unwrap().contains("stage 1 predicted"));
    }
}
