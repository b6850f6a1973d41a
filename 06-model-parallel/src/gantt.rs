//! Drawings of a timeline: as text, and as a Gantt chart.

use std::collections::BTreeMap;

use drawing::Heading;
use drawing::gantt::{Bar, Gantt, Group, IDLE, Lane, Row, SHADES, Unit};
use harness::report::number;
use itertools::Itertools as _;

use crate::instructions::{Action, Instruction};
use crate::simulate::{Span, Timeline};

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
        let chunks = chunks(self);
        let start = self.start();
        let column = |time: f64| ((time - start) / seconds).round() as usize;
        let columns = column(start + self.makespan());
        let mut rows = vec![vec![WAITS.to_owned(); columns]; self.stages];
        for Span { stage, instruction: Instruction { unit, action }, start, end, .. } in &self.spans
        {
            if let (Some(row), Some((place, Some(i)))) = (rows.get_mut(*stage), pass(*action)) {
                let chunk = chunks.get(unit).map(|chunk| letter(*chunk).to_string());
                let name = format!("{}{i}{}", PASSES[place].0, chunk.unwrap_or_default());
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

/// The names of passes: the letter in a text, the action in a sentence, and the meaning of the colour. The place of a pass
/// is the number of its colour.
const PASSES: [(char, &str, &str); 4] = [
    ('F', "forward", "forward, by micro-batch"),
    ('B', "backward", "backward"),
    ('W', "gradients of weights", "backward, gradients of weights"),
    ('U', "update", "update"),
];

/// The place in [`PASSES`] and the micro-batch of an action, or `None` for a message.
fn pass(action: Action) -> Option<(usize, Option<usize>)> {
    let place = match action {
        Action::Forward(_) | Action::ForwardOnly(_) => 0,
        Action::Backward(_) | Action::BackwardInput(_) => 1,
        Action::BackwardWeight(_) => 2,
        Action::Update => 3,
        _ => return None,
    };
    Some((place, action.micro_batch()))
}

/// The letter of a chunk.
fn letter(chunk: usize) -> char {
    char::from_u32('a' as u32 + chunk as u32).unwrap_or('?')
}

/// The place of each unit among those of its stage. Empty if every stage has one unit.
fn chunks(timeline: &Timeline) -> BTreeMap<usize, usize> {
    let of_stage = |stage| timeline.of_stage(stage).map(|span| span.instruction.unit);
    let of_stage = |stage| of_stage(stage).sorted().dedup().enumerate().map(|(n, unit)| (unit, n));
    let all: BTreeMap<_, _> = (0..timeline.stages).flat_map(of_stage).collect();
    if all.values().any(|&chunk| chunk > 0) { all } else { BTreeMap::new() }
}

/// Makes a Gantt chart of one or several pipelines, each with its name, its predicted step and its measured step. A stage
/// has its measured lane below its predicted lane. Every pipeline begins at 0. A stage waits, sends or receives where nothing
/// is drawn. With a `doubt` about the times, no pipeline is called the best.
pub fn chart(title: &str, doubt: Option<String>, pipelines: &[(&str, [&Timeline; 2])]) -> Gantt {
    let conclusion = if doubt.is_none() { conclusion(pipelines) } else { String::new() };
    let heading = Heading { title: title.to_owned(), doubt, conclusion };
    let named = pipelines
        .iter()
        .map(|(name, both)| (format!("{name}: bubble {}", bubbles(*both)), both.to_vec()));
    gantt(heading, Unit::Seconds, named.collect())
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

/// Makes a Gantt chart of predicted steps, each with its name, in units of time.
pub fn predicted_chart(title: &str, pipelines: &[(String, Timeline)]) -> Gantt {
    let idle = |timeline: &Timeline| {
        let (bubble, units) = (timeline.bubble() * 100.0, timeline.makespan());
        format!("idle (bubble) {bubble:.1} %, {} units", number((units * 100.0).round() / 100.0))
    };
    let best = pipelines.iter().min_by(|(_, a), (_, b)| a.bubble().total_cmp(&b.bubble()));
    let best = best
        .map(|(name, it)| format!("The smallest bubble: {name}, {:.0} %.", 100.0 * it.bubble()));
    let conclusion = best.unwrap_or_default();
    let heading = Heading { title: title.to_owned(), doubt: None, conclusion };
    let named = pipelines.iter().map(|(name, it)| (format!("{name}: {}", idle(it)), vec![it]));
    gantt(heading, Unit::Units, named.collect())
}

/// Makes the chart of pipelines. One timeline is predicted. Of two, the second is measured.
fn gantt(heading: Heading, unit: Unit, pipelines: Vec<(String, Vec<&Timeline>)>) -> Gantt {
    let spans = || pipelines.iter().flat_map(|(_, both)| both).flat_map(|it| &it.spans);
    let takes_time = |span: &&Span| span.start < span.end;
    let drawn = spans().filter(takes_time).filter_map(|span| pass(span.instruction.action));
    let series = drawn.map(|(series, _)| series).unique().sorted();
    let meaning = |series: usize| ((Some(series), SHADES[0][0]), PASSES[series].2.to_owned());
    let mut legend = series.map(meaning).collect_vec();
    let chunks =
        pipelines.iter().flat_map(|(_, both)| both).flat_map(|it| chunks(it).into_values());
    let chunks = chunks.unique().sorted();
    let second = chunks.filter(|chunk| chunk % 2 == 1).map(letter).join(", ");
    if !second.is_empty() {
        legend.push(((Some(0), SHADES[0][1]), format!("lighter: chunk {second}")));
    }
    if pipelines.iter().any(|(_, both)| both.len() > 1) {
        legend.push(((Some(0), SHADES[1][0]), "upper row, pale: predicted".to_owned()));
    }
    legend.push(((None, IDLE), "idle (bubble)".to_owned()));
    let group = |(title, both): (String, Vec<&Timeline>)| {
        let kinds: &[_] = match both.len() {
            1 => &[("predicted", SHADES[0])],
            _ => &[("predicted", SHADES[1]), ("measured", SHADES[0])],
        };
        let row = |stage| Row {
            name: format!("stage {stage}"),
            lanes: both.iter().zip(kinds).map(|(it, kind)| lane(it, stage, *kind)).collect(),
            note: String::new(),
        };
        let stages = both.first().map_or(0, |timeline| timeline.stages);
        Group { title, note: String::new(), rows: (0..stages).map(row).collect() }
    };
    Gantt { heading, legend, unit, groups: pipelines.into_iter().map(group).collect() }
}

/// The bars of a stage. The two shades are those of its first and its second chunk, and so on in turn.
fn lane(timeline: &Timeline, stage: usize, (kind, shades): (&str, [f64; 2])) -> Lane {
    let (origin, chunks) = (timeline.start(), chunks(timeline));
    let bar = |&Span { instruction: Instruction { unit, action }, start, end, .. }: &Span| {
        let (series, i) = pass(action)?;
        let i = i.map(|i| i.to_string()).unwrap_or_default();
        let chunk = chunks.get(&unit).copied();
        let chunk_letter = chunk.map(|chunk| letter(chunk).to_string()).unwrap_or_default();
        let mut name = format!("stage {stage}, {kind}: {}", PASSES[series].1);
        if !i.is_empty() {
            let part = chunk.map(|_| format!(" of chunk {chunk_letter}")).unwrap_or_default();
            name += &format!("{part}, micro-batch {i}");
        }
        let label = if i.is_empty() { i } else { i + &chunk_letter };
        let (start, end, shade) = (start - origin, end - origin, shades[chunk.unwrap_or(0) % 2]);
        Some(Bar { start, end, label, name, series, shade })
    };
    let bars = timeline.of_stage(stage).filter_map(bar).collect();
    Lane { bars, time: (0.0, timeline.makespan()) }
}

#[cfg(test)]
mod tests {
    use crate::{Bytes, Cost, Kind, UNBOUNDED, check};

    use super::*;

    /// The lanes of all stages in turn.
    fn lanes(chart: &Gantt) -> Vec<&Lane> {
        chart.groups.iter().flat_map(|group| &group.rows).flat_map(|row| &row.lanes).collect()
    }

    fn meanings(chart: &Gantt) -> Vec<&str> {
        chart.legend.iter().map(|(_, meaning)| meaning.as_str()).collect()
    }

    fn predicted(kind: Kind, stages: usize, micro_batches: usize) -> Timeline {
        let cost = Cost { forward: 0.01, backward: 0.02, ..Cost::default() };
        let checked = check(kind.schedule(stages, micro_batches).unwrap(), UNBOUNDED).unwrap();
        checked.simulate(&vec![cost; checked.schedule().units()], 0.0).unwrap()
    }

    #[test]
    fn every_stage_is_drawn_twice_with_its_passes() {
        let predicted = predicted(Kind::OneFOneB, 2, 3);
        let mut measured = predicted.clone();
        for span in &mut measured.spans {
            // Another origin, and half as quick.
            (span.start, span.end) = (span.start * 2.0 + 5.0, span.end * 2.0 + 5.0);
        }
        let chart = chart("title", None, &[("1F1B", [&predicted, &measured])]);
        assert_eq!(chart.groups[0].title, "1F1B: bubble 25 % predicted, 25 % measured");
        assert_eq!(chart.heading.conclusion, "The bubble: 25 % predicted, 25 % measured.");
        let names = chart.groups[0].rows.iter().map(|row| row.name.as_str());
        assert_eq!(names.collect::<Vec<_>>(), ["stage 0", "stage 1"]);
        let lanes = lanes(&chart);
        let shades = lanes.iter().map(|lane| lane.bars[0].shade).collect::<Vec<_>>();
        assert_eq!(shades, [SHADES[1][0], SHADES[0][0], SHADES[1][0], SHADES[0][0]]);
        // Three micro-batches forward and backward, and the update.
        assert!(lanes.iter().all(|lane| lane.bars.len() == 7));
        assert!(lanes[1].bars[0].start.abs() < 1e-12);
        assert!((lanes[1].time.1 - measured.makespan()).abs() < 1e-12);
        assert_eq!(lanes[2].bars[5].name, "stage 1, predicted: backward, micro-batch 2");
        assert_eq!(lanes[3].bars[5].label, "2");
        let expected =
            ["forward, by micro-batch", "backward", "upper row, pale: predicted", "idle (bubble)"];
        assert_eq!(meanings(&chart), expected);
    }

    #[test]
    fn chunks_have_their_shades_and_their_letters() {
        let predicted = predicted(Kind::Interleaved { chunks: 2 }, 2, 2);
        let chart = predicted_chart("title", &[("interleaved".to_owned(), predicted)]);
        let bars = &lanes(&chart)[0].bars;
        let of = |letter| bars.iter().filter(move |bar| bar.label.ends_with(letter));
        assert_eq!((of('a').count(), of('b').count()), (4, 4));
        assert!(of('a').all(|bar| bar.shade == SHADES[0][0] && bar.name.contains("of chunk a")));
        assert!(of('b').all(|bar| bar.shade == SHADES[0][1] && bar.name.contains("of chunk b")));
        assert!(meanings(&chart).contains(&"lighter: chunk b"));
    }

    #[test]
    fn the_smallest_measured_bubble_is_named_unless_times_are_in_doubt() {
        // Two stages compute for a second each. The second stage begins late.
        let step = |late: f64| {
            let span = |stage, start| Span {
                stage,
                instruction: Instruction { unit: stage, action: Action::Forward(0) },
                start,
                end: start + 1.0,
                held: Bytes::default(),
            };
            Timeline { stages: 2, spans: vec![span(0, 0.0), span(1, late)] }
        };
        let (quick, slow) = (step(1.0), step(3.0));
        let pipelines = [("slow", [&quick, &slow]), ("quick", [&slow, &quick])];
        let best = "The smallest bubble: quick, 75 % predicted, 50 % measured.";
        assert_eq!(chart("title", None, &pipelines).heading.conclusion, best);
        let busy = || Some("Other programs used the cores.".to_owned());
        let doubtful = chart("title", busy(), &pipelines);
        assert_eq!((doubtful.heading.doubt, doubtful.heading.conclusion), (busy(), String::new()));
    }

    #[test]
    fn a_prediction_alone_has_one_lane_for_each_stage_in_units() {
        let checked = check(Kind::ZbH1.schedule(2, 3).unwrap(), UNBOUNDED).unwrap();
        let predicted = checked.simulate(&[Cost::UNITS; 2], 0.0).unwrap();
        let chart = predicted_chart("title", &[("ZB-H1".to_owned(), predicted)]);
        assert_eq!(chart.groups[0].title, "ZB-H1: idle (bubble) 10.0 %, 10 units");
        assert_eq!(chart.heading.conclusion, "The smallest bubble: ZB-H1, 10 %.");
        let lanes = lanes(&chart);
        assert!(lanes.len() == 2 && lanes.iter().all(|lane| lane.bars.len() == 10));
        assert!((lanes[0].bars[1].end - 2.0).abs() < 1e-12);
        assert!(lanes[0].bars.iter().all(|bar| !bar.name.contains("measured")));
        assert!(meanings(&chart).contains(&"backward, gradients of weights"));
    }
}
