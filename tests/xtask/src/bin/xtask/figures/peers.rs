//! Our time ÷ PyTorch's on each machine: a dot for the median, and a line from the smallest ratio to the largest.

use anyhow::{Context as _, ensure};
use drawing::dots::{Dot, Dots};
use drawing::{Axis, Heading, Place};
use itertools::Itertools as _;

use super::Figure;
use super::measurement::caption;
use crate::peers::table::{Ratio, Row, Table};

/// The label and the ratio of a row that is drawn: work that takes time on both sides, whole.
fn drawn(row: &Row, on_a_gpu: bool) -> Option<(String, Ratio)> {
    let whole = match row.topic.as_str() {
        "lenet-step" | "data-parallel-step" | "resnet18-step" | "resnet18-ddp-step"
        | "gpt-step" => true,
        "convolutions" => row.series == "both",
        _ => false,
    };
    let peer = row.peers.iter().find(|peer| peer.side.starts_with("PyTorch"))?;
    let ratio = peer.ratio.filter(|_| whole)?;
    let threads = match row.threads.as_str() {
        // One thread of the processor asks the GPU.
        _ if on_a_gpu => String::new(),
        "1" => " · 1 thread".to_owned(),
        "2 × 1" => format!(" · {}", peer.side),
        threads => format!(" · {threads} threads"),
    };
    Some((format!("{}{threads}", row.what), ratio))
}

/// Draws tables of the same rows, in the first one's order.
pub(super) fn draw(texts: &[String]) -> anyhow::Result<Figure> {
    let tables: Vec<Table> =
        texts.iter().map(|text| serde_json::from_str(text)).collect::<Result<_, _>>()?;
    let first = tables.first().context("there is no table")?;
    let rows_of = |Table { machine, rows, .. }: &Table| {
        rows.iter().filter_map(|row| drawn(row, !machine.gpus.is_empty())).collect()
    };
    let all: Vec<Vec<(String, Ratio)>> = tables.iter().map(rows_of).collect();
    ensure!(!all[0].is_empty(), "there is no row with PyTorch beside ours");
    ensure!(all.iter().map(Vec::len).all_equal(), "the tables have different numbers of rows");
    let row = |label: &String| {
        let dot = |rows: &Vec<(String, Ratio)>| {
            let same = rows.iter().find(|(other, _)| other == label);
            let (_, Ratio { median, min, max }) =
                same.with_context(|| format!("only one table has \"{label}\""))?;
            Ok(Dot { range: [*min, *median, *max], text: format!("{median:.2}") })
        };
        Ok((label.clone(), all.iter().map(dot).collect::<anyhow::Result<Vec<_>>>()?))
    };
    let rows = all[0].iter().map(|(label, _)| row(label)).collect::<anyhow::Result<Vec<_>>>()?;
    let torch = |table: &Table| table.versions.get("torch").cloned().flatten();
    ensure!(tables.iter().map(torch).all_equal(), "PyTorch differs");
    let version = torch(first).context("there is no version of PyTorch")?;
    let measured = tables.iter().map(|Table { machine, date, command, .. }| {
        caption(machine, date.as_deref(), command).trim_end().to_owned()
    });
    let caption = format!("PyTorch {version}. {}\n", measured.collect::<Vec<_>>().join(" "));
    let device =
        |Table { machine, .. }: &Table| machine.gpus.first().unwrap_or(&machine.processor).clone();
    let series: Vec<String> = tables.iter().map(device).collect();
    let medians = rows.iter().map(|(label, dots)| {
        format!("{label}: {}", dots.iter().map(|dot| &dot.text).join(" and "))
    });
    let machines = series.join(" and on ");
    let title = format!("Our time ÷ PyTorch's on {machines}. {}", medians.collect_vec().join("; "));
    let largest = all.iter().flatten().map(|(_, ratio)| ratio.max).fold(1.0, f64::max);
    // To the next quarter: the axis ends in a number.
    let axis = Axis::linear("our time ÷ PyTorch's", 0.0, (largest * 4.0).ceil() / 4.0, 8);
    let (heading, reference) =
        (Heading { title, ..Heading::default() }, (1.0, "as long as PyTorch"));
    let dots = Dots { heading, axis, reference, series, rows };
    Ok(Figure { svg: dots.svg(Place::Page), caption })
}
