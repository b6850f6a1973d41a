//! What the book's figure of schedules shows is what stage 6 says, and is right.
//!
//! The stored file is read here as a browser reads it, and checked without stage 6: that it is a pipeline,
//! and that what is told about it can be counted in it.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the right answer")]

use std::collections::BTreeMap;
use std::path::Path;

use course_tests::schedules::{Catalogue, KINDS, MICRO_BATCHES, PICTURED, Plan, STAGES, picture};
use model_parallel::pipeline::predict::{Costs, StageCost};
use model_parallel::pipeline::{Kind, check, predict};
use serde_json::{Value, json};

/// Every time in the file is a multiple of this.
const GRID: f64 = 0.5;

fn in_the_book(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../book").join(name);
    // Git may have been told to end lines as another system does.
    std::fs::read_to_string(path).unwrap().replace("\r\n", "\n")
}

#[test]
fn the_book_has_what_stage_6_says_today() {
    let catalogue = Catalogue::make().unwrap();
    let pictured = catalogue.pictured().unwrap();
    for (name, now) in [
        ("data/pipeline-schedules.json", catalogue.json().unwrap()),
        ("figures/pipeline-schedules.svg", picture(&pictured)),
    ] {
        let old = in_the_book(name);
        let same = old.lines().zip(now.lines()).take_while(|(old, now)| old == now).count();
        assert!(old == now, "book/{name}, line {}: run `cargo course schedules`", same + 1);
    }
}

/// A page of the book has all of it.
#[test]
fn the_file_is_small_and_fits_into_a_page() {
    let text = in_the_book("data/pipeline-schedules.json");
    assert!(text.len() < 150_000, "{} bytes", text.len());
    assert!(text.lines().all(|line| !line.is_empty()), "a blank line ends HTML in a page");
    assert!(!text.contains("</") && !text.contains("{{"), "it stands in a script, in a page");
}

/// A pass of a stage, in steps of [`GRID`].
#[derive(Clone, Debug, PartialEq)]
struct Span {
    letter: char,
    micro_batch: u64,
    start: usize,
    end: usize,
}

impl Span {
    fn forward(&self) -> bool {
        self.letter.eq_ignore_ascii_case(&'F')
    }

    fn backward(&self) -> bool {
        self.letter.eq_ignore_ascii_case(&'B')
    }

    fn chunk(&self) -> usize {
        usize::from(self.letter.is_ascii_lowercase())
    }
}

/// What the file says of one schedule.
#[derive(Clone, Debug)]
struct Told {
    what: String,
    kind: String,
    stages: usize,
    micro_batches: usize,
    chunks: usize,
    letters: Vec<char>,
    /// In steps of [`GRID`].
    time: usize,
    plan: Value,
    rows: Vec<Vec<Span>>,
}

fn steps(units: &Value) -> usize {
    let steps = units.as_f64().unwrap() / GRID;
    assert_eq!(steps.fract(), 0.0, "{units} is no multiple of {GRID}");
    steps as usize
}

fn numbers(list: &Value) -> Vec<u64> {
    list.as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).collect()
}

impl Told {
    fn read(shapes: &[Value], plan: &Value) -> Option<Self> {
        let number = |name: &str| plan[name].as_u64().unwrap() as usize;
        let kind = plan["kind"].as_str().unwrap().to_owned();
        let shape = shapes.iter().find(|shape| shape["kind"] == kind).unwrap();
        let letter = |pass: &Value| pass["letter"].as_str().unwrap().chars().next().unwrap();
        let passes = shape["passes"].as_array().unwrap().iter();
        let lengths: BTreeMap<char, usize> =
            passes.map(|pass| (letter(pass), steps(&pass["units"]))).collect();
        let row = |row: &Value| -> Vec<Span> {
            let letters: Vec<char> = row[0].as_str().unwrap().chars().collect();
            let starts = row[2].as_array().unwrap();
            let micro_batches = numbers(&row[1]);
            assert!(letters.len() == micro_batches.len() && letters.len() == starts.len());
            let spans = letters.into_iter().zip(micro_batches).zip(starts);
            let span = |((letter, micro_batch), start): ((char, u64), &Value)| {
                let start = steps(start);
                Span { letter, micro_batch, start, end: start + lengths[&letter] }
            };
            spans.map(span).collect()
        };
        let rows = plan.get("rows")?.as_array().unwrap().iter().map(row).collect();
        Some(Self {
            what: format!("{kind}, {} × {}", number("stages"), number("micro_batches")),
            stages: number("stages"),
            micro_batches: number("micro_batches"),
            chunks: shape["chunks"].as_u64().unwrap() as usize,
            letters: lengths.keys().copied().collect(),
            time: steps(&plan["units"]),
            plan: plan.clone(),
            kind,
            rows,
        })
    }

