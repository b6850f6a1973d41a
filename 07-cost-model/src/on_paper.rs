//! `--on-paper`: what the model says of machines that are not here.

use cost_model::all_reduce::Way;
use cost_model::hosts::Hosts;
use cost_model::model::Model;
use cost_model::paper::{Batch, Device, MOST, Scenario, Wire, counts, sums};
use cost_model::training::Sum;
use single_gpu::cli::name_of;
use single_gpu::report::{line, thousands};

/// What is to be told.
pub(crate) struct OnPaper {
    pub(crate) models: Vec<Model>,
    pub(crate) device: Device,
    pub(crate) hosts: Hosts,
    /// Inside and between.
    pub(crate) wires: (Wire, Wire),
    pub(crate) batches: [Batch; 2],
}

impl OnPaper {
    /// Every model with both kinds of batch.
    pub(crate) fn tell(&self) -> anyhow::Result<()> {
        let Self { device, hosts, .. } = self;
        line(format_args!(
            "assumed, not measured: a device sustains {} TFLOP/s, reads and writes {} TB/s, and needs {} ms a step \
             beside\nthat; {} devices in a host; {}; {}",
            device.operations / 1e12,
            device.memory / 1e12,
            1e3 * device.fixed,
            hosts.each,
            link("inside it", self.wires.0),
            link("between hosts", self.wires.1),
        ))?;
        for model in &self.models {
            for batch in self.batches {
                self.table(model, batch)?;
            }
        }
        Ok(())
    }

    fn table(&self, model: &Model, batch: Batch) -> anyhow::Result<()> {
        let scenario = Scenario::new(model, &self.device, self.hosts, batch);
        let (samples, how) = match batch {
            Batch::Shared(samples) => (samples, "shared by all devices"),
            Batch::Each(samples) => (samples, "for each device"),
        };
        line(format_args!(
            "\n{}, {} images {how}: how many times as many images a second as one device\n  \
             devices  hosts   compute   naive, no overlap     naive      tree      ring     rings   a ring's step",
            model.name,
            thousands(samples)
        ))?;
        let plain = Sum { way: Way::Naive, overlap: false };
        let ring = Sum { way: Way::Ring, overlap: true };
        for devices in counts(MOST) {
            let Some(step) = scenario.step(devices, ring) else { break };
            let of = |sum| {
                scenario
                    .speed_up(devices, sum)
                    .map_or_else(String::new, |times| format!("{times:.2}"))
            };
            let [naive, tree, one_ring, rings] = sums().map(of);
            line(format_args!(
                "  {devices:>7}{:>7}{:>7.2} ms{:>20}{naive:>10}{tree:>10}{one_ring:>10}{rings:>10}{:>13.2} ms",
                self.hosts.hosts(devices),
                1e3 * step.compute,
                of(plain),
                1e3 * step.seconds
            ))?;
        }
        let best = sums().map(|sum| format!("{} {}", sum.way, scenario.best(MOST, sum)));
        line(format_args!("  most images a second with: {}", best.join(", ")))?;
        Ok(())
    }
}

/// `inside it NVLink …`
fn link(place: &str, wire: Wire) -> String {
    let (link, name) = (wire.link(), name_of(&wire));
    format!("{place} {name}: {} GB/s, {:.0} µs", link.bandwidth() / 1e9, 1e6 * link.latency)
}
