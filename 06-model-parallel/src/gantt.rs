//! Drawings of a timeline: as text, and as a Gantt chart. Both draw the lanes of the stages.

use std::collections::HashMap;

use drawing::Heading;
use drawing::gantt::{Bar, Gantt, Group, IDLE, Lane, Row, SHADES, Unit};
use harness::report::{counted, number};
use itertools::Itertools as _;

use crate::bytes::megabytes;
use crate::instructions::{Action, Instruction};
use crate::simulate::{Span, Timeline};

// ANCHOR: chart
/// The lanes of a stage: its computing stream, its communicating stream, and the bytes that it holds.
pub type Lanes = [Vec<Span>; 3];

impl Timeline {
    /// The lanes of each stage, in stage order. The step begins at 0.
    ///
    /// The communicating stream has the collectives, and the messages that are on their way while the stage waits. The
    /// stage holds the bytes of a span until its next span begins.
    pub fn lanes(&self) -> Vec<Lanes> {
        let (origin, makespan) = (self.start(), self.makespan());
        let ends: HashMap<_, _> = self.spans.iter().map(|it| (it.instruction, it.end)).collect();
        let sent = |unit, action| ends.get(&Instruction { unit, action }).copied();
        let mut all = vec![Lanes::default(); self.stages];
        for span in &self.spans {
            let Instruction { unit, action } = span.instruction;
            let left = match action {
                _ if action.is_collective() => Some(span.start),
                Action::RecvActivation(i) => sent(unit.wrapping_sub(1), Action::SendActivation(i)),
                Action::RecvGradient(i) => sent(unit + 1, Action::SendGradient(i)),
                _ => None,
            };
            let [computing, communicating, memory] = &mut all[span.stage];
            let since =
                |start: f64| Span { start: start - origin, end: span.end - origin, ..*span };
            if action.computes() {
                computing.push(since(span.start));
            }
            let start = left.map(|left| left.max(span.start)).filter(|&start| start < span.end);
            communicating.extend(start.map(since));
            if !action.is_collective() {
                let holds = Span { end: makespan, ..since(span.start) };
                memory.last_mut().into_iter().for_each(|before| before.end = holds.start);
                memory.push(holds);
            }
        }
        all
    }

    /// Draws a row of text for each stage, with a column for every `seconds`. A drawing of more than `most` characters
    /// a line is cut into parts below each other, each below a line with the time of its first column.
    ///
    /// `F` is a forward pass, `R` a recomputation, `B` a backward pass or its first half, and `W` its second half. The
    /// number is the micro-batch, and with several chunks a letter names the chunk. If one stage has all units, the
    /// number is the unit, and a letter names the micro-batch. `··` is a column in which the device waits.
    pub fn drawing(&self, seconds: f64, most: usize) -> String {
        let column = |time: f64| (time / seconds).round() as usize;
        let (columns, numbers) = (column(self.makespan()), self.numbers());
        let row = |[computing, ..]: Lanes| {
            let mut row = vec!["··".to_owned(); columns];
            for Span { instruction, start, end, .. } in computing {
                let name = words(instruction.action).1.to_string() + &label(numbers(instruction));
                if instruction.action != Action::Update {
                    row[column(start)..column(end)].fill(name);
                }
            }
            row
        };
        let rows = self.lanes().into_iter().map(row).enumerate();
        let digits = (self.stages.max(1) - 1).to_string().len();
        let rows =
            rows.map(|(stage, row)| (format!("stage {stage:<digits$}   "), row)).collect_vec();
        in_parts(&rows, 4, most, |first| format!("from time {}:\n", number(first as f64 * seconds)))
    }

    /// Names the two numbers of an instruction: the micro-batch, and the chunk if stages have several units. If one
    /// stage has all units: the unit, and the micro-batch if there are several.
    fn numbers(&self) -> impl Fn(Instruction) -> Numbers + Copy {
        let (stages, all) = (self.stages, || self.spans.iter().map(|span| span.instruction));
        let several_units = all().any(|it| it.unit >= stages);
        let several_micro_batches = all().any(|it| it.action.micro_batch() > Some(0));
        move |Instruction { unit, action }| {
            let i = action.micro_batch();
            match several_units && stages == 1 {
                true => {
                    [("unit", Some(unit)), ("micro-batch", i.filter(|_| several_micro_batches))]
                }
                false => [("micro-batch", i), ("chunk", several_units.then(|| unit / stages))],
            }
        }
    }
}

