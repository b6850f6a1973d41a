//! Drawings of a timeline: as text, and as a Gantt chart.

use harness::report::chart::{Bar, Chart, Colour, Row};
use harness::report::number;

use super::schedule::{Action, Instruction};
use super::timeline::{Span, Timeline};

/// The least width of a column of text: `F12` or `B3a`, and a space.
const COLUMN: usize = 4;

/// A column in which the device waits.
const WAITS: &str = "··";

impl Timeline {
    /// Draws a row of text for each stage, with a column for every `seconds`. A drawing of more than `most` characters a line
    /// is cut into parts below each other, each below a line with the time of its first column.
    ///
    /// `F` is a forward pass, `B` a backward pass or its first half, and `W` its second half. The number is the
    /// micro-batch. With several chunks a letter names the chunk. `··` is a column in which the device waits.
    pub fn drawing(&self, seconds: f64, most: usize) -> String {
        let chunks = self.spans.iter().any(|span| span.instruction.chunk > 0);
        let start = self.start();
        let column = |time: f64| ((time - start) / seconds).round() as usize;
        let columns = column(start + self.makespan());
        let mut rows = vec![vec![WAITS.to_owned(); columns]; self.stages];
        for Span { stage, instruction: Instruction { chunk, action }, start, end } in &self.spans {
            if let (Some(row), Some((letter, _, i))) = (rows.get_mut(*stage), pass(*action)) {
                let chunk = char::from_u32('a' as u32 + *chunk as u32).filter(|_| chunks);
                let name = format!("{letter}{i}{}", chunk.map(String::from).unwrap_or_default());
                row[column(*start)..column(*end)].fill(name);
            }
        }
        let longest = rows.iter().flatten().map(|name| name.chars().count()).max().unwrap_or(0);
        let width = COLUMN.max(longest + 1);
        let digits = self.stages.saturating_sub(1).to_string().len();
        // The last column needs no space behind it.
        let room = most.saturating_sub("stage    ".len() + digits + longest);
        let each = room / width + 1;
        let part = |first: usize| {
            let row = |(stage, cells): (usize, &Vec<String>)| {
                let cells = cells.iter().skip(first).take(each);
                let cells: String = cells.map(|cell| format!("{cell:width$}")).collect();
                format!("stage {stage:<digits$}   {cells}").trim_end().to_owned() + "\n"
            };
            let begins = if columns > each {
                format!("from time {}:\n", number(first as f64 * seconds))
            } else {
                String::new()
            };
            begins + &rows.iter().enumerate().map(row).collect::<String>()
        };
        (0..columns.max(1)).step_by(each).map(part).collect()
    }
}

/// The letter, the colour and the micro-batch of a pass in a drawing, or `None` for an instruction that is not drawn.
fn pass(action: Action) -> Option<(char, Colour, usize)> {
    match action {
        Action::Forward(i) => Some(('F', Colour::Blue, i)),
        Action::Backward(i) | Action::BackwardInput(i) => Some(('B', Colour::Orange, i)),
        Action::BackwardWeight(i) => Some(('W', Colour::Green, i)),
        _ => None,
    }
}

/// Makes a Gantt chart of one or several pipelines, each with its name, its predicted step and its measured step. A stage
/// has its measured row below its predicted one. Every pipeline begins at 0. A stage waits, sends or receives where nothing
/// is drawn. The colours are the book's.
pub fn chart(title: &str, pipelines: &[(&str, [&Timeline; 2])]) -> Chart {
    let group = |&(name, both): &(&str, [&Timeline; 2])| {
        let rows = (0..both[1].stages).flat_map(|stage| {
            let [predicted, measured] = both;
            [row(predicted, stage, "predicted", true), row(measured, stage, "measured", false)]
        });
        (Some(format!("{name}: bubble {}", bubbles(both))), rows.collect())
    };
    let groups = pipelines.iter().map(group).collect();
    let timelines = pipelines.iter().flat_map(|(_, both)| *both);
    gantt(title, conclusion(pipelines), groups, timelines)
}

