//! Our time ÷ PyTorch's on each machine: a dot for the median, and a line from the smallest ratio to the largest.

use anyhow::{Context as _, ensure};
use drawing::dots::{Dot, Dots};
use drawing::{Axis, Heading, Place};
use itertools::Itertools as _;
use serde::Deserialize;
use xtask::Machine;

use super::Figure;
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

impl Table {
    /// The rows of the figure: a label and a ratio.
    fn drawn(&self) -> Vec<(String, Ratio)> {
        let on_a_gpu = !self.machine.gpus.is_empty();
        self.rows.iter().filter_map(|row| row.drawn(on_a_gpu)).collect()
    }

    fn device(&self) -> &str {
        self.machine.gpus.first().unwrap_or(&self.machine.processor)
    }
}

impl Row {
    /// What is drawn of this row: work that takes time on both sides, whole.
    fn drawn(&self, on_a_gpu: bool) -> Option<(String, Ratio)> {
        let whole = match self.topic.as_str() {
            "lenet-step" | "data-parallel-step" | "resnet18-step" | "resnet18-ddp-step" => true,
            "convolutions" => self.series == "both",
            _ => false,
        };
        let peer = self.peers.iter().find(|peer| peer.side.starts_with("PyTorch"))?;
        let threads = match self.threads.as_str() {
            "1" => "1 thread".to_owned(),
            "2 × 1" => peer.side.clone(),
            threads => format!("{threads} threads"),
        };
        let ratio = peer.ratio.filter(|_| whole)?;
        // A GPU is asked by one thread, whatever the processor has.
        let label =
            if on_a_gpu { self.what.clone() } else { format!("{} · {threads}", self.what) };
        Some((label, ratio))
    }
}

/// Draws tables of the same rows, in the first one's order.
pub(super) fn draw(texts: &[String]) -> anyhow::Result<Figure> {
    let tables: Vec<Table> =
        texts.iter().map(|text| serde_json::from_str(text)).collect::<Result<_, _>>()?;
    let first = tables.first().context("there is no table")?;
    let all: Vec<Vec<(String, Ratio)>> = tables.iter().map(Table::drawn).collect();
    ensure!(!all[0].is_empty(), "there is no row with PyTorch beside ours");
    ensure!(all.iter().map(Vec::len).all_equal(), "the tables have different numbers of rows");
    let row = |label: &String| {
        let dot = |rows: &Vec<(String, Ratio)>| {
            let same = rows.iter().find(|(other, _)| other == label);
            let (_, Ratio { median, min, max }) =
                same.with_context(|| format!("only one table has \"{label}\""))?;
            Ok(Some(Dot { range: [*min, *median, *max], text: format!("{median:.2}") }))
        };
        Ok((label.clone(), vec![all.iter().map(dot).collect::<anyhow::Result<Vec<_>>>()?]))
    };
    let rows = all[0].iter().map(|(label, _)| row(label)).collect::<anyhow::Result<Vec<_>>>()?;
    let version = &first.versions.torch;
    ensure!(tables.iter().all(|table| table.versions.torch == *version), "PyTorch differs");
    let measured = tables.iter().map(|Table { machine, date, command, .. }| {
        caption(machine, date.as_deref(), command).trim_end().to_owned()
    });
    let caption = format!("PyTorch {version}. {}\n", measured.collect::<Vec<_>>().join(" "));
    let series: Vec<String> = tables.iter().map(|table| table.device().to_owned()).collect();
    let medians = rows.iter().map(|(label, columns)| {
        format!("{label}: {}", columns[0].iter().flatten().map(|dot| &dot.text).join(" and "))
    });
    let machines = series.join(" and on ");
    let title = format!("Our time ÷ PyTorch's on {machines}. {}", medians.collect_vec().join("; "));
    let largest = all.iter().flatten().map(|(_, ratio)| ratio.max).fold(1.0, f64::max);
    // To the next quarter, so that the axis ends in a number.
    let axis = Axis::linear("our time ÷ PyTorch's", 0.0, (largest * 4.0).ceil() / 4.0, 8);
    let columns = vec![(axis, Some((1.0, "as long as PyTorch")))];
    let dots = Dots { heading: Heading { title, ..Heading::default() }, columns, series, rows };
    Ok(Figure { svg: dots.svg(Place::Page), caption })
}
