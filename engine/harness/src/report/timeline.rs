//! `--timeline FILE`: the work of every device in one step, as an SVG picture.
//!
//! The run is the one with the most ranks, and the step is its step of median length on rank 0. Every rank shows its own step
//! with the same number. A rank that waits within a forward pass does not compute.

use drawing::gantt::{Bar, Gantt, Group, Lane, Row, SHADES, Unit};
use drawing::{Heading, Place};
use itertools::Itertools as _;
use serde_json::Value;

use super::counted;
use super::trace::{BACKGROUND, COMMUNICATION, COMPUTE, Recorded, STEPS, Span, Work};

/// The rows of a rank: the track, the name and the meaning.
const ROWS: [(&str, &str, &str); 3] = [
    (COMPUTE, "computes", "computing"),
    (COMMUNICATION, "communicates", "communication: sending and waiting"),
    (BACKGROUND, "background", "background: communication on a second thread"),
];

/// The work of a rank in each of [`ROWS`].
type Lanes = [Vec<Work>; 3];

impl Work {
    fn is_step(&self) -> bool {
        // A number may follow.
        self.track == STEPS && self.name.starts_with("step")
    }

    fn length(&self) -> f64 {
        self.end - self.start
    }
}

/// Draws the step. Returns `None` if no step was recorded.
pub(super) fn draw(title: &str, Recorded { runs, spans, .. }: &Recorded) -> Option<String> {
    // Of several runs with the most ranks the last counts.
    let steps = spans.iter().filter(|span| span.work.is_step());
    let (_, run) = steps.map(|span| (span.work.rank, span.run)).max()?;
    let named = |span: &Span| {
        let mut work = span.work.clone();
        // `bucket 3`
        if let Ok(Value::Number(number)) = span.fields.values().exactly_one() {
            work.name = format!("{} {number}", work.name).into();
        }
        work
    };
    let of_run = spans.iter().filter(|span| span.run == run);
    let works = median_step(&of_run.map(named).collect_vec());
    let devices = match ranks(&works) {
        0 => return None,
        1 => String::new(),
        ranks => format!(" on {ranks} devices"),
    };
    let run = runs.get(run).map_or("a run", String::as_str);
    Some(chart(format!("One step of {run}{devices}: {title}"), &works).svg(Place::File))
}

/// Returns the work in the step of median length on rank 0, and in the other ranks' steps with the same number. Times are
/// from the first beginning of these steps. The steps themselves are part of the work.
pub fn median_step(run: &[Work]) -> Vec<Work> {
    let steps = |rank| {
        let of_rank = run.iter().filter(move |work| work.rank == rank && work.is_step());
        of_rank.sorted_by(|a, b| a.start.total_cmp(&b.start))
    };
    let by_length =
        steps(0).enumerate().sorted_by(|(_, a), (_, b)| a.length().total_cmp(&b.length()));
    let middle = by_length.len() / 2;
    let Some((index, _)) = by_length.into_iter().nth(middle) else { return Vec::new() };
    let steps = (0..ranks(run)).map(|rank| steps(rank).nth(index)).collect_vec();
    let origin = steps.iter().flatten().map(|step| step.start).fold(f64::INFINITY, f64::min);
    let within = |work: &Work| {
        let step = steps[work.rank].filter(|_| work.track != STEPS || work.is_step())?;
        let (start, end) = (work.start.max(step.start), work.end.min(step.end));
        (start < end).then(|| Work { start: start - origin, end: end - origin, ..work.clone() })
    };
    run.iter().filter_map(within).collect()
}

fn ranks(works: &[Work]) -> usize {
    works.iter().map(|work| work.rank + 1).max().unwrap_or(0)
}

/// Makes the chart of a step.
pub fn chart(title: String, works: &[Work]) -> Gantt {
    let end = works.iter().map(|work| work.end).fold(0.0, f64::max);
    let all = (0..ranks(works)).map(|rank| lanes(works, rank)).collect_vec();
    let group = |(rank, lanes): (usize, &Lanes)| {
        let step = works.iter().find(|work| work.rank == rank && work.is_step());
        let time = step.map_or((0.0, end), |step| (step.start, step.end));
        let mut owner = format!("rank {rank} ");
        let row = |(series, lane): (usize, &Vec<Work>)| {
            let bar = |work: &Work| Bar {
                time: (work.start, work.end),
                height: 1.0,
                label: work.name.to_string(),
                name: format!("rank {rank}, {}", work.name),
                series,
                shade: SHADES[0][0],
            };
            // The first row of a rank has its number.
            let name = std::mem::take(&mut owner) + ROWS[series].1;
            let lanes = vec![Lane { bars: lane.iter().map(bar).collect(), time }];
            Row { name, lanes, note: String::new() }
        };
        let drawn = lanes.iter().enumerate().filter(|(_, lane)| !lane.is_empty());
        Group { title: String::new(), note: String::new(), rows: drawn.map(row).collect() }
    };
    let drawn = (0..ROWS.len()).filter(|&it| all.iter().any(|lanes| !lanes[it].is_empty()));
    Gantt {
        legend: drawn.map(|it| ((Some(it), SHADES[0][0]), ROWS[it].2.to_owned())).collect(),
        heading: Heading { title, doubt: None, conclusion: conclusion(works, &all) },
        unit: Unit::Seconds,
        groups: all.iter().enumerate().map(group).collect(),
    }
}