    /// The only span that is so.
    fn one(&self, stage: usize, is: impl Fn(&Span) -> bool) -> Result<&Span, String> {
        let found: Vec<&Span> = self.rows[stage].iter().filter(|span| is(span)).collect();
        match found[..] {
            [one] => Ok(one),
            _ => Err(format!("stage {stage}: {} spans for {found:?}", found.len())),
        }
    }

    /// The forward or backward pass of a micro-batch through a part of the model.
    fn pass(&self, part: usize, micro_batch: u64, forward: bool) -> Result<&Span, String> {
        let (stage, chunk) = (part % self.stages, part / self.stages);
        self.one(stage, |span| {
            (if forward { span.forward() } else { span.backward() })
                && span.chunk() == chunk
                && span.micro_batch == micro_batch
        })
    }

    /// What is wrong with it as a pipeline, first of all.
    fn keeps_the_laws(&self) -> Result<(), String> {
        for (stage, row) in self.rows.iter().enumerate() {
            if let Some(pair) = row.windows(2).find(|pair| pair[0].end > pair[1].start) {
                return Err(format!("stage {stage}: {:?} and {:?} at once", pair[0], pair[1]));
            }
            let passes = self.micro_batches * self.letters.len();
            if row.len() != passes {
                return Err(format!("stage {stage}: {} of {passes} passes", row.len()));
            }
            if row.iter().any(|span| span.end > self.time) {
                return Err(format!("stage {stage} goes on after the end"));
            }
        }
        let parts = self.stages * self.chunks;
        for micro_batch in 0..self.micro_batches as u64 {
            for part in 0..parts {
                let forward = self.pass(part, micro_batch, true)?;
                let backward = self.pass(part, micro_batch, false)?;
                let mut order = vec![(forward, backward)];
                if part + 1 < parts {
                    order.push((forward, self.pass(part + 1, micro_batch, true)?));
                    order.push((self.pass(part + 1, micro_batch, false)?, backward));
                }
                if self.letters.contains(&'W') {
                    let weights =
                        |span: &Span| span.letter == 'W' && span.micro_batch == micro_batch;
                    order.push((backward, self.one(part % self.stages, weights)?));
                }
                if let Some((before, after)) = order.iter().find(|(a, b)| a.end > b.start) {
                    return Err(format!("part {part}: {after:?} before {before:?}"));
                }
            }
        }
        Ok(())
    }

    /// What is idle, counted step by step, as a part of all devices' time.
    fn idle(&self) -> f64 {
        let mut idle = 0;
        for row in &self.rows {
            idle += (0..self.time)
                .filter(|step| !row.iter().any(|span| (span.start..span.end).contains(step)))
                .count();
        }
        idle as f64 / (self.stages * self.time) as f64
    }

    /// How many activations are alive in a step, and how many wait for their weights' gradient.
    fn kept(&self, stage: usize, step: usize) -> (u64, u64) {
        let row = &self.rows[stage];
        let count = |is: &dyn Fn(&&Span) -> bool| row.iter().filter(is).count() as u64;
        let begun = count(&|span| span.forward() && span.start <= step);
        let back = count(&|span| span.backward() && span.end <= step);
        let done = count(&|span| span.letter == 'W' && span.end <= step);
        (begun - back, if self.letters.contains(&'W') { back - done } else { 0 })
    }
}

/// Every schedule in the book's file.
fn told() -> Vec<Told> {
    let file: Value = serde_json::from_str(&in_the_book("data/pipeline-schedules.json")).unwrap();
    let shapes = file["shapes"].as_array().unwrap();
    file["plans"].as_array().unwrap().iter().filter_map(|plan| Told::read(shapes, plan)).collect()
}

