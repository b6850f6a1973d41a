//! Our time ÷ PyTorch's: a dot for the median, a line from the smallest to the largest.

use anyhow::ensure;
use course_tests::Machine;
use serde::Deserialize;

use super::Figure;
use super::drawing::{Anchor, Drawing, WIDTH};
use super::measurement::caption;

/// `book/data/peers-cpu.json`, as far as it is drawn.
#[derive(Deserialize)]
struct Table {
    command: String,
    date: Option<String>,
    machine: Machine,
    versions: Versions,
    rows: Vec<Row>,
}

#[derive(Deserialize)]
struct Versions {
    torch: String,
}

#[derive(Deserialize)]
struct Row {
    topic: String,
    what: String,
    series: String,
    threads: String,
    peers: Vec<Peer>,
}

#[derive(Deserialize)]
struct Peer {
    side: String,
    ratio: Option<Ratio>,
}

#[derive(Clone, Copy, Deserialize)]
struct Ratio {
    median: f64,
    min: f64,
    max: f64,
}

/// A line of the figure.
struct Drawn {
    label: String,
    ratio: Ratio,
}

impl Row {
    /// What is drawn of this row: work that takes time on both sides, whole.
    fn drawn(&self) -> Option<Drawn> {
        let whole = match self.topic.as_str() {
            "lenet-step" | "data-parallel-step" | "resnet18-step" => true,
            "convolutions" => self.series == "both",
            _ => false,
        };
        let peer = self.peers.iter().find(|peer| peer.side.starts_with("PyTorch"))?;
        let threads = match self.threads.as_str() {
            "1" => "1 thread".to_owned(),
            "2 × 1" => format!("against {}", peer.side),
            threads => format!("{threads} threads"),
        };
        let ratio = peer.ratio.filter(|_| whole)?;
        Some(Drawn { label: format!("{} · {threads}", self.what), ratio })
    }
}

/// Draws the table's rows in its order.
pub(super) fn draw(text: &str) -> anyhow::Result<Figure> {
    let table: Table = serde_json::from_str(text)?;
    let rows: Vec<Drawn> = table.rows.iter().filter_map(Row::drawn).collect();
    ensure!(!rows.is_empty(), "there is no row with PyTorch beside ours");
    let caption = caption(&table.machine, table.date.as_deref(), &table.command);
    let caption = format!("PyTorch {}. {caption}", table.versions.torch);
    Ok(Figure { svg: svg(&rows), caption })
}

fn svg(rows: &[Drawn]) -> String {
    const ROW: f64 = 38.0;
    const TOP: f64 = 42.0;
    const LEFT: f64 = 8.0;
    const RIGHT: f64 = WIDTH - 58.0;
    let largest = rows.iter().map(|row| row.ratio.max).fold(1.0, f64::max);
    // To the next quarter, so that the axis ends in a number.
    let end = (largest * 4.0).ceil() / 4.0;
    let x = |ratio: f64| LEFT + ratio / end * (RIGHT - LEFT);
    let bottom = TOP + ROW * rows.len() as f64;
    let told: Vec<String> =
        rows.iter().map(|row| format!("{}: {:.2}", row.label, row.ratio.median)).collect();
    let mut drawing =
        Drawing::new(bottom + 44.0, format_args!("Our time ÷ PyTorch's. {}", told.join("; ")));
    drawing.text("label", (x(1.0), 14.0), Anchor::Middle, "as long as");
    drawing.text("label", (x(1.0), 30.0), Anchor::Middle, "PyTorch");
    for quarter in 0..=(end * 4.0) as u32 {
        let ratio = f64::from(quarter) / 4.0;
        let class = if quarter == 4 { "axis" } else { "grid" };
        drawing.line(class, (x(ratio), TOP - 6.0), (x(ratio), bottom));
        drawing.text("label", (x(ratio), bottom + 17.0), Anchor::Middle, ratio);
    }
    drawing.text("label quiet", (RIGHT, bottom + 36.0), Anchor::End, "our time ÷ PyTorch's");
    for (position, Drawn { label, ratio }) in rows.iter().enumerate() {
        let y = TOP + ROW * position as f64;
        drawing.text("label on-lines", (LEFT, y + 12.0), Anchor::Start, label);
        let line = y + 24.0;
        drawing.path("series-1", 3.0, &[(x(ratio.min), line), (x(ratio.max), line)]);
        drawing.mark(0, (x(ratio.median), line));
        let number = format!("{:.2}", ratio.median);
        drawing.text("label strong", (WIDTH - 8.0, line + 4.5), Anchor::End, number);
    }
    drawing.finish()
}
