//! A run as SVG: time goes down, ranks stand side by side.
//!
//! Every rank is drawn once before the first step and once after each, as its chunks; a chunk has a stripe
//! for each contribution that it holds, and is filled when it holds all. Classes, not colours: the book's
//! style sheet colours this picture and the stepper alike.

use std::collections::BTreeSet;
use std::fmt::Write as _;

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

/// The picture. Its lines are part of a page, so none of them is empty.
pub fn picture(run: &Run) -> String {
    let mut svg = String::new();
    let height = TOP + run.steps.len() * ROW + CELL + 4;
    let width = x(run, run.ranks, 0) - AISLE + 14;
    let Run { algorithm, ranks, steps, .. } = run;
    put(
        &mut svg,
        format_args!(
            "<svg class=\"all-reduce-steps\" viewBox=\"0 0 {width} {height}\" role=\"img\" \
         aria-label=\"The {} steps of the {algorithm} on {ranks} ranks\">",
            steps.len()
        ),
    );
    for rank in 0..*ranks {
        let middle = (x(run, rank, 0) + x(run, rank, ranks - 1) + CELL) / 2;
        put(
            &mut svg,
            format_args!("<text x=\"{middle}\" y=\"16\" text-anchor=\"middle\">rank {rank}</text>"),
        );
    }
    let nothing = Vec::new();
    let arrived = std::iter::once(&nothing).chain(steps);
    for (step, (holdings, arrived)) in run.holdings().iter().zip(arrived).enumerate() {
        let y = TOP + step * ROW;
        let name = if step == 0 { "before".to_owned() } else { format!("step {step}") };
        put(&mut svg, format_args!("<text x=\"0\" y=\"{}\">{name}</text>", y + 13));
        for (rank, chunks) in holdings.iter().enumerate() {
            for (chunk, held) in chunks.iter().enumerate() {
                let new = arrived.iter().any(|m| m.to == rank && m.chunks.contains(&chunk));
                put_cell(&mut svg, (x(run, rank, chunk), y), held, *ranks, new);
            }
        }
        for message in arrived {
            put_arrow(&mut svg, run, message, y);
        }
    }
    put(&mut svg, format_args!("</svg>"));
    svg
}

/// The left edge of a rank's chunk.
fn x(run: &Run, rank: usize, chunk: usize) -> usize {
    LEFT + rank * pitch(run) + chunk * (CELL + GAP)
}

/// From one rank to the next.
fn pitch(run: &Run) -> usize {
    run.ranks * (CELL + GAP) - GAP + AISLE
}

fn put_cell(
    svg: &mut String,
    (x, y): (usize, usize),
    held: &BTreeSet<usize>,
    ranks: usize,
    new: bool,
) {
    let class = match (held.len() == ranks, new) {
        (true, true) => "cell whole new",
        (true, false) => "cell whole",
        (false, true) => "cell new",
        (false, false) => "cell",
    };
    put(
        svg,
        format_args!(
            "<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"{CELL}\" height=\"{CELL}\"/>"
        ),
    );
    if held.len() < ranks {
        let stripe = CELL / ranks;
        for rank in held {
            let x = x + rank * stripe;
            put(
                svg,
                format_args!(
                    "<rect class=\"of-{rank}\" x=\"{x}\" y=\"{y}\" width=\"{stripe}\" height=\"{CELL}\"/>"
                ),
            );
        }
    }
}

/// From the sender's last chunk of the message, in the row above, to the receiver's.
///
/// Ranks stand in a ring, so what leaves the picture on the right comes in again on the left.
fn put_arrow(svg: &mut String, run: &Run, message: &Message, y: usize) {
    let chunk = message.chunks.last().copied().unwrap_or(0);
    let around = run.ranks * pitch(run);
    let ahead = (message.to + run.ranks - message.from) % run.ranks * pitch(run);
    let start = x(run, message.from, chunk) + CELL / 2;
    put_line(svg, start as f64, (start + ahead) as f64, y);
    if message.to < message.from {
        let start = start as f64 - around as f64;
        put_line(svg, start, start + ahead as f64, y);
    }
}

/// An arrow from the row above to the row at `y`.
fn put_line(svg: &mut String, from: f64, to: f64, y: usize) {
    let (top, bottom) = ((y + CELL - ROW) as f64 + 2.0, y as f64 - 3.0);
    let length = (to - from).hypot(bottom - top);
    let (right, down) = ((to - from) / length, (bottom - top) / length);
    // The two corners behind the tip.
    let corner = |side: f64| {
        (to - 8.0 * right - side * 4.0 * down, bottom - 8.0 * down + side * 4.0 * right)
    };
    let ((ax, ay), (bx, by)) = (corner(1.0), corner(-1.0));
    put(
        svg,
        format_args!(
            "<path class=\"arrow\" d=\"M{from:.0} {top:.0}L{to:.0} {bottom:.0}M{ax:.1} {ay:.1}L{to:.0} \
         {bottom:.0}L{bx:.1} {by:.1}\"/>"
        ),
    );
}

fn put(svg: &mut String, line: std::fmt::Arguments<'_>) {
    // Writing into a string cannot fail.
    let _ = writeln!(svg, "{line}");
}