/// `7 % predicted, 21 % measured`
fn bubbles(both: [&Timeline; 2]) -> String {
    let [predicted, measured] = both.map(|timeline| timeline.bubble() * 100.0);
    format!("{predicted:.0} % predicted, {measured:.0} % measured")
}

/// Names the pipeline with the smallest measured bubble.
fn conclusion(pipelines: &[(&str, [&Timeline; 2])]) -> String {
    let best = pipelines.iter().min_by(|(_, a), (_, b)| a[1].bubble().total_cmp(&b[1].bubble()));
    match best {
        Some((_, both)) if pipelines.len() == 1 => format!("The bubble: {}.", bubbles(*both)),
        Some((name, both)) => format!("The smallest bubble: {name}, {}.", bubbles(*both)),
        None => String::new(),
    }
}

/// Makes a Gantt chart of predicted steps, each with its name, where one unit of time is a millisecond.
pub fn predicted_chart(title: &str, pipelines: &[(String, Timeline)]) -> Chart {
    let in_seconds = |(name, timeline): &(String, Timeline)| {
        let mut timeline = timeline.clone();
        for span in &mut timeline.spans {
            (span.start, span.end) = (span.start / 1e3, span.end / 1e3);
        }
        (name.clone(), timeline)
    };
    let pipelines: Vec<(String, Timeline)> = pipelines.iter().map(in_seconds).collect();
    let percent = |timeline: &Timeline| format!("{:.0} %", timeline.bubble() * 100.0);
    let group = |(name, timeline): &(String, Timeline)| {
        let rows = (0..timeline.stages).map(|stage| Row {
            name: format!("stage {stage}"),
            ..row(timeline, stage, "predicted", false)
        });
        (Some(format!("{name}: idle (bubble) {}", percent(timeline))), rows.collect())
    };
    let groups = pipelines.iter().map(group).collect();
    let best = pipelines.iter().min_by(|(_, a), (_, b)| a.bubble().total_cmp(&b.bubble()));
    let best = best.map(|(name, it)| format!("The smallest bubble: {name}, {}.", percent(it)));
    gantt(title, best.unwrap_or_default(), groups, pipelines.iter().map(|(_, timeline)| timeline))
}

/// Adds the title, the legend and the time axis to the groups of rows. `timelines` are those in the rows.
fn gantt<'a>(
    title: &str,
    conclusion: String,
    groups: Vec<(Option<String>, Vec<Row>)>,
    timelines: impl Iterator<Item = &'a Timeline> + Clone,
) -> Chart {
    let seconds = timelines.clone().map(Timeline::makespan).fold(0.0, f64::max);
    let mut legend = vec![
        (Colour::Blue, "forward, by micro-batch".to_owned()),
        (Colour::Orange, "backward".to_owned()),
    ];
    let mut spans = timelines.flat_map(|timeline| &timeline.spans);
    if spans.any(|span| matches!(span.instruction.action, Action::BackwardWeight(_))) {
        legend.push((Colour::Green, "backward, gradients of weights".to_owned()));
    }
    Chart { title: title.to_owned(), conclusion, legend, seconds, groups }
}

fn row(timeline: &Timeline, stage: usize, kind: &str, pale: bool) -> Row {
    let origin = timeline.start();
    let chunks = timeline.spans.iter().any(|span| span.instruction.chunk > 0);
    let bar = |&Span { instruction: Instruction { chunk, action }, start, end, .. }: &Span| {
        let (_, colour, i) = pass(action)?;
        let part = if chunks { format!(" of chunk {chunk}") } else { String::new() };
        let work = match action {
            Action::Forward(_) => "forward",
            Action::BackwardWeight(_) => "gradients of weights",
            _ => "backward",
        };
        let name = format!("stage {stage}, {kind}: {work}{part}, micro-batch {i}");
        let (start, end) = (start - origin, end - origin);
        Some(Bar { start, end, label: i.to_string(), name, colour })
    };
    let name = if pale { format!("stage {stage} {kind}") } else { kind.to_owned() };
    Row { name, bars: timeline.of_stage(stage).filter_map(bar).collect(), pale }
}