#[test]
fn every_kind_is_there_in_every_size_or_refused_in_words() {
    let catalogue = Catalogue::make().unwrap();
    let mut plans = catalogue.plans.iter();
    for kind in KINDS {
        for stages in STAGES {
            for micro_batches in MICRO_BATCHES {
                let Plan { kind: name, stages: p, micro_batches: m, .. } = plans.next().unwrap();
                assert_eq!((name, *p, *m), (&kind.to_string(), stages, micro_batches));
            }
        }
    }
    assert!(plans.next().is_none());
    let file: Value = serde_json::from_str(&in_the_book("data/pipeline-schedules.json")).unwrap();
    for plan in file["plans"].as_array().unwrap() {
        let (p, m) = (plan["stages"].as_u64().unwrap(), plan["micro_batches"].as_u64().unwrap());
        let refused = plan["kind"].as_str().unwrap().contains("interleaved") && m % p != 0;
        let words = format!(
            "{m} micro-batches cannot be interleaved on {p} stages: their number has to be a multiple of {p}, \
             such as {}",
            m.next_multiple_of(p)
        );
        assert_eq!(plan.get("refused"), refused.then(|| json!(words)).as_ref(), "{plan}");
        assert_eq!(plan.get("rows").is_none(), refused);
    }
}

#[test]
fn every_timeline_is_that_of_a_pipeline() {
    let all = told();
    assert_eq!(all.len(), 156);
    for told in all {
        assert_eq!(told.keeps_the_laws(), Ok(()), "{}", told.what);
        let spans = || told.rows.iter().flatten();
        assert_eq!(spans().map(|span| span.start).min(), Some(0), "{}", told.what);
        assert_eq!(spans().map(|span| span.end).max(), Some(told.time), "{}", told.what);
    }
}

/// Every pass begins as soon as it can, so whichever is moved, a law is broken.
#[test]
fn no_pass_could_begin_a_moment_earlier() {
    for told in told().iter().filter(|told| told.stages * told.micro_batches <= 32) {
        for stage in 0..told.stages {
            for pass in 0..told.rows[stage].len() {
                let mut early = told.clone();
                let span = &mut early.rows[stage][pass];
                let Some(start) = span.start.checked_sub(1) else { continue };
                (span.start, span.end) = (start, span.end - 1);
                assert!(early.keeps_the_laws().is_err(), "{}: stage {stage}, {pass}", told.what);
            }
        }
    }
}

#[test]
fn a_pass_that_is_another_is_noticed() {
    let all = told();
    let whole = all.iter().find(|told| told.what == "ZB-H1, 4 × 8").unwrap();
    for stage in 0..4 {
        for pass in 0..whole.rows[stage].len() {
            let mut twice = whole.clone();
            twice.rows[stage][pass].micro_batch = (whole.rows[stage][pass].micro_batch + 1) % 8;
            let wrong = twice.keeps_the_laws().unwrap_err();
            assert!(wrong.contains("spans for"), "stage {stage}, {pass}: {wrong}");
            let mut missing = whole.clone();
            missing.rows[stage].remove(pass);
            assert!(missing.keeps_the_laws().unwrap_err().contains("23 of 24 passes"));
        }
    }
}

#[test]
fn the_bubble_is_what_is_idle() {
    for told in told() {
        let bubble = told.plan["bubble"].as_f64().unwrap();
        assert!((bubble - told.idle()).abs() < 1e-12, "{}: {bubble}, {}", told.what, told.idle());
    }
}

/// Huang et al. 2019; Narayanan et al. 2021; Qi et al. 2023: as in stage 6's own tests, from the stored spans.
#[test]
fn times_and_bubbles_are_those_of_the_literature() {
    for told in told() {
        let (p, m, v) = (told.stages as f64, told.micro_batches as f64, told.chunks as f64);
        let (time, bubble) = match told.kind.as_str() {
            "naive" => (3.0 * m * p, (p - 1.0) / p),
            "GPipe" | "1F1B" => (3.0 * (m + p - 1.0), (p - 1.0) / (m + p - 1.0)),
            "interleaved 1F1B, 2 chunks" => {
                (3.0 * (m + (p - 1.0) / v), (p - 1.0) / (v * m + p - 1.0))
            }
            // (p − 1)(tF + tB − tW), from p micro-batches on.
            "ZB-H1" if m < p => continue,
            "ZB-H1" => (3.0 * m + p - 1.0, (p - 1.0) / (3.0 * m + p - 1.0)),
            other => panic!("{other}"),
        };
        assert_eq!(told.time as f64 * GRID, time, "{}", told.what);
        assert!((told.idle() - bubble).abs() < 1e-12, "{}: {}", told.what, told.idle());
    }
}

