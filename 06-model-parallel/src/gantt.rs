//! Drawings of a timeline: as text, and as a Gantt chart.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use drawing::Heading;
use drawing::gantt::{Bar, Gantt, Group, IDLE, Lane, Row, SHADES, Unit};
use harness::report::{counted, number};
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
    let placed = timeline.spans.iter().map(|span| (span.stage, span.instruction.unit));
    let placed: BTreeSet<_> = placed.collect();
    let place = |&(stage, unit): &(usize, usize)| placed.range((stage, 0)..(stage, unit)).count();
    let all: BTreeMap<_, _> = placed.iter().map(|it| (it.1, place(it))).collect();
    if all.values().any(|&chunk| chunk > 0) { all } else { BTreeMap::new() }
}

/// The series and the shade of communication, and of memory. Computations have the series of [`PASSES`].
const COMMUNICATION: (usize, f64) = (3, SHADES[0][1]);
const MEMORY: (usize, f64) = (4, SHADES[0][1]);

// ANCHOR: chart
/// Makes a Gantt chart of pipelines, each with its name and its steps: the predicted step alone, in units of time, or the
/// predicted and the measured step, in seconds. Every step begins at 0.
///
/// The first lanes of a stage are its computations. If the prediction says that communication takes time, the next lanes are
/// the sums over replicas, and the messages that are on their way while the stage waits. The last lanes are the bytes that the
/// stage holds. A measured lane is below its prediction. With a `doubt` about the times, no pipeline is called the best.
pub fn chart<const N: usize>(
    title: &str,
    doubt: Option<String>,
    pipelines: &[(&str, [&Timeline; N])],
) -> Gantt {
    let last = |(_, steps): &(&str, [&Timeline; N])| steps[N - 1].bubble();
    let best = pipelines.iter().min_by(|a, b| last(a).total_cmp(&last(b)));
    let conclusion = match best.filter(|_| doubt.is_none()) {
        Some((_, steps)) if pipelines.len() == 1 => format!("The bubble: {}.", bubble(steps)),
        Some((name, steps)) => format!("The smallest bubble: {name}, {}.", bubble(steps)),
        None => String::new(),
    };
    let all = || pipelines.iter().flat_map(|(_, steps)| *steps);
    let most = all().flat_map(|it| (0..it.stages).map(|stage| it.peak_total(stage))).max();
    let most = most.filter(|&most| most > 0);
    let kinds: &[_] = match N {
        1 => &[("predicted", SHADES[0])],
        _ => &[("predicted", SHADES[1]), ("measured", SHADES[0])],
    };
    let communications = pipelines.iter().map(|(_, steps)| steps.map(communication)).collect_vec();
    let communicates = |steps: &[Vec<Vec<Bar>>; N]| steps[0].iter().any(|bars| !bars.is_empty());
    let group = |((name, steps), communication): (&(&str, [&Timeline; N]), &[_; N])| {
        let row = |stage| {
            let lanes = |bars: Bars<'_>| {
                let lane = |(nth, (kind, shades)): (usize, &(&str, _))| Lane {
                    bars: bars(nth, &format!("stage {stage}, {kind}"), *shades),
                    time: (0.0, steps[nth].makespan()),
                };
                kinds.iter().enumerate().map(lane).collect_vec()
            };
            let mut all = lanes(&|nth, lane, shades| computations(steps[nth], stage, lane, shades));
            if communicates(communication) {
                all.extend(lanes(&|nth, lane, _| named(&communication[nth][stage], lane)));
            }
            if let Some(most) = most {
                all.extend(lanes(&|nth, lane, _| memory(steps[nth], stage, lane, most)));
            }
            Row { name: format!("stage {stage}"), lanes: all, note: String::new() }
        };
        let title = format!("{name}: bubble {}", bubble(steps));
        Group { title, note: String::new(), rows: (0..steps[0].stages).map(row).collect() }
    };
    let drawn = all().flat_map(|it| &it.spans).filter(|span| span.start < span.end);
    let series = drawn.filter_map(|span| pass(span.instruction.action)).map(|(series, _)| series);
    let meaning = |series: usize| ((Some(series), SHADES[0][0]), PASSES[series].2.to_owned());
    let mut legend = series.unique().sorted().map(meaning).collect_vec();
    let mut explain = |(series, shade), text| legend.push(((series, shade), text));
    let chunks = all().flat_map(|it| chunks(it).into_values()).filter(|chunk| chunk % 2 == 1);
    let second = chunks.unique().sorted().map(letter).join(", ");
    if !second.is_empty() {
        explain((Some(0), SHADES[0][1]), format!("lighter: chunk {second}"));
    }
    if N > 1 {
        explain((Some(0), SHADES[1][0]), "upper row, pale: predicted".to_owned());
    }
    if communications.iter().any(communicates) {
        let text = "sum over replicas, or a message on its way";
        explain((Some(COMMUNICATION.0), COMMUNICATION.1), text.to_owned());
    }
    if let Some(most) = most {
        explain((Some(MEMORY.0), MEMORY.1), format!("held, up to {}", amount(most, N == 1)));
    }
    explain((None, IDLE), "idle (bubble)".to_owned());
    Gantt {
        heading: Heading { title: title.to_owned(), doubt, conclusion },
        legend,
        unit: if N == 1 { Unit::Units } else { Unit::Seconds },
        groups: pipelines.iter().zip(&communications).map(group).collect(),
    }
}

