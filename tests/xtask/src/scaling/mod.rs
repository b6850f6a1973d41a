//! The data of the book's figure of scaling: the predictions of stage 8 for every model, batch and link of the figure, and the
//! measurements.

mod measured;
mod on_paper;

use cost_model::paper::Device;
use itertools::Itertools as _;
use serde::Serialize;

use crate::number::Rounded;

pub use measured::Measurement;

/// The curves that are also drawn as a [picture](crate::pictures::scaling()): model, batch and link, with overlap.
pub const PICTURED: [[&str; 3]; 2] = [
    ["LeNet", "256 for all", "NVLink, 100 Gb/s Ethernet between hosts"],
    ["ResNet-18", "256 each", "NVLink, 100 Gb/s Ethernet between hosts"],
];

/// The assumptions about a device on paper.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Assumed {
    /// Sustained TFLOP/s.
    pub operations: Rounded,
    /// TB/s of the memory.
    pub memory: Rounded,
    /// Milliseconds of a step that depend on neither.
    pub fixed: Rounded,
}

/// The links between devices.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Link {
    pub name: String,
    /// Whether the predicted steps were measured, too.
    pub measured: bool,
    /// Devices in a host. Left out where all are in one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub each: Option<usize>,
    /// The assumptions: inside a host, then between hosts. Empty for a measured link.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub wires: Vec<Wired>,
}

/// The assumptions about a kind of link.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Wired {
    pub name: &'static str,
    /// GB/s.
    pub bandwidth: Rounded,
    /// Microseconds.
    pub latency: Rounded,
}

/// A way to add gradients up, on every number of devices of a panel.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Curve {
    pub way: String,
    /// Milliseconds of a step, as predicted.
    pub step: Vec<Rounded>,
    /// The milliseconds of a step in which devices wait for each other.
    pub exposed: Vec<Rounded>,
    /// How many times one device's images a second.
    pub speed_up: Vec<Rounded>,
    /// Milliseconds of a step, and the speed-up, as measured. Left out on paper.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub measured: Option<Seen>,
}

/// The measurements for a [`Curve`].
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Seen {
    /// Milliseconds of a step.
    pub measured: Vec<Rounded>,
    /// How many times one device's images a second.
    pub measured_speed_up: Vec<Rounded>,
}

/// A chart: a model with a batch, on devices with a link.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Panel {
    /// Such as `ResNet-18`.
    pub model: String,
    /// Such as `ResNet-18 of width 64`.
    pub name: String,
    pub batch: String,
    pub link: String,
    /// The numbers of devices. Every list has an entry for each number.
    pub devices: Vec<usize>,
    pub samples: Vec<usize>,
    /// Milliseconds that a device computes.
    pub compute: Vec<Rounded>,
    /// The curves of runs in which gradients travel during the backward pass.
    pub with_overlap: Vec<Curve>,
    pub without_overlap: Vec<Curve>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub here: Option<Here>,
}

/// The devices that a [`Panel`] was measured on.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Here {
    pub on: Vec<String>,
    /// Microseconds of a message, and GB/s. None for one device.
    pub links: Vec<Option<[Rounded; 2]>>,
    pub notes: Vec<Option<String>>,
}

/// All charts of the figure.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Catalogue {
    pub command: String,
    pub assumed: Assumed,
    pub measured_on: String,
    pub links: Vec<Link>,
    pub panels: Vec<Panel>,
}

impl Catalogue {
    /// Asks stage 8 for the charts on paper, and adds the measured charts.
    /// Fails when a model cannot be built, or when a measurement is incomplete.
    pub fn make(measurement: &Measurement) -> anyhow::Result<Self> {
        let device = Device::default();
        let measured = measurement.panels()?;
        let mut links: Vec<Link> = on_paper::links().into_iter().map(|(link, _)| link).collect();
        for name in measured.iter().map(|panel| &panel.link).unique() {
            let name = name.clone();
            links.push(Link { name, measured: true, each: None, wires: Vec::new() });
        }
        let [operations, memory, fixed] =
            [device.operations / 1e12, device.memory / 1e12, 1e3 * device.fixed].map(Rounded::of);
        Ok(Self {
            command: "cargo xtask scaling".to_owned(),
            assumed: Assumed { operations, memory, fixed },
            measured_on: measurement.machine.on(measurement.date.as_deref()),
            links,
            panels: on_paper::panels(&device)?.into_iter().chain(measured).collect(),
        })
    }
}

/// `ResNet-18` of `ResNet-18 of width 64`: a menu has little room.
fn short(name: &str) -> String {
    name.split(" of ").next().unwrap_or(name).to_owned()
}
