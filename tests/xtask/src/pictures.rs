//! The pictures of the book's interactive figures, for paper and for browsers without scripts.

use std::collections::BTreeSet;

use drawing::svg::{Anchor, FONT, GAP as SPACE, LINE, Point};
use drawing::{Heading, Place, Svg};
use harness::report::number;
use model_parallel::gantt::chart;
use model_parallel::{Bytes, Cost, UNBOUNDED, check};

use crate::{schedules, sharded, steps};

/// The size of a chunk of a tensor, the gaps between chunks and between ranks, and from one step to the next.
const CELL: f64 = 16.0;
const GAP: f64 = 3.0;
const AISLE: f64 = 34.0;
const STEP: f64 = 48.0;

fn heading(title: String) -> Heading {
    Heading { title, ..Heading::default() }
}

/// Predicted steps of some schedules, with the most activations that each stage keeps.
/// Fails when a schedule breaks a law.
pub fn schedules() -> anyhow::Result<String> {
    let (kinds, stages, micro_batches) = schedules::PICTURED;
    let mut pipelines = Vec::new();
    for kind in kinds {
        let checked = check(kind.schedule(stages, micro_batches)?, UNBOUNDED)?;
        pipelines.push((kind.to_string(), checked.simulate(&vec![Cost::UNITS; stages], 0.0)?));
    }
    let named: Vec<_> = pipelines.iter().map(|(name, step)| (&**name, [step])).collect();
    let mut gantt = chart("Timelines of schedules", None, &named);
    for (group, (_, step)) in gantt.groups.iter_mut().zip(&pipelines) {
        group.note = "peak".to_owned();
        for (stage, row) in group.rows.iter_mut().enumerate() {
            row.note = step.held(stage).peak.activations.to_string();
        }
    }
    Ok(gantt.svg(Place::Page))
}

/// The kinds of bytes in [`strategies`], from the bottom up.
const KINDS: [&str; 4] = ["optimizer", "parameters", "gradients", "activations"];

/// The height of a strategy's step in [`strategies`].
const HEIGHT: f64 = 64.0;

/// The bytes of one of four ranks during a step, under each strategy of stage 7, with one micro-batch and fast links. Fails when
/// a list breaks a law.
pub fn strategies() -> anyhow::Result<String> {
    let cost = Cost { all_reduce: sharded::LINKS[0].1, ..sharded::COST };
    let mut steps = Vec::new();
    for (name, strategy) in sharded::STRATEGIES {
        let checked = check(strategy.schedule(sharded::UNITS, 1, 4), UNBOUNDED)?;
        steps.push((name, checked.simulate(&[cost; sharded::UNITS], 0.0)?));
    }
    let longest = steps.iter().map(|(_, step)| step.makespan()).fold(0.0, f64::max);
    let most = steps.iter().map(|(_, step)| step.held(0).total).max().unwrap_or(1) as f64;
    let parameters = (sharded::UNITS * sharded::MEMORY_UNIT / 4) as f64;
    let each = |bytes: f64| number((bytes / parameters * 10.0).round() / 10.0);
    let mut svg = Svg::new(Place::Page, &heading("The bytes of a rank during a step".to_owned()));
    let legend: Vec<_> =
        KINDS.iter().enumerate().map(|(kind, it)| (kind, (*it).to_owned())).collect();
    let mut y = svg.legend(&legend, |svg, kind, (x, y)| {
        svg.rect(&series(*kind), (x, y - FONT / 2.0), (Svg::SAMPLE, FONT), 1.0, "");
    });
    for (name, step) in &steps {
        let peak = format!("peak {}", each(step.held(0).total as f64));
        svg.text("label strong", (0.0, y + LINE / 2.0), Anchor::Start, name);
        svg.text("label", (svg.width(), y + LINE / 2.0), Anchor::End, peak);
        y += LINE + HEIGHT;
        let spans = step.spans.iter().filter(|it| !it.instruction.action.is_collective());
        let ends = spans.clone().skip(1).map(|span| span.start).chain([step.makespan()]);
        let x = |time: f64| time / longest * svg.width();
        let bars = spans.zip(ends).map(|(span, end)| (x(span.start), x(end), heights(span.held)));
        let bars: Vec<_> = bars.filter(|(start, end, _)| start < end).collect();
        for bars in bars.chunk_by(|a, b| a.2 == b.2) {
            let (start, end) = (bars[0].0, bars[bars.len() - 1].1);
            let mut top = y;
            for (kind, bytes) in bars[0].2.into_iter().enumerate().filter(|(_, bytes)| *bytes > 0) {
                let height = bytes as f64 / most * HEIGHT;
                top -= height;
                let tooltip = format!("{name}: {} {}", KINDS[kind], each(bytes as f64));
                svg.rect(&series(kind), (start, top), (end - start, height), 1.0, &tooltip);
            }
        }
        svg.line("axis", (0.0, y), (svg.width(), y));
        y += SPACE;
    }
    Ok(svg.finish(y))
}