/// The bars of a lane: of the n-th step of a pipeline, with the name and the shades of the lane.
type Bars<'a> = &'a dyn Fn(usize, &str, [f64; 2]) -> Vec<Bar>;

/// `10.0 %, 30 units`, or `7 % predicted, 21 % measured`
fn bubble(steps: &[&Timeline]) -> String {
    let percent = |timeline: &Timeline| timeline.bubble() * 100.0;
    match steps {
        [predicted, measured] => {
            format!("{:.0} % predicted, {:.0} % measured", percent(predicted), percent(measured))
        }
        _ => {
            let of_step = |it: &&Timeline| {
                let units = number((it.makespan() * 100.0).round() / 100.0);
                format!("{:.1} %, {units} units", percent(it))
            };
            steps.iter().map(of_step).join("; ")
        }
    }
}

/// Bytes, or the number of micro-batches in a prediction without bytes.
fn amount(held: usize, counts: bool) -> String {
    match counts {
        true => counted(held, "micro-batch"),
        false => format!("{:.1} MB", held as f64 / 1e6),
    }
}

/// The computations of a stage. The two shades are those of its first and its second chunk, and so on in turn.
fn computations(timeline: &Timeline, stage: usize, lane: &str, shades: [f64; 2]) -> Vec<Bar> {
    let (origin, chunks) = (timeline.start(), chunks(timeline));
    let bar = |&Span { instruction: Instruction { unit, action }, start, end, .. }: &Span| {
        let (series, i) = pass(action)?;
        let i = i.map(|i| i.to_string()).unwrap_or_default();
        let chunk = chunks.get(&unit).copied();
        let chunk_letter = chunk.map(|chunk| letter(chunk).to_string()).unwrap_or_default();
        let mut name = format!("{lane}: {}", PASSES[series].1);
        if !i.is_empty() {
            let part = chunk.map(|_| format!(" of chunk {chunk_letter}")).unwrap_or_default();
            name += &format!("{part}, micro-batch {i}");
        }
        let label = if i.is_empty() { i } else { i + &chunk_letter };
        let (time, shade) = ((start - origin, end - origin), shades[chunk.unwrap_or(0) % 2]);
        Some(Bar { time, label, name, series, shade, height: 1.0 })
    };
    timeline.of_stage(stage).filter_map(bar).collect()
}

/// The sums over replicas, and the messages that are on their way while a stage waits: the bars of each stage.
fn communication(timeline: &Timeline) -> Vec<Vec<Bar>> {
    let ends: HashMap<_, _> =
        timeline.spans.iter().map(|span| (span.instruction, span.end)).collect();
    let sent = |unit: usize, action| ends.get(&Instruction { unit, action }).copied();
    let (origin, mut of_stages) = (timeline.start(), vec![Vec::new(); timeline.stages]);
    for &Span { stage, instruction: Instruction { unit, action }, start, end, .. } in
        &timeline.spans
    {
        let (what, left) = match action {
            Action::AllReduce => ("sum over replicas", Some(start)),
            Action::RecvActivation(i) => {
                let before = unit.checked_sub(1);
                let left = before.and_then(|before| sent(before, Action::SendActivation(i)));
                ("activation on its way", left)
            }
            Action::RecvGradient(i) => {
                ("gradient on its way", sent(unit + 1, Action::SendGradient(i)))
            }
            _ => continue,
        };
        if let Some(left) = left.filter(|left| start.max(*left) < end) {
            let time = (start.max(left) - origin, end - origin);
            let ((series, shade), name) = (COMMUNICATION, format!("{what}, unit {unit}"));
            let bar = Bar { time, label: String::new(), name, series, shade, height: 1.0 };
            of_stages[stage].push(bar);
        }
    }
    of_stages
}

/// The same bars, with the name of their lane.
fn named(bars: &[Bar], lane: &str) -> Vec<Bar> {
    let named = |bar: &Bar| Bar { name: format!("{lane}: {}", bar.name), ..bar.clone() };
    bars.iter().map(named).collect()
}

