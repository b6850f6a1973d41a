//! Bus bandwidth of each algorithm by size, a panel for each number of devices.

use anyhow::ensure;
use drawing::chart::{Chart, Curve, Panel};
use drawing::{Axis, Heading, Place};
use itertools::Itertools as _;
use serde::Deserialize;

use super::Figure;
use super::measurement::Recorded;

/// A line that stage 2's `--metrics` writes.
#[derive(Deserialize)]
struct Line {
    devices: Vec<String>,
    work: String,
    bytes: u64,
    gb_per_s: f64,
}

/// Draws both axes in powers: small tensors have as much room as large ones.
pub(super) fn draw(texts: &[String]) -> anyhow::Result<Figure> {
    let recorded = Recorded::parse(texts)?;
    let lines: Vec<Line> = recorded.lines("all-reduce")?;
    ensure!(lines.iter().all(|line| line.gb_per_s > 0.0), "a bandwidth is not above 0");
    let names: Vec<&String> = lines.iter().map(|line| &line.work).unique().collect();
    let sizes: Vec<u64> = lines.iter().map(|line| line.bytes).unique().sorted().collect();
    let [least, .., most] = sizes[..] else { anyhow::bail!("a curve needs two sizes") };
    let rates = lines.iter().map(|line| line.gb_per_s).minmax();
    let y = Axis::decades("GB/s, bus bandwidth", rates.into_option().unwrap_or_default(), true);
    let ticks = sizes.iter().map(|&bytes| (bytes as f64, binary_size(bytes))).collect();
    let x = Axis::factors("size of the tensor", (least as f64, most as f64), ticks);
    let panel = |count: usize| {
        let of_panel: Vec<&Line> = lines.iter().filter(|it| it.devices.len() == count).collect();
        let point = |line: &&&Line| {
            let (size, rate) = (binary_size(line.bytes), line.gb_per_s);
            (line.bytes as f64, rate, format!("{}, {size}: {rate:.2} GB/s", line.work))
        };
        let curve = |(series, name): (usize, &&String)| Curve {
            name: (*name).clone(),
            series: Some(series),
            width: 2.0,
            points: of_panel
                .iter()
                .filter(|line| line.work == **name)
                .map(|it| point(&it))
                .collect(),
        };
        let title = format!("{count} devices{}", each(&of_panel[0].devices[0]));
        let curves = names.iter().enumerate().map(curve).collect();
        vec![Panel { title, x: x.clone(), y: y.clone(), curves }]
    };
    let title = format!("Bus bandwidth of an all-reduce by size, for {}", names.iter().join(", "));
    let rows = lines.iter().map(|line| line.devices.len()).unique().map(panel).collect();
    let chart = Chart { heading: Heading { title, ..Heading::default() }, rows };
    Ok(Figure { svg: chart.svg(Place::Page), caption: recorded.caption() })
}

/// The cores of a device, from its name: `cpu:0 (1 core)` → ` of 1 core`.
fn each(device: &str) -> String {
    let inside = device.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')'));
    inside.map_or_else(String::new, |inside| format!(" of {inside}"))
}

fn binary_size(bytes: u64) -> String {
    if bytes < 1 << 20 { format!("{} KiB", bytes >> 10) } else { format!("{} MiB", bytes >> 20) }
}
