//! Bus bandwidth of each algorithm by size, a panel for each number of devices.

use anyhow::ensure;
use itertools::Itertools as _;
use serde::Deserialize;

use super::Figure;
use super::chart::{Curve, PANEL, Panel, Tick, legend, legend_height, panel};
use super::drawing::Drawing;
use super::measurement::Recorded;

/// A line of what stage 2's `--metrics` writes.
#[derive(Deserialize)]
struct Line {
    devices: Vec<String>,
    work: String,
    bytes: u64,
    gb_per_s: f64,
}

/// Draws both axes in powers: small tensors and large ones are told apart.
pub(super) fn draw(text: &str) -> anyhow::Result<Figure> {
    let recorded = Recorded::parse(text)?;
    let lines: Vec<Line> = recorded.lines("all-reduce")?;
    ensure!(lines.iter().all(|line| line.gb_per_s > 0.0), "a bandwidth is not above 0");
    let names: Vec<String> = lines.iter().map(|line| line.work.clone()).unique().collect();
    let sizes: Vec<u64> = lines.iter().map(|line| line.bytes).unique().collect();
    let counts: Vec<usize> = lines.iter().map(|line| line.devices.len()).unique().collect();
    ensure!(sizes.len() > 1, "a curve needs two sizes");
    let rates = || lines.iter().map(|line| line.gb_per_s.log10());
    let (low, high) =
        (rates().fold(f64::MAX, f64::min).floor(), rates().fold(f64::MIN, f64::max).ceil());

    let mut drawing = Drawing::new(
        PANEL * counts.len() as f64 + legend_height(&names),
        format_args!("Bus bandwidth of an all-reduce by size, for {}", names.join(", ")),
    );
    let mut top = legend(&mut drawing, &names);
    let along: Vec<Tick> = (0..)
        .zip(&sizes)
        .map(|(at, bytes)| (place(at, sizes.len()), binary_size(*bytes)))
        .collect();
    let up: Vec<Tick> = (low as i32..=high as i32)
        .map(|power| ((f64::from(power) - low) / (high - low), power_of_ten(power)))
        .collect();
    for &count in &counts {
        let curves = names.iter().map(|name| Curve {
            name: name.clone(),
            width: 2.0,
            points: sizes
                .iter()
                .enumerate()
                .filter_map(|(at, bytes)| {
                    let line = lines.iter().find(|line| {
                        (line.devices.len(), &line.work, line.bytes) == (count, name, *bytes)
                    })?;
                    let up = (line.gb_per_s.log10() - low) / (high - low);
                    Some((place(at, sizes.len()), up))
                })
                .collect(),
        });
        let devices = lines.iter().find(|line| line.devices.len() == count);
        let each = devices.map_or_else(String::new, |line| each(&line.devices[0]));
        panel(
            &mut drawing,
            top,
            &Panel {
                title: format!("{count} devices{each}"),
                along: (along.clone(), "size of the tensor"),
                up: (up.clone(), "GB/s, bus bandwidth"),
                curves: curves.collect(),
            },
        );
        top += PANEL;
    }
    Ok(Figure { svg: drawing.finish(), caption: recorded.caption() })
}

/// What is said of a device behind its name: `cpu:0 (1 core)` → ` of 1 core`.
fn each(device: &str) -> String {
    let inside = device.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')'));
    inside.map_or_else(String::new, |inside| format!(" of {inside}"))
}

/// The positions of an axis of which every value has its own, with some room at both ends.
fn place(position: usize, of: usize) -> f64 {
    0.04 + 0.92 * position as f64 / (of - 1) as f64
}

fn binary_size(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..0x10_0000 => format!("{} KiB", bytes >> 10),
        _ => format!("{} MiB", bytes >> 20),
    }
}

fn power_of_ten(power: i32) -> String {
    match power {
        0.. => format!("{}", 10f64.powi(power)),
        _ => format!("{:.*}", power.unsigned_abs() as usize, 10f64.powi(power)),
    }
}
