//! Timelines below each other as SVG: time goes right, and stages are rows.
//!
//! All are on one scale, so that the shorter step is shorter. Classes, not colours: the book's style sheets
//! colour this picture and the figure that scripts draw alike.

use super::{Pass, Plan, Row, Shape, Timeline, Units};

/// How wide a unit of time is.
const UNIT: usize = 11;
/// Where time begins: the names of the stages stand before it.
const LEFT: usize = 50;
/// What a stage keeps stands behind the end.
const RIGHT: usize = 44;
const CELL: usize = 17;
/// From one stage to the next.
const ROW: usize = CELL + 3;
/// What a timeline is called and comes to stands above it.
const HEAD: usize = 22;
/// Between two timelines.
const GAP: usize = 16;
const AXIS: usize = 26;
/// A line for what the colours mean.
const LEGEND: usize = 20;
/// Units from one number of the axis to the next.
const TICK: usize = 5;

/// The picture. It becomes part of a page, where an empty line would end it: there is none.
///
/// Where an activation waits for its weights' gradient, the peak with these follows the peak without.
pub fn picture(plans: &[(&Plan, &Shape, &Timeline)]) -> String {
    let longest = plans.iter().map(|(.., timeline)| timeline.units.0).fold(0.0, f64::max);
    let names: Vec<String> = plans.iter().map(|(plan, ..)| plan.kind.clone()).collect();
    let stages: usize = plans.iter().map(|(plan, ..)| plan.stages).sum();
    let bottom = plans.len() * (HEAD + GAP) + stages * ROW - GAP;
    let mut lines = vec![format!(
        "<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"Timelines: {}\">",
        x(longest) + RIGHT as f64,
        bottom + AXIS + LEGEND,
        names.join(", ")
    )];
    let mut top = 0;
    for (plan, shape, timeline) in plans {
        lines.extend(head(plan, timeline, top, longest));
        for stage in 0..plan.stages {
            lines.extend(row(stage, shape, timeline, top + HEAD + stage * ROW, longest));
        }
        top += HEAD + plan.stages * ROW + GAP;
    }
    for time in (0..=longest as usize).step_by(TICK) {
        let (x, y) = (x(time as f64), bottom + 17);
        let unit = if time == 0 { "0 units" } else { &time.to_string() };
        let anchor = if time == 0 { "start" } else { "middle" };
        lines.push(format!(
            r#"<text class="small" x="{x}" y="{y}" text-anchor="{anchor}">{unit}</text>"#
        ));
    }
    lines.extend(legend(plans.iter().flat_map(|(_, shape, _)| &shape.passes), bottom + AXIS));
    lines.push("</svg>\n".to_owned());
    lines.join("\n")
}

/// What it is called and comes to, and what stands at the end of its rows.
fn head(plan: &Plan, timeline: &Timeline, top: usize, longest: f64) -> [String; 2] {
    let y = top + 14;
    let percent = 100.0 * timeline.bubble;
    let head = format!(
        "<text x=\"0\" y=\"{y}\"><tspan class=\"strong\">{}</tspan>: bubble {percent:.1} %, {} units</text>",
        plan.kind, timeline.units.0
    );
    let peak = if timeline.peaks_with_weights.is_empty() { "peak" } else { "peak / with W" };
    [head, at_the_end(longest, y, "small", peak)]
}

/// A stage: its name, its time, what it does in it, and the most that it keeps.
fn row(stage: usize, shape: &Shape, timeline: &Timeline, y: usize, longest: f64) -> Vec<String> {
    let (left, right, line) = (x(0.0), edge(timeline.units.0), y + 13);
    let mut lines = vec![
        format!(r#"<text x="0" y="{line}">stage {stage}</text>"#),
        format!(r#"<path class="cell idle" d="M{left} {y}H{right}v{CELL}H{left}z"/>"#),
    ];
    lines.extend(cells(&timeline.rows[stage], shape, y));
    let with_weights = timeline.peaks_with_weights.get(stage);
    let with_weights = with_weights.map_or(String::new(), |both| format!(" / {both}"));
    let peak = format!("{}{with_weights}", timeline.peaks[stage]);
    lines.push(at_the_end(longest, line, "peak", &peak));
    lines
}

/// Every pass, a path for those of one letter; then their micro-batches.
fn cells(row: &Row, shape: &Shape, y: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let mut numbers = String::new();
    for pass in &shape.passes {
        let passes = row.passes.chars().zip(&row.micro_batches).zip(&row.starts);
        let mut boxes = String::new();
        for ((_, micro_batch), Units(start)) in
            passes.filter(|((letter, _), _)| *letter == pass.letter)
        {
            let (left, right) = (x(*start), edge(start + pass.units.0));
            boxes += &format!("M{left} {y}H{right}v{CELL}H{left}z");
            let (middle, line) = ((left + right) / 2.0, y + 13);
            numbers += &format!(r#"<text x="{middle}" y="{line}">{micro_batch}</text>"#);
        }
        lines.push(format!(r#"<path class="{}" d="{boxes}"/>"#, class(pass)));
    }
    lines.push(format!(r#"<g class="number">{numbers}</g>"#));
    lines
}

/// The series that gives a pass its colour.
fn class(pass: &Pass) -> String {
    let series = "FBW".find(pass.letter.to_ascii_uppercase()).map_or(5, |index| index + 1);
    let second = if pass.chunk > 0 { " second" } else { "" };
    format!("cell series-{series}{second}")
}

/// What the colours mean: each colour as it is called first.
fn legend<'a>(passes: impl Iterator<Item = &'a Pass>, y: usize) -> Vec<String> {
    let mut entries: Vec<(String, &str)> = Vec::new();
    for pass in passes {
        let class = class(pass);
        if entries.iter().all(|(other, _)| *other != class) {
            entries.push((class, pass.name));
        }
    }
    entries.push(("cell idle".to_owned(), "idle: the bubble"));
    let mut left = 0;
    let entry = |(class, name): (String, &str)| {
        let (right, words, line) = (left + 13, left + 18, y + 13);
        let entry = format!(
            r#"<path class="{class}" d="M{left} {}H{right}v10H{left}z"/><text class="small" x="{words}" y="{line}">{name}</text>"#,
            y + 4
        );
        left += 32 + name.len() * 6;
        entry
    };
    entries.into_iter().map(entry).collect()
}

fn at_the_end(longest: f64, y: usize, class: &str, text: &str) -> String {
    let x = x(longest) + RIGHT as f64 - 1.0;
    format!(r#"<text class="{class}" x="{x}" y="{y}" text-anchor="end">{text}</text>"#)
}

/// Where a box ends at this time: a hair before the next.
fn edge(units: f64) -> f64 {
    x(units) - 1.0
}

/// Where a time is.
fn x(units: f64) -> f64 {
    LEFT as f64 + units * UNIT as f64
}