#[test]
fn what_is_kept_is_what_has_begun_and_is_not_done() {
    for told in told() {
        let halves = told.letters.contains(&'W');
        let mut peaks = Vec::new();
        let mut both = Vec::new();
        for (stage, row) in told.rows.iter().enumerate() {
            let kept: Vec<_> = (0..told.time).map(|step| told.kept(stage, step)).collect();
            peaks.push(kept.iter().map(|(alive, _)| *alive).max().unwrap());
            both.push(kept.iter().map(|(alive, waiting)| alive + waiting).max().unwrap());
            // What the file says holds from the beginning of a forward pass, and the end of any other.
            let lists = told.plan["rows"][stage].as_array().unwrap();
            assert_eq!(lists.len(), if halves { 5 } else { 4 }, "{}", told.what);
            let alive = numbers(&lists[3]);
            let waiting = lists.get(4).map_or_else(|| vec![0; row.len()], numbers);
            assert!(alive.len() == row.len() && waiting.len() == row.len(), "{}", told.what);
            for (i, span) in row.iter().enumerate() {
                let since = if span.forward() { span.start } else { span.end };
                // A pass that begins at once changes it again.
                if row.get(i + 1).is_none_or(|next| !next.forward() || next.start > since) {
                    let counted = told.kept(stage, since);
                    assert_eq!((alive[i], waiting[i]), counted, "{}, {span:?}", told.what);
                }
            }
        }
        assert_eq!(numbers(&told.plan["peaks"]), peaks, "{}", told.what);
        let with_weights = told.plan.get("peaks_with_weights").map(numbers);
        assert_eq!(with_weights, halves.then_some(both), "{}", told.what);
    }
}

#[test]
fn peaks_and_capacities_are_those_of_the_literature() {
    for told in told() {
        let (p, m) = (told.stages, told.micro_batches);
        let ahead: Vec<u64> = (0..p).map(|stage| (p - stage).min(m) as u64).collect();
        let (peaks, capacity) = match told.kind.as_str() {
            "naive" => (Some(vec![1; p]), 0),
            "GPipe" => (Some(vec![m as u64; p]), 0),
            "1F1B" | "ZB-H1" => (Some(ahead), u64::from(m > 1)),
            _ => (None, 1),
        };
        if let Some(peaks) = peaks {
            assert_eq!(numbers(&told.plan["peaks"]), peaks, "{}", told.what);
        }
        assert_eq!(told.plan["capacity"], capacity, "{}", told.what);
    }
}

/// The figure tells one capacity and one timeline: with channels that hold no more, nothing is later.
#[test]
fn the_smallest_channels_are_as_fast_as_any() {
    for kind in KINDS {
        for stages in STAGES {
            for micro_batches in MICRO_BATCHES {
                let plan = Plan::of(kind, stages, micro_batches).unwrap();
                let Some(timeline) = plan.timeline() else { continue };
                let schedule = kind.schedule(stages, micro_batches).unwrap();
                let tight = check(schedule, timeline.capacity).unwrap();
                let tight = predict(&tight, &Costs::equal(stages, StageCost::UNITS)).unwrap();
                let what = format!("{kind}, {stages} × {micro_batches}");
                assert_eq!(tight.makespan(), timeline.units.0, "{what}");
            }
        }
    }
}

#[test]
fn the_picture_tells_what_the_file_tells() {
    let svg = in_the_book("figures/pipeline-schedules.svg");
    let (kinds, stages, micro_batches) = PICTURED;
    assert_eq!(kinds, [Kind::GPipe, Kind::OneFOneB, Kind::ZbH1]);
    let mut rest = svg.as_str();
    for (kind, told) in [("GPipe", 33), ("1F1B", 33), ("ZB-H1", 27)] {
        let bubble = if told == 33 { "27.3" } else { "11.1" };
        let head = format!("{kind}</tspan>: bubble {bubble} %, {told} units</text>");
        let at = rest.find(&head).unwrap_or_else(|| panic!("{head}"));
        rest = &rest[at..];
    }
    // Every pass, and its number; the legend's three.
    let boxes = svg.lines().filter(|line| line.contains("series-")).map(|l| l.matches('M').count());
    let passes = stages * micro_batches * (2 + 2 + 3);
    assert_eq!(boxes.sum::<usize>(), passes + 3);
    let numbers = svg.lines().filter(|line| line.contains("number"));
    assert_eq!(numbers.map(|line| line.matches("<text").count()).sum::<usize>(), passes);
}