/// Returns the work of a rank in each row. No two spans of a row overlap, and none that computes overlaps one that
/// communicates.
fn lanes(works: &[Work], rank: usize) -> Lanes {
    let [computes, communicates, background] = ROWS.map(|(track, ..)| {
        let mut last = 0.0;
        let of_track = works.iter().filter(|work| work.rank == rank && work.track == track);
        // Spans within others end before the last end.
        let goes_on = |work: &&Work| {
            let before = last;
            last = work.end.max(last);
            work.end > before
        };
        let longest_first =
            of_track.sorted_by(|a, b| a.start.total_cmp(&b.start).then(b.end.total_cmp(&a.end)));
        longest_first.filter(goes_on).cloned().collect_vec()
    });
    let computes = computes.iter().flat_map(|work| without(work, &communicates)).collect();
    [computes, communicates, background]
}

/// The parts of a span outside of others, which are in order.
fn without(work: &Work, others: &[Work]) -> Vec<Work> {
    let (mut parts, mut start) = (Vec::new(), work.start);
    let inside = others.iter().filter(|it| it.start < work.end && work.start < it.end);
    for (from, to) in inside.map(|it| (it.start, it.end)).chain([(work.end, work.end)]) {
        if start < from {
            parts.push(Work { start, end: from, ..work.clone() });
        }
        start = to.max(start);
    }
    parts
}