/// The bytes of the [`KINDS`]. Activations on their way from unit to unit are activations.
fn heights(held: Bytes) -> [usize; 4] {
    [held.optimizer, held.parameters, held.gradients, held.activations + held.messages]
}

fn series(kind: usize) -> String {
    format!("series-{}", [3, 1, 2, 5][kind])
}

/// The messages of an all-reduce. Time goes down, and ranks are side by side.
///
/// Every rank is drawn once before the first step and once after each, as its chunks. A chunk has a stripe for each rank's
/// contribution, and is filled when it has all. The style sheet of the stepper has the colours.
pub fn steps(run: &steps::Run) -> String {
    let ranks = run.ranks as f64;
    let pitch = ranks * (CELL + GAP) - GAP + AISLE;
    let x = |rank: usize, chunk: usize| 56.0 + rank as f64 * pitch + chunk as f64 * (CELL + GAP);
    let y = |step: usize| 30.0 + step as f64 * STEP;
    let title = format!("The {} steps of the {} on {ranks} ranks", run.steps.len(), run.algorithm);
    let mut svg = Svg::new(Place::Page, &heading(title));
    for rank in 0..run.ranks {
        let middle = (x(rank, 0) + x(rank, run.ranks - 1) + CELL) / 2.0;
        svg.text("label", (middle, 12.0), Anchor::Middle, format_args!("rank {rank}"));
    }
    let nothing = Vec::new();
    let arrived = std::iter::once(&nothing).chain(&run.steps);
    for (step, (holdings, arrived)) in run.holdings().iter().zip(arrived).enumerate() {
        let name = if step == 0 { "before".to_owned() } else { format!("step {step}") };
        svg.text("label", (0.0, y(step) + CELL / 2.0), Anchor::Start, name);
        for (rank, chunks) in holdings.iter().enumerate() {
            for (chunk, held) in chunks.iter().enumerate() {
                let new = arrived.iter().any(|it| it.to == rank && it.chunks.contains(&chunk));
                cell(&mut svg, (x(rank, chunk), y(step)), held, run.ranks, new);
            }
        }
        for message in arrived {
            // From the sender's last chunk of the message in the row above.
            let chunk = message.chunks.last().copied().unwrap_or(0);
            let from = x(message.from, chunk) + CELL / 2.0;
            let ahead = (message.to + run.ranks - message.from) % run.ranks;
            // Ranks form a ring: an arrow that leaves on the right arrives on the left.
            let times = if message.to < message.from { 2 } else { 1 };
            for from in [from, from - ranks * pitch].into_iter().take(times) {
                let to = from + ahead as f64 * pitch;
                arrow(&mut svg, (from, y(step) + CELL - STEP + 2.0), (to, y(step) - 3.0));
            }
        }
    }
    svg.finish(y(run.steps.len()) + CELL + 4.0)
}

fn cell(svg: &mut Svg, (x, y): Point, held: &BTreeSet<usize>, ranks: usize, new: bool) {
    let (whole, width) = (held.len() == ranks, CELL / ranks as f64);
    for rank in held.iter().filter(|_| !whole) {
        let at = (x + *rank as f64 * width, y);
        svg.rect(&format!("of-{rank}"), at, (width, CELL), 1.0, "");
    }
    let [whole, new] =
        [(whole, " whole"), (new, " new")].map(|(is, class)| if is { class } else { "" });
    svg.rect(&format!("cell{whole}{new}"), (x, y), (CELL, CELL), 1.0, "");
}

fn arrow(svg: &mut Svg, from: Point, to: Point) {
    let (right, down) = (to.0 - from.0, to.1 - from.1);
    let length = right.hypot(down);
    let (right, down) = (right / length, down / length);
    let corner = |side: f64| {
        (to.0 - 8.0 * right - side * 4.0 * down, to.1 - 8.0 * down + side * 4.0 * right)
    };
    svg.curve("arrow", 2.0, "none", &[from, to, corner(1.0), to, corner(-1.0)]);
}