#[cfg(test)]
mod tests {
    use crate::partition::Cost;
    use crate::pipeline::schedule::UNBOUNDED;
    use crate::pipeline::{Kind, check, predict};

    use super::*;

    #[test]
    fn every_stage_is_drawn_twice_with_its_passes() {
        let cost = Cost { forward: 0.01, backward: 0.02, ..Cost::default() };
        let checked = check(Kind::OneFOneB.schedule(2, 3).unwrap(), UNBOUNDED).unwrap();
        let predicted = predict(&checked, &[cost; 2], 0.0).unwrap();
        let mut measured = predicted.clone();
        for span in &mut measured.spans {
            // Another origin, and half as quick.
            (span.start, span.end) = (span.start * 2.0 + 5.0, span.end * 2.0 + 5.0);
        }
        let chart = chart("title", &[("1F1B", [&predicted, &measured])]);
        assert!((chart.seconds - measured.makespan()).abs() < 1e-12);
        let [(heading, rows)] = chart.groups.as_slice() else { panic!("{:?}", chart.groups) };
        assert_eq!(heading.as_ref().unwrap(), "1F1B: bubble 25 % predicted, 25 % measured");
        assert_eq!(chart.conclusion, "The bubble: 25 % predicted, 25 % measured.");
        assert_eq!(rows.len(), 4);
        assert!(rows.iter().all(|row| row.bars.len() == 6));
        assert_eq!(rows.iter().map(|row| row.pale).collect::<Vec<_>>(), [true, false, true, false]);
        assert!(rows[1].bars[0].start.abs() < 1e-12);
        let last = rows[2].bars.last().map(|bar| bar.name.as_str());
        assert_eq!(last, Some("stage 1, predicted: backward, micro-batch 2"));
        let meanings = chart.legend.iter().map(|(_, meaning)| meaning.as_str());
        assert!(meanings.eq(["forward, by micro-batch", "backward"]));
        assert!(chart.svg().unwrap().contains("stage 1 predicted"));
    }

    #[test]
    fn the_smallest_measured_bubble_is_named() {
        // Two stages compute for a second each. The second stage begins late.
        let step = |late: f64| {
            let span = |stage, start| Span {
                stage,
                instruction: Instruction::from(Action::Forward(0)),
                start,
                end: start + 1.0,
            };
            Timeline { stages: 2, spans: vec![span(0, 0.0), span(1, late)] }
        };
        let (quick, slow) = (step(1.0), step(3.0));
        let pipelines = [("slow", [&quick, &slow]), ("quick", [&slow, &quick])];
        let best = "The smallest bubble: quick, 75 % predicted, 50 % measured.";
        assert_eq!(chart("title", &pipelines).conclusion, best);
    }

    #[test]
    fn a_prediction_alone_has_one_row_for_each_stage_in_milliseconds() {
        let checked = check(Kind::ZbH1.schedule(2, 3).unwrap(), UNBOUNDED).unwrap();
        let predicted = predict(&checked, &[Cost::UNITS; 2], 0.0).unwrap();
        let units = predicted.makespan();
        let chart = predicted_chart("title", &[("ZB-H1".to_owned(), predicted)]);
        assert!((chart.seconds - units / 1e3).abs() < 1e-12);
        let [(heading, rows)] = chart.groups.as_slice() else { panic!("{:?}", chart.groups) };
        assert_eq!(heading.as_deref(), Some("ZB-H1: idle (bubble) 10 %"));
        assert_eq!(
            rows.iter().map(|row| row.name.as_str()).collect::<Vec<_>>(),
            ["stage 0", "stage 1"]
        );
        assert!(rows.iter().all(|row| !row.pale && row.bars.len() == 9));
        assert!((rows[0].bars[1].end - 2e-3).abs() < 1e-12);
    }
}