/// The bytes of a stage over time, as shares of `most`. They stay until the next instruction begins.
fn memory(timeline: &Timeline, stage: usize, lane: &str, most: usize) -> Vec<Bar> {
    let spans = timeline.of_stage(stage).filter(|it| it.instruction.action != Action::AllReduce);
    let spans = spans.collect_vec();
    let ends = spans.iter().skip(1).map(|span| span.start);
    let origin = timeline.start();
    let ends = ends.chain([origin + timeline.makespan()]);
    let bar = |(span, end): (&&Span, f64)| {
        let time = (span.start - origin, end - origin);
        let kinds = span.held.kinds().into_iter().filter(|(_, bytes)| *bytes > 0);
        let share = |(kind, bytes)| format!("{kind} {:.0} %", 100.0 * bytes as f64 / most as f64);
        let name = format!("{lane}: {}", kinds.map(share).join(", "));
        let height = span.held.total() as f64 / most as f64;
        Bar { time, label: String::new(), name, series: MEMORY.0, shade: MEMORY.1, height }
    };
    spans.iter().zip(ends).map(bar).collect()
}
// ANCHOR_END: chart

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
        let cost = Cost { forward: 0.01, backward: 0.02, activations: 500_000, ..Cost::default() };
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
        let (pale, full, grey) = (SHADES[1][0], SHADES[0][0], SHADES[0][1]);
        assert_eq!(shades, [pale, full, grey, grey, pale, full, grey, grey]);
        // Three micro-batches forward and backward, and the update. Messages take no time, and have no lane.
        assert!([0, 1, 4, 5].iter().all(|&lane| lanes[lane].bars.len() == 7));
        assert!(lanes[1].bars[0].time.0.abs() < 1e-12);
        assert!((lanes[1].time.1 - measured.makespan()).abs() < 1e-12);
        assert_eq!(lanes[4].bars[5].name, "stage 1, predicted: backward, micro-batch 2");
        assert_eq!(lanes[5].bars[5].label, "2");
        let expected = [
            "forward, by micro-batch",
            "backward",
            "upper row, pale: predicted",
            "held, up to 1.0 MB",
            "idle (bubble)",
        ];
        assert_eq!(meanings(&chart), expected);
    }

    #[test]
    fn chunks_have_their_shades_and_their_letters() {
        let predicted = predicted(Kind::Interleaved { chunks: 2 }, 2, 2);
        let chart = chart("title", None, &[("interleaved", [&predicted])]);
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
        let chart = chart("title", None, &[("ZB-H1", [&predicted])]);
        assert_eq!(chart.groups[0].title, "ZB-H1: bubble 10.0 %, 10 units");
        assert_eq!(chart.heading.conclusion, "The bubble: 10.0 %, 10 units.");
        let lanes = lanes(&chart);
        assert!(lanes.len() == 4 && lanes[0].bars.len() == 10 && lanes[2].bars.len() == 10);
        assert!((lanes[0].bars[1].time.1 - 2.0).abs() < 1e-12);
        assert!(lanes[0].bars.iter().all(|bar| !bar.name.contains("measured")));
        let meanings = meanings(&chart);
        assert!(meanings.contains(&"backward, gradients of weights"), "{meanings:?}");
        assert!(meanings.contains(&"held, up to 2 micro-batches"), "{meanings:?}");
        // Forward, forward, receive a gradient, and so on: the memory has no gap.
        let held = &lanes[1].bars;
        assert_eq!([held[0].height, held[2].height], [0.5, 1.0]);
        assert!(held.windows(2).all(|pair| (pair[0].time.1 - pair[1].time.0).abs() < 1e-12));
        assert!((held[held.len() - 1].time.1 - 10.0).abs() < 1e-12);
        assert_eq!(held[0].name, "stage 0, predicted: activations 50 %");
    }

    #[test]
    fn sums_and_messages_that_take_time_have_a_lane() {
        let cost = Cost { all_reduce: 1.5, ..Cost::UNITS };
        let simulated = |replicas, message| {
            let schedule = Kind::GPipe.schedule(2, 2).unwrap().with_replicas(replicas);
            let checked = check(schedule, UNBOUNDED).unwrap();
            checked.simulate(&[cost; 2], message).unwrap()
        };
        let (replicas, messages) = (simulated(2, 0.0), simulated(1, 0.5));
        let drawn = chart("title", None, &[("replicas", [&replicas]), ("messages", [&messages])]);
        let lanes = lanes(&drawn);
        let bars = |lane: usize| lanes[lane].bars.iter().map(|bar| (&*bar.name, bar.time));
        // Stage 1 is done after 7, and stage 0 after 9. The update waits for the sum.
        let sum = [0, 1].map(|it| format!("stage {it}, predicted: sum over replicas, unit {it}"));
        assert!(bars(1).eq([(&*sum[0], (9.0, 10.5))]), "{:?}", lanes[1].bars);
        assert!(bars(4).eq([(&*sum[1], (7.0, 8.5))]), "{:?}", lanes[4].bars);
        // The second activation arrives while stage 1 computes.
        let activation = "stage 1, predicted: activation on its way, unit 1";
        assert!(bars(10).eq([(activation, (1.0, 1.5))]), "{:?}", lanes[10].bars);
        let meaning = "sum over replicas, or a message on its way";
        assert!(meanings(&drawn).contains(&meaning));
    }
}
