//! A run as SVG: time goes down, ranks stand side by side.
//!
//! Every rank is drawn once before the first step and once after each, as its chunks; a chunk has a stripe
//! for each contribution that it holds, and is filled when it holds all. Classes, not colours: the book's
//! style sheet colours this picture and the stepper alike.

use std::collections::BTreeSet;

use super::{Message, Run};

const CELL: usize = 16;
const GAP: usize = 3;
/// Between two ranks.
const AISLE: usize = 20;
/// Where the first rank begins: the names of the steps stand before it.
const LEFT: usize = 56;
const TOP: usize = 30;
/// From one row of cells to the next: arrows lie between.
const ROW: usize = CELL + 32;

/// The picture. It becomes part of a page, where an empty line would end it: there is none.
pub fn picture(run: &Run) -> String {
    let Run { algorithm, ranks, steps, .. } = run;
    let width = x(run, *ranks, 0) - AISLE + 14;
    let height = TOP + steps.len() * ROW + CELL + 4;
    let about = format!("The {} steps of the {algorithm} on {ranks} ranks", steps.len());
    let mut lines = vec![format!(
        r#"<svg class="all-reduce-steps" viewBox="0 0 {width} {height}" role="img" aria-label="{about}">"#
    )];
    for rank in 0..*ranks {
        let middle = (x(run, rank, 0) + x(run, rank, ranks - 1) + CELL) / 2;
        lines.push(format!(r#"<text x="{middle}" y="16" text-anchor="middle">rank {rank}</text>"#));
    }
    let nothing = Vec::new();
    let arrived = std::iter::once(&nothing).chain(steps);
    for (step, (holdings, arrived)) in run.holdings().iter().zip(arrived).enumerate() {
        let y = TOP + step * ROW;
        let name = if step == 0 { "before".to_owned() } else { format!("step {step}") };
        lines.push(format!(r#"<text x="0" y="{}">{name}</text>"#, y + 13));
        for (rank, chunks) in holdings.iter().enumerate() {
            for (chunk, held) in chunks.iter().enumerate() {
                let new = arrived.iter().any(|m| m.to == rank && m.chunks.contains(&chunk));
                lines.extend(cell((x(run, rank, chunk), y), held, *ranks, new));
            }
        }
        lines.extend(arrived.iter().flat_map(|message| arrow(run, message, y)));
    }
    lines.push("</svg>\n".to_owned());
    lines.join("\n")
}

/// The left edge of a rank's chunk.
fn x(run: &Run, rank: usize, chunk: usize) -> usize {
    LEFT + rank * pitch(run) + chunk * (CELL + GAP)
}

/// From one rank to the next.
fn pitch(run: &Run) -> usize {
    run.ranks * (CELL + GAP) - GAP + AISLE
}

/// A chunk: its frame, and a stripe for each rank that is in it unless all are.
fn cell((x, y): (usize, usize), held: &BTreeSet<usize>, ranks: usize, new: bool) -> Vec<String> {
    let whole = held.len() == ranks;
    let classes =
        format!("cell{}{}", if whole { " whole" } else { "" }, if new { " new" } else { "" });
    let rect = |class: &str, x: usize, width: usize| {
        format!(r#"<rect class="{class}" x="{x}" y="{y}" width="{width}" height="{CELL}"/>"#)
    };
    let width = CELL / ranks;
    let stripe = |rank: &usize| rect(&format!("of-{rank}"), x + rank * width, width);
    let stripes = held.iter().filter(|_| !whole).map(stripe);
    stripes.chain([rect(&classes, x, CELL)]).collect()
}

/// From the sender's last chunk of the message, in the row above, to the receiver's.
///
/// Ranks stand in a ring, so what leaves the picture on the right comes in again on the left.
fn arrow(run: &Run, message: &Message, y: usize) -> Vec<String> {
    let chunk = message.chunks.last().copied().unwrap_or(0);
    let start = (x(run, message.from, chunk) + CELL / 2) as f64;
    let ahead = ((message.to + run.ranks - message.from) % run.ranks * pitch(run)) as f64;
    let mut arrows = vec![line(start, start + ahead, y)];
    if message.to < message.from {
        let start = start - (run.ranks * pitch(run)) as f64;
        arrows.push(line(start, start + ahead, y));
    }
    arrows
}

/// An arrow from the row above to the row at `y`.
fn line(from: f64, to: f64, y: usize) -> String {
    let (top, bottom) = ((y + CELL - ROW) as f64 + 2.0, y as f64 - 3.0);
    let length = (to - from).hypot(bottom - top);
    let (right, down) = ((to - from) / length, (bottom - top) / length);
    // The two corners behind the tip.
    let corner = |side: f64| {
        let (x, y) =
            (to - 8.0 * right - side * 4.0 * down, bottom - 8.0 * down + side * 4.0 * right);
        format!("{x:.1} {y:.1}")
    };
    let (one, other) = (corner(1.0), corner(-1.0));
    format!(r#"<path class="arrow" d="M{from} {top}L{to} {bottom}M{one}L{to} {bottom}L{other}"/>"#)
}
