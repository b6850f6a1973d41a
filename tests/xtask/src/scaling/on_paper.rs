//! Curves of machines on paper, up to 1,024 devices.

use cost_model::all_reduce::Way;
use cost_model::hosts::Hosts;
use cost_model::model::Model;
use cost_model::paper::{Batch, Device, MOST, Scenario, Wire, counts};
use cost_model::training::Sum;
use harness::report::thousands;
use itertools::iproduct;

use super::{Curve, Link, Panel, Wired, short};
use crate::number::Rounded;

/// Devices in a host.
const EACH: usize = 8;

const BATCHES: [Batch; 4] =
    [Batch::Shared(256), Batch::Shared(2048), Batch::Each(64), Batch::Each(256)];

/// The links between devices, the fastest first. A second kind of link connects hosts.
const LINKS: [&[Wire]; 5] = [
    &[Wire::Nvlink],
    &[Wire::Nvlink, Wire::Infiniband],
    &[Wire::Nvlink, Wire::Ethernet100],
    &[Wire::Pcie, Wire::Ethernet10],
    &[Wire::Ethernet10],
];

/// The links, and the hosts that they connect.
pub(super) fn links() -> [(Link, Hosts); 5] {
    LINKS.map(|kinds| {
        let wires: Vec<_> = kinds.iter().map(|&wire| wired(wire)).collect();
        let (name, each, hosts) = match *kinds {
            [inside, between] => {
                let name = format!("{}, {} between hosts", wires[0].name, wires[1].name);
                let (inside, between) = (inside.link(), between.link());
                (name, Some(EACH), Hosts { each: EACH, inside, between })
            }
            _ => (format!("{} between all", wires[0].name), None, Hosts::one(kinds[0].link())),
        };
        (Link { name, measured: false, each, wires }, hosts)
    })
}

/// Stage 8's assumptions of a kind of link.
fn wired(wire: Wire) -> Wired {
    let name = match wire {
        Wire::Nvlink => "NVLink",
        Wire::Pcie => "PCIe",
        Wire::Infiniband => "InfiniBand",
        Wire::Ethernet100 => "100 Gb/s Ethernet",
        Wire::Ethernet10 => "10 Gb/s Ethernet",
    };
    let link = wire.link();
    let [bandwidth, latency] = [link.bandwidth() / 1e9, 1e6 * link.latency].map(Rounded::of);
    Wired { name, bandwidth, latency }
}

/// Every link, model and batch.
pub(super) fn panels(device: &Device) -> anyhow::Result<Vec<Panel>> {
    let models = [Model::lenet()?, Model::resnet18(concise_wrapper::resnet::WIDTH)?];
    let panel = |((link, hosts), model, batch): ((Link, Hosts), &Model, Batch)| {
        panel(&model.name, &link.name, &Scenario::new(model, device, hosts, batch))
    };
    Ok(iproduct!(links(), &models, BATCHES).map(panel).collect())
}

fn panel(name: &str, link: &str, scenario: &Scenario) -> Panel {
    // Every device has a sample.
    let (devices, samples): (Vec<_>, Vec<_>) =
        counts(MOST).filter_map(|count| Some((count, scenario.batch.most(count)?))).unzip();
    let each = |of: &dyn Fn(usize) -> Option<f64>| -> Vec<Rounded> {
        devices.iter().filter_map(|&count| of(count)).map(Rounded::of).collect()
    };
    let curve = |way: Way, overlap: bool| {
        let sum = Sum { way, overlap };
        Curve {
            way: way.to_string(),
            step: each(&|count| Some(1e3 * scenario.step(count, sum)?.seconds)),
            exposed: each(&|count| Some(1e3 * scenario.step(count, sum)?.exposed())),
            speed_up: each(&|count| scenario.speed_up(count, sum)),
            measured: None,
        }
    };
    // The link does not change the computation.
    let any = Sum { way: Way::Ring, overlap: true };
    let compute = each(&|count| Some(1e3 * scenario.step(count, any)?.compute));
    let batch = match scenario.batch {
        Batch::Shared(samples) => format!("{} for all", thousands(samples)),
        Batch::Each(samples) => format!("{} each", thousands(samples)),
    };
    Panel {
        model: short(name),
        name: name.to_owned(),
        batch,
        link: link.to_owned(),
        with_overlap: Way::FOR_MANY.map(|way| curve(way, true)).to_vec(),
        without_overlap: Way::FOR_MANY.map(|way| curve(way, false)).to_vec(),
        devices,
        samples,
        compute,
        here: None,
    }
}