/// Draws rows of cells, each behind its name, in lines of at most `most` characters. All names are equally long, and so
/// are all rows. Rows that are longer are cut into parts below each other, each below the text of its first column. A
/// column has at least `width` characters.
pub fn in_parts(
    rows: &[(String, Vec<String>)],
    width: usize,
    most: usize,
    begins: impl Fn(usize) -> String,
) -> String {
    let length = |text: &String| text.chars().count();
    let longest = rows.iter().flat_map(|(_, row)| row).map(length).max().unwrap_or(0);
    let (name, columns) = rows.first().map_or((0, 0), |(name, row)| (length(name), row.len()));
    // A column ends with a space. The last column needs no space.
    let width = (longest + 1).max(width);
    let each = most.saturating_sub(name + longest) / width + 1;
    let part = |first: usize| {
        let row = |(name, cells): &(String, Vec<String>)| {
            let cells = cells.iter().skip(first).take(each);
            let cells = cells.map(|cell| format!("{cell:width$}")).join("");
            format!("{name}{cells}").trim_end().to_owned() + "\n"
        };
        let begins = if columns > each { begins(first) } else { String::new() };
        begins + &rows.iter().map(row).join("")
    };
    (0..columns.max(1)).step_by(each).map(part).collect()
}

/// Two numbers with their names. The second number is written as a letter.
type Numbers = [(&'static str, Option<usize>); 2];

/// `3`, or `3b`
fn label([(_, first), (_, second)]: Numbers) -> String {
    first.map(|first| first.to_string() + &letter(second)).unwrap_or_default()
}

fn letter(number: Option<usize>) -> String {
    number.map(|it| char::from_u32('a' as u32 + it as u32).unwrap_or('?')).into_iter().collect()
}

/// The colour of an action, its letter in a text, and its words.
pub fn words(action: Action) -> (usize, char, &'static str) {
    match action {
        Action::Forward(_) | Action::ForwardOnly(_) => (0, 'F', "forward"),
        Action::Backward(_) | Action::BackwardInput(_) => (1, 'B', "backward"),
        Action::BackwardWeight(_) => (2, 'W', "backward, gradients of weights"),
        Action::Recompute(_) => (2, 'R', "recompute"),
        Action::Update => (3, 'U', "update"),
        Action::AllReduce => (3, 'S', "sum over replicas"),
        Action::ReduceScatter => (3, 'C', "reduce-scatter of gradients"),
        Action::Gather => (3, 'G', "gather of parameters"),
        Action::Wait => (3, 'p', "wait for parameters"),
        Action::Free => (3, 'd', "drop of parameters"),
        Action::RecvActivation(_) | Action::SendActivation(_) => (3, 'a', "activation on its way"),
        Action::RecvGradient(_) | Action::SendGradient(_) => (3, 'g', "gradient on its way"),
    }
}

/// The shade of communication, of memory, and of every second chunk.
const LIGHT: f64 = SHADES[0][1];

/// Makes a Gantt chart of pipelines, each with its name and its steps: the predicted step alone, in units of time, or
/// the predicted and the measured step, in seconds. Every step begins at 0.
///
/// A stage has a row for each of its [`Lanes`], without communication that the prediction gives no time. A measured
/// row is below its prediction. With a `doubt` about the times, no pipeline is called the best.
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
    let most = all().flat_map(|it| (0..it.stages).map(|stage| it.held(stage).total));
    let most = most.max().unwrap_or(0);
    let kinds: &[_] = match N {
        1 => &[("predicted", SHADES[0])],
        _ => &[("predicted", SHADES[1]), ("measured", SHADES[0])],
    };
    let lanes = pipelines.iter().map(|(_, steps)| steps.map(Timeline::lanes)).collect_vec();
    let communicates = |lanes: &[Vec<Lanes>; N]| lanes[0].iter().any(|it| !it[1].is_empty());
    let group = |((name, steps), lanes): (&(&str, [&Timeline; N]), &[Vec<Lanes>; N])| {
        let numbers = steps[0].numbers();
        let shown = [true, communicates(lanes), most > 0];
        let row = |stage: usize| {
            let lane = |(lane, nth): (usize, usize)| {
                let (kind, shades) = kinds[nth];
                let owner = format!("stage {stage}, {kind}");
                let bar =
                    |span: &Span| bar(&owner, lane, span, numbers(span.instruction), shades, most);
                let bars = lanes[nth][stage][lane].iter().map(bar).collect();
                Lane { bars, time: (0.0, steps[nth].makespan()) }
            };
            let shown = (0..shown.len()).filter(|&lane| shown[lane]);
            let lanes = shown.cartesian_product(0..N).map(lane).collect();
            Row { name: format!("stage {stage}"), lanes, note: String::new() }
        };
        let title = format!("{name}: bubble {}", bubble(steps));
        Group { title, note: String::new(), rows: (0..steps[0].stages).map(row).collect() }
    };
    let computing = lanes.iter().flatten().flatten().flat_map(|[computing, ..]| computing);
    let drawn = computing.filter(|it| it.start < it.end).map(|it| words(it.instruction.action));
    let numbers = all().flat_map(|it| {
        let numbers = it.numbers();
        it.spans.iter().map(move |span| numbers(span.instruction))
    });
    let by = numbers.clone().next().map_or("micro-batch", |[(name, _), _]| name);
    let passes = drawn.unique().sorted().map(|(colour, _, name)| {
        let by = if colour == 0 { format!(", by {by}") } else { String::new() };
        (true, Some(colour), SHADES[0][0], format!("{name}{by}"))
    });
    let lighter = numbers.map(|[_, second]| second).unique().sorted();
    let lighter = lighter.filter(|(_, number)| number.is_some_and(|it| it % 2 == 1));
    let lighter = lighter.map(|(name, number)| format!("{name} {}", letter(number))).join(", ");
    let communication = "a sum, a gather, or a message on its way".to_owned();
    // A prediction without bytes counts micro-batches.
    let held = match N {
        1 => counted(most, "micro-batch"),
        _ => format!("{} MB", megabytes(most)),
    };
    let more = [
        (!lighter.is_empty(), Some(0), LIGHT, format!("lighter: {lighter}")),
        (N > 1, Some(0), SHADES[1][0], "upper row, pale: predicted".to_owned()),
        (lanes.iter().any(communicates), Some(3), LIGHT, communication),
        (most > 0, Some(4), LIGHT, format!("held, up to {held}")),
        (true, None, IDLE, "idle (bubble)".to_owned()),
    ];
    let legend = passes.chain(more).filter(|(is_drawn, ..)| *is_drawn);
    Gantt {
        heading: Heading { title: title.to_owned(), doubt, conclusion },
        legend: legend.map(|(_, colour, shade, text)| ((colour, shade), text)).collect(),
        unit: if N == 1 { Unit::Units } else { Unit::Seconds },
        groups: pipelines.iter().zip(&lanes).map(group).collect(),
    }
}

/// `10.0 %, 30 units`, or `7 % predicted, 21 % measured`
fn bubble(steps: &[&Timeline]) -> String {
    if let [step] = steps {
        let units = number((step.makespan() * 100.0).round() / 100.0);
        return format!("{:.1} %, {units} units", step.bubble() * 100.0);
    }
    let percent = |(step, kind): (&&Timeline, _)| format!("{:.0} % {kind}", step.bubble() * 100.0);
    steps.iter().zip(["predicted", "measured"]).map(percent).join(", ")
}

/// A bar of a lane. The two shades are those of even and of odd second numbers. A bar of the
/// last lane has the height of its bytes, as a share of `most`.
fn bar(
    owner: &str,
    lane: usize,
    span: &Span,
    numbers: Numbers,
    shades: [f64; 2],
    most: usize,
) -> Bar {
    let &Span { instruction, start, end, held, .. } = span;
    let share = |bytes: usize| bytes as f64 / most as f64;
    let bar = |series, shade, height, label, what: String| {
        let name = format!("{owner}: {what}");
        Bar { time: (start, end), label, name, series, shade, height }
    };
    if lane == 2 {
        let kinds = held.kinds().into_iter().filter(|(_, bytes)| *bytes > 0);
        let kinds = kinds.map(|(kind, bytes)| format!("{kind} {:.0} %", 100.0 * share(bytes)));
        return bar(4, LIGHT, share(held.total()), String::new(), kinds.collect_vec().join(", "));
    }
    let (colour, _, name) = words(instruction.action);
    let [(first, number), (second, other)] = numbers;
    let shade = if lane == 0 { shades[other.unwrap_or(0) % 2] } else { LIGHT };
    let first = number.map(|it| format!(", {first} {it}")).unwrap_or_default();
    let second = other.map(|_| format!(", {second} {}", letter(other))).unwrap_or_default();
    bar(colour, shade, 1.0, label(numbers), format!("{name}{first}{second}"))
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
        assert!(of('a').all(|bar| bar.shade == SHADES[0][0] && bar.name.ends_with(", chunk a")));
        assert!(of('b').all(|bar| bar.shade == SHADES[0][1] && bar.name.ends_with(", chunk b")));
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
        let sum = [0, 1].map(|it| format!("stage {it}, predicted: sum over replicas"));
        assert!(bars(1).eq([(&*sum[0], (9.0, 10.5))]), "{:?}", lanes[1].bars);
        assert!(bars(4).eq([(&*sum[1], (7.0, 8.5))]), "{:?}", lanes[4].bars);
        // The second activation arrives while stage 1 computes.
        let activation = "stage 1, predicted: activation on its way, micro-batch 0";
        assert!(bars(10).eq([(activation, (1.0, 1.5))]), "{:?}", lanes[10].bars);
        let meaning = "a sum, a gather, or a message on its way";
        assert!(meanings(&drawn).contains(&meaning));
    }
}
