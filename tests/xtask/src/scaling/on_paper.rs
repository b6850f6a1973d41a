//! Curves of machines that are not here, up to 1,024 devices.

use cost_model::all_reduce::Way;
use cost_model::hosts::Hosts;
use cost_model::model::Model;
use cost_model::paper::{Batch, Device, MOST, Scenario, Wire, counts};
use cost_model::training::Sum;
use harness::report::thousands;

use super::{Curve, Link, Panel, Wired, short};
use crate::number::Rounded;

/// Devices in a host.
const EACH: usize = 8;

/// The batches that can be looked at.
pub const BATCHES: [Batch; 4] =
    [Batch::Shared(256), Batch::Shared(2048), Batch::Each(64), Batch::Each(256)];

/// What can be between devices, the fastest first.
pub fn links() -> Vec<(Link, Hosts)> {
    vec![
        all(Wire::Nvlink),
        hosts(Wire::Nvlink, Wire::Infiniband),
        hosts(Wire::Nvlink, Wire::Ethernet100),
        hosts(Wire::Pcie, Wire::Ethernet10),
        all(Wire::Ethernet10),
    ]
}

/// One kind of link between any two.
fn all(wire: Wire) -> (Link, Hosts) {
    let wired = Wired::of(wire);
    let name = format!("{} between all", wired.name);
    (Link { name, measured: false, each: None, wires: vec![wired] }, Hosts::one(wire.link()))
}

/// One inside hosts of eight, another between them.
fn hosts(inside: Wire, between: Wire) -> (Link, Hosts) {
    let wires = vec![Wired::of(inside), Wired::of(between)];
    let name = format!("{}, {} between hosts", wires[0].name, wires[1].name);
    let hosts = Hosts { each: EACH, inside: inside.link(), between: between.link() };
    (Link { name, measured: false, each: Some(EACH), wires }, hosts)
}

/// Every link, model and batch.
pub(super) fn panels(device: &Device) -> anyhow::Result<Vec<Panel>> {
    let models = [Model::lenet()?, Model::resnet18(concise_wrapper::resnet::WIDTH)?];
    let mut panels = Vec::new();
    for (link, hosts) in links() {
        for model in &models {
            for batch in BATCHES {
                let scenario = Scenario::new(model, device, hosts, batch);
                panels.push(panel(model.name.clone(), link.name.clone(), &scenario));
            }
        }
    }
    Ok(panels)
}

fn panel(name: String, link: String, scenario: &Scenario) -> Panel {
    // As far as there is a sample for each.
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
    // Devices compute the same whatever is between them.
    let any = Sum { way: Way::Ring, overlap: true };
    let compute = each(&|count| Some(1e3 * scenario.step(count, any)?.compute));
    let batch = match scenario.batch {
        Batch::Shared(samples) => format!("{} for all", thousands(samples)),
        Batch::Each(samples) => format!("{} each", thousands(samples)),
    };
    Panel {
        model: short(&name),
        name,
        batch,
        link,
        with_overlap: Way::FOR_MANY.map(|way| curve(way, true)).to_vec(),
        without_overlap: Way::FOR_MANY.map(|way| curve(way, false)).to_vec(),
        devices,
        samples,
        compute,
        here: None,
    }
}