/// Summarises the step in a sentence, from the spans that are drawn: with a background thread, the part of communication
/// that computing hides. Without one, the part of the step that is communication, or computing on one device.
fn conclusion(works: &[Work], all: &[Lanes]) -> String {
    let sum = |works: &[Work]| works.iter().map(Work::length).sum::<f64>();
    let shared = |these: &[Work], those: &[Work]| {
        let apart = these.iter().flat_map(|work| without(work, those)).collect_vec();
        sum(these) - sum(&apart)
    };
    let [mut computing, mut communicating, mut hidden] = [0.0; 3];
    for [computes, communicates, background] in all {
        computing += sum(computes);
        communicating += sum(communicates) + sum(background) - shared(communicates, background);
        hidden += shared(background, computes);
    }
    let steps = works.iter().filter(|work| work.is_step()).map(Work::length).sum::<f64>();
    let percent = |part: f64, whole: f64| format!("{:.0} %", part / whole * 100.0);
    if all.iter().any(|[.., background]| !background.is_empty()) {
        let part = percent(hidden, communicating);
        format!("{part} of communication is hidden behind computing.")
    } else if communicating > 0.0 {
        let (devices, part) = (counted(all.len(), "device"), percent(communicating, steps));
        format!("The {devices} communicate or wait for {part} of the step.")
    } else {
        format!("Computing takes {} of the step.", percent(computing, steps))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Map;

    use super::*;

    fn span(
        (run, rank): (usize, usize),
        track: &'static str,
        name: &'static str,
        from: u32,
        to: u32,
    ) -> Span {
        let [start, end] = [from, to].map(|milliseconds| f64::from(milliseconds) / 1e3);
        let work = Work { rank, track: track.into(), name: name.into(), start, end };
        Span { run, work, fields: Map::new() }
    }

    fn drawn(spans: Vec<Span>) -> Option<String> {
        let runs = ["one device", "ddp <2>", "one device, all cores"].map(str::to_owned).to_vec();
        draw("LeNet", &Recorded { runs, spans, ..Recorded::default() })
    }

    fn texts(svg: &str) -> Vec<&str> {
        let texts = svg.lines().filter(|line| line.starts_with("<text"));
        texts.map(|line| line.split(['>', '<']).nth(2).unwrap()).collect()
    }

    /// Steps of a run of two ranks between two runs of one rank. Rank 1 is ahead by 2 ms. In the step of 20 ms both ranks
    /// compute for 16 ms, and rank 1 communicates for 15 ms in the background.
    fn three_runs() -> Vec<Span> {
        vec![
            span((0, 0), STEPS, "step", 0, 10),
            span((1, 0), STEPS, "epoch", 10, 100),
            span((1, 0), STEPS, "step", 10, 20),
            span((1, 0), STEPS, "step", 20, 40),
            span((1, 0), STEPS, "step", 40, 100),
            span((1, 0), COMPUTE, "early", 11, 19),
            span((1, 0), COMPUTE, "backward", 22, 38),
            span((1, 0), COMPUTE, "inside", 23, 30),
            span((1, 1), STEPS, "step", 8, 18),
            span((1, 1), STEPS, "step", 18, 38),
            span((1, 1), STEPS, "step", 38, 98),
            span((1, 1), COMPUTE, "backward", 20, 36),
            span((1, 1), BACKGROUND, "bucket", 22, 37),
            // This work of rank 1 overlaps rank 0's step.
            span((1, 1), COMPUTE, "next step", 38, 60),
            span((2, 0), STEPS, "step", 100, 140),
            span((2, 0), COMPUTE, "late", 105, 138),
        ]
    }

    #[test]
    fn every_rank_of_the_largest_run_shows_its_step_of_median_length() {
        let svg = drawn(three_runs()).unwrap();
        let texts = texts(&svg);
        // 14 of 15 ms are hidden.
        let sentence = "93 % of communication is hidden behind computing.";
        assert_eq!(texts[..2], ["One step of ddp &lt;2&gt; on 2 devices: LeNet", sentence]);
        for text in ["computing", "background: communication on a second thread", "0 ms", "20"] {
            assert!(texts.contains(&text), "{text} is missing in {texts:?}");
        }
        let rows = texts.iter().filter(|text| text.starts_with("rank") || **text == "background");
        assert_eq!(rows.collect_vec(), [&"rank 0 computes", &"rank 1 computes", &"background"]);
        assert!(
            ["early", "inside", "next step", "late"].iter().all(|text| !svg.contains(text)),
            "{svg}"
        );
        assert!(svg.contains("<title>rank 1, bucket: 15 ms, from 4 ms</title>"), "{svg}");
        assert!(svg.contains("<title>rank 0, backward: 16 ms, from 4 ms</title>"), "{svg}");
        assert_eq!(svg.matches("<title>").count(), 3, "{svg}");
    }

    #[test]
    fn the_conclusion_is_computed_from_the_spans() {
        let conclusion = |spans: Vec<Span>| texts(&drawn(spans).unwrap())[1].to_owned();
        let alone = vec![span((0, 0), STEPS, "step", 0, 10), span((0, 0), COMPUTE, "all", 1, 10)];
        assert_eq!(conclusion(alone.clone()), "Computing takes 90 % of the step.");
        // A second rank waits, within its forward pass, for half of its step and for longer than the step.
        let waits = [
            span((0, 1), STEPS, "step", 0, 10),
            span((0, 1), COMPUTE, "all", 0, 20),
            span((0, 1), COMMUNICATION, "wait", 5, 20),
        ];
        let two = [&alone[..], &waits].concat();
        assert_eq!(
            conclusion(two.clone()),
            "The 2 devices communicate or wait for 25 % of the step."
        );
        // From 4 to 8, and one of these four milliseconds is hidden.
        let bucket = span((0, 1), BACKGROUND, "bucket", 4, 8);
        let all = [&two[..], &[bucket]].concat();
        assert_eq!(conclusion(all), "17 % of communication is hidden behind computing.");
    }

    #[test]
    fn communication_within_a_forward_pass_cuts_its_bar() {
        let svg = drawn(vec![
            span((0, 0), STEPS, "step", 0, 100),
            span((0, 0), COMPUTE, "forward", 0, 100),
            span((0, 0), COMMUNICATION, "all-reduce", 20, 40),
            span((0, 0), COMMUNICATION, "all-reduce", 70, 77),
        ]);
        let svg = svg.unwrap();
        assert!(svg.contains("communicate or wait for 27 % of the step."), "{svg}");
        for (length, start) in [(20, 0), (30, 40), (23, 77)] {
            let part = format!("<title>rank 0, forward: {length} ms, from {start} ms</title>");
            assert!(svg.contains(&part), "{part} is missing in {svg}");
        }
        assert_eq!(svg.matches("<title>rank 0, forward").count(), 3);
    }

    #[test]
    fn of_several_runs_with_the_most_ranks_the_last_is_drawn() {
        let mut spans = three_runs();
        spans.push(span((0, 1), COMPUTE, "first", 1, 9));
        assert!(drawn(spans.clone()).unwrap().contains("One step of ddp"));
        spans.push(span((2, 1), STEPS, "step", 101, 109));
        assert!(drawn(spans).unwrap().contains("One step of one device, all cores on 2 devices"));
    }

    #[test]
    fn without_a_step_there_is_nothing_to_draw() {
        assert!(drawn(Vec::new()).is_none());
        assert!(drawn(vec![span((0, 0), COMPUTE, "forward", 0, 10)]).is_none());
        assert!(drawn(vec![span((0, 0), STEPS, "step", 0, 0)]).is_none());
        let empty = drawn(vec![span((0, 0), STEPS, "step", 0, 10)]).unwrap();
        assert!(empty.contains("Computing takes 0 % of the step."));
    }
}
