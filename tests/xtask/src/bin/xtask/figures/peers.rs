//! Our time ÷ PyTorch's: a mark for the median, a line from the smallest to the largest; one of each for every machine
//! that it was measured on.

use anyhow::{Context as _, ensure};
use serde::Deserialize;
use xtask::Machine;

use super::Figure;
use super::drawing::{Anchor, Drawing, WIDTH, series_class};
use super::measurement::caption;

/// What `cargo xtask peers` stored, as far as it is drawn.
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

/// A row of the figure, with a ratio for each machine.
struct Drawn {
    label: String,
    ratios: Vec<Ratio>,
}

impl Table {
    fn drawn(&self) -> Vec<Drawn> {
        let on_a_gpu = !self.machine.gpus.is_empty();
        self.rows.iter().filter_map(|row| row.drawn(on_a_gpu)).collect()
    }

    fn device(&self) -> &str {
        self.machine.gpus.first().unwrap_or(&self.machine.processor)
    }
}

impl Row {
    /// What is drawn of this row: work that takes time on both sides, whole.
    fn drawn(&self, on_a_gpu: bool) -> Option<Drawn> {
        let whole = match self.topic.as_str() {
            "lenet-step" | "data-parallel-step" | "resnet18-step" | "resnet18-ddp-step" => true,
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
        // A GPU is asked by one thread, whatever the processor has.
        let label =
            if on_a_gpu { self.what.clone() } else { format!("{} · {threads}", self.what) };
        Some(Drawn { label, ratios: vec![ratio] })
    }
}

/// Draws tables of the same rows, in the first one's order.
pub(super) fn draw(texts: &[String]) -> anyhow::Result<Figure> {
    let tables: Vec<Table> =
        texts.iter().map(|text| serde_json::from_str(text)).collect::<Result<_, _>>()?;
    let (first, others) = tables.split_first().context("there is no table")?;
    let mut rows: Vec<Drawn> = first.drawn();
    ensure!(!rows.is_empty(), "there is no row with PyTorch beside ours");
    for other in others {
        let other = other.drawn();
        ensure!(
            other.len() == rows.len(),
            "the tables have {} and {} rows",
            rows.len(),
            other.len()
        );
        for Drawn { label, ratios } in &mut rows {
            let same = other.iter().find(|other| other.label == *label);
            let same = same.with_context(|| format!("only one table has \"{label}\""))?;
            ratios.extend(&same.ratios);
        }
    }
    let version = &first.versions.torch;
    ensure!(tables.iter().all(|table| table.versions.torch == *version), "PyTorch differs");
    let measured = tables.iter().map(|Table { machine, date, command, .. }| {
        caption(machine, date.as_deref(), command).trim_end().to_owned()
    });
    let caption = format!("PyTorch {version}. {}\n", measured.collect::<Vec<_>>().join(" "));
    let machines: Vec<&str> = tables.iter().map(Table::device).collect();
    Ok(Figure { svg: svg(&rows, &machines), caption })
}

fn svg(rows: &[Drawn], machines: &[&str]) -> String {
    const LABEL: f64 = 24.0;
    const LINE: f64 = 14.0;
    const TOP: f64 = 42.0;
    const LEFT: f64 = 8.0;
    const RIGHT: f64 = WIDTH - 58.0;
    let ratios = || rows.iter().flat_map(|row| &row.ratios);
    let largest = ratios().map(|ratio| ratio.max).fold(1.0, f64::max);
    // To the next quarter, so that the axis ends in a number.
    let end = (largest * 4.0).ceil() / 4.0;
    let x = |ratio: f64| LEFT + ratio / end * (RIGHT - LEFT);
    let row = LABEL + LINE * machines.len() as f64;
    let bottom = TOP + row * rows.len() as f64;
    let told = rows.iter().map(|Drawn { label, ratios }| {
        let medians: Vec<String> = ratios.iter().map(|r| format!("{:.2}", r.median)).collect();
        format!("{label}: {}", medians.join(" and "))
    });
    let title = format!(
        "Our time ÷ PyTorch's on {}. {}",
        machines.join(" and on "),
        told.collect::<Vec<_>>().join("; ")
    );
    let height = bottom + 44.0 + 18.0 * machines.len() as f64;
    let mut drawing = Drawing::new(height, title);
    drawing.text("label", (x(1.0), 14.0), Anchor::Middle, "as long as");
    drawing.text("label", (x(1.0), 30.0), Anchor::Middle, "PyTorch");
    for quarter in 0..=(end * 4.0) as u32 {
        let ratio = f64::from(quarter) / 4.0;
        let class = if quarter == 4 { "axis" } else { "grid" };
        drawing.line(class, (x(ratio), TOP - 6.0), (x(ratio), bottom));
        drawing.text("label", (x(ratio), bottom + 17.0), Anchor::Middle, ratio);
    }
    drawing.text("label quiet", (RIGHT, bottom + 36.0), Anchor::End, "our time ÷ PyTorch's");
    for (position, Drawn { label, ratios }) in rows.iter().enumerate() {
        let y = TOP + row * position as f64;
        drawing.text("label on-lines", (LEFT, y + 12.0), Anchor::Start, label);
        for (machine, ratio) in ratios.iter().enumerate() {
            let line = y + LABEL + LINE * machine as f64;
            let class = series_class(machine);
            drawing.path(&class, 3.0, &[(x(ratio.min), line), (x(ratio.max), line)]);
            drawing.mark(machine, (x(ratio.median), line));
            let number = format!("{:.2}", ratio.median);
            drawing.text("label strong", (WIDTH - 8.0, line + 4.5), Anchor::End, number);
        }
    }
    for (machine, name) in machines.iter().enumerate() {
        let y = bottom + 54.0 + 18.0 * machine as f64;
        drawing.mark(machine, (LEFT + 5.0, y - 4.5));
        drawing.text("label", (LEFT + 16.0, y), Anchor::Start, name);
    }
    drawing.finish()
}
