//! `--on-paper`: what the model says of machines that are not here.

use cost_model::all_reduce::Way;
use cost_model::hosts::Hosts;
use cost_model::model::Model;
use cost_model::paper::{Batch, Device, MOST, Scenario, Wire, counts, sums};
use cost_model::training::Sum;
use harness::cli::name_of;
use harness::report::{counted, line, thousands};

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
             beside\nthat; {} in a host; {}; {}",
            digits(device.operations / 1e12),
            digits(device.memory / 1e12),
            digits(1e3 * device.fixed),
            counted(hosts.each, "device"),
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
            let row = format!(
                "  {devices:>7}{:>7}{:>10}{:>20}{naive:>10}{tree:>10}{one_ring:>10}{rings:>10}{:>16}",
                self.hosts.hosts(devices),
                time(step.compute),
                of(plain),
                time(step.seconds)
            );
            line(row.trim_end())?;
        }
        let best = sums().map(|sum| format!("{} {}", sum.way, scenario.best(MOST, sum)));
        line(format_args!("  most images a second with: {}", best.join(", ")))?;
        Ok(())
    }
}

/// A number that was given in another unit, without what rounding has left of the way there and back.
fn digits(number: f64) -> f64 {
    (number * 1e9).round() / 1e9
}

/// `36.07 ms`, in a unit in which it takes at most nine characters, a second or a century; units are as wide as `ms`.
fn time(seconds: f64) -> String {
    // What would be rounded up to four digits takes the next unit.
    match seconds {
        s if s < 9.995e-6 => format!("{:.2} µs", 1e6 * s),
        s if s < 0.999_995 => format!("{:.2} ms", 1e3 * s),
        s if s < 999.995 => format!("{s:.2} s "),
        s => format!("{s:.1e} s "),
    }
}

/// `inside it NVLink …`
fn link(place: &str, wire: Wire) -> String {
    let (link, name) = (wire.link(), name_of(&wire));
    format!("{place} {name}: {} GB/s, {:.0} µs", link.bandwidth() / 1e9, 1e6 * link.latency)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_takes_the_unit_that_keeps_it_short() {
        let told =
            [0.0, 3e-6, 0.001_17, 0.146_26, 0.999_994, 0.999_996, 1.0, 999.994, 1234.5, 7e11];
        let expected = [
            "0.00 µs",
            "3.00 µs",
            "1.17 ms",
            "146.26 ms",
            "999.99 ms",
            "1.00 s ",
            "1.00 s ",
            "999.99 s ",
            "1.2e3 s ",
            "7.0e11 s ",
        ];
        assert_eq!(told.map(time), expected);
        assert!(told.iter().all(|&seconds| time(seconds).chars().count() < 10));
    }

    #[test]
    fn numbers_are_told_as_they_were_given() {
        for thousandths in 1..2000 {
            let given = f64::from(thousandths) / 1000.0;
            assert_eq!(digits(1e3 * (given * 1e-3)), given);
            assert_eq!(digits(given * 1e12 / 1e12), given);
        }
    }
}
