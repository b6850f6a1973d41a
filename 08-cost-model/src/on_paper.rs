//! `--on-paper`: predictions for machines that are not here.

use cost_model::hosts::Hosts;
use cost_model::model::Model;
use cost_model::paper::{Batch, Device, MOST, Scenario, Wire, counts, sums};
use cost_model::training::Sum;
use cost_model::{all_reduce::Way, step::Predicted};
use harness::cli::name_of;
use harness::report::{Table, columns, counted, line, number, paragraph, thousands};

/// The machine and the trainings to predict.
pub(crate) struct OnPaper {
    pub(crate) models: Vec<Model>,
    pub(crate) device: Device,
    pub(crate) hosts: Hosts,
    /// Inside and between.
    pub(crate) wires: (Wire, Wire),
    pub(crate) batches: [Batch; 2],
}

impl OnPaper {
    /// Prints the predictions for every model with both kinds of batch.
    pub(crate) fn print(&self) -> anyhow::Result<()> {
        let Self { device, hosts, .. } = self;
        paragraph(format_args!(
            "assumed, not measured: a device sustains {} TFLOP/s, reads and writes {} TB/s, and needs {} ms a step for \
             everything else; {} in a host; {}; {}",
            number(device.operations / 1e12),
            number(device.memory / 1e12),
            number(1e3 * device.fixed),
            counted(hosts.each, "device"),
            link("inside a host", self.wires.0),
            link("between hosts", self.wires.1),
        ))?;
        paragraph(
            "naive, tree, ring: algorithms over all devices; rings: a ring in each host, and rings between the hosts; \
             backward passes hide messages, except in the column `no overlap`",
        )?;
        for model in &self.models {
            for batch in self.batches {
                let scenario = Scenario::new(model, device, *hosts, batch);
                line("")?;
                paragraph(title(model, batch))?;
                line(table(&scenario).text(columns()))?;
                paragraph(format_args!("  {}", conclusion(&scenario)))?;
            }
        }
        Ok(())
    }
}

fn title(model: &Model, batch: Batch) -> String {
    let (samples, how) = match batch {
        Batch::Shared(samples) => (samples, "shared by all devices"),
        Batch::Each(samples) => (samples, "for each device"),
    };
    format!(
        "{}, {} images {how}\n  speed-up over one device, in images a second, and times of a step:",
        model.name,
        thousands(samples)
    )
}

/// The ring, with overlap.
const RING: Sum = Sum { way: Way::Ring, overlap: true };

/// A row for each number of devices.
fn table(scenario: &Scenario) -> Table {
    const PLAIN: Sum = Sum { way: Way::Naive, overlap: false };
    let steps: Vec<(usize, Predicted)> =
        counts(MOST).map_while(|devices| Some((devices, scenario.step(devices, RING)?))).collect();
    let (unit, factor) = unit(steps[0].1.seconds);
    let mut table = Table::new("devices").column("hosts", 1).column("naive, no\noverlap", 2);
    for sum in sums() {
        table = table.column(&sum.way.to_string(), 0);
    }
    table =
        table.column(&format!("compute\n{unit}"), 0).column(&format!("ring's\nstep\n{unit}"), 0);
    for (devices, step) in steps {
        let times =
            |sum| scenario.speed_up(devices, sum).map_or_else(String::new, |it| format!("{it:.2}"));
        let [naive, tree, ring, rings] = sums().map(times);
        let hosts = thousands(scenario.hosts.hosts(devices));
        let [compute, seconds] = [step.compute, step.seconds].map(|it| digits(factor * it));
        let plain = times(PLAIN);
        // The heading is as wide as the numbers, which are at its right end.
        let devices = format!("{:>7}", thousands(devices));
        table.row([devices, hosts, plain, naive, tree, ring, rings, compute, seconds]);
    }
    table.indented(2)
}

/// Says where more devices stop to help, and which algorithm wins.
fn conclusion(scenario: &Scenario) -> String {
    /// Speed-ups within this factor are the same.
    const EQUAL: f64 = 1.01;
    let last = counts(MOST).take_while(|&it| scenario.batch.most(it).is_some()).last().unwrap_or(1);
    let speed = |devices, sum| scenario.speed_up(devices, sum).unwrap_or(0.0);
    let peaks = sums().map(|sum| {
        let devices = scenario.best(MOST, sum);
        (sum, devices, speed(devices, sum))
    });
    let top = peaks.into_iter().fold(peaks[0], |top, it| if it.2 > top.2 { it } else { top });
    let (_, devices, times) = top;
    let (best, others): (Vec<_>, Vec<_>) =
        peaks.into_iter().partition(|peak| speed(devices, peak.0) * EQUAL >= times);
    let names: Vec<String> = best.iter().map(|(sum, ..)| sum.way.to_string()).collect();
    let names = if others.is_empty() { "any algorithm".to_owned() } else { names.join(" or ") };
    let mut text = match devices {
        1 => "One device is fastest: messages take longer than a second device saves.".to_owned(),
        _ => format!(
            "Best: {names} on {} devices, {} times one device ({:.0} % of the ideal).",
            thousands(devices),
            digits(times),
            100.0 * times / devices as f64
        ),
    };
    if devices > 1 && devices < last {
        text += match devices == scenario.hosts.each {
            true => " A second host makes training no faster.",
            false => " More devices make training no faster.",
        };
    }
    if devices > 1 && !others.is_empty() {
        let others = others.iter().map(|(sum, devices, times)| {
            format!("{} {} on {}", sum.way, digits(*times), thousands(*devices))
        });
        text += &format!(" The others at best: {}.", others.collect::<Vec<_>>().join(", "));
    }
    let computing = |devices| scenario.step(devices, RING).map(|step| step.compute);
    if let (Batch::Shared(_), Some(one), Some(all)) =
        (scenario.batch, computing(1), computing(last))
    {
        text += &format!(
            " Without messages, {} devices would be {} times one device.",
            thousands(last),
            digits(one / all)
        );
    }
    text
}

/// The unit in which a time is easy to read, and how many of it a second has.
fn unit(seconds: f64) -> (&'static str, f64) {
    match seconds {
        s if s < 1e-3 => ("µs", 1e6),
        s if s < 1.0 => ("ms", 1e3),
        _ => ("s", 1.0),
    }
}

/// A number with at least three digits, in at most seven characters: `1.08`, `42.5`, `809`, `7.0e11`.
fn digits(number: f64) -> String {
    match number {
        n if n < 9.995 => format!("{n:.2}"),
        n if n < 99.95 => format!("{n:.1}"),
        n if n < 99_999.5 => format!("{n:.0}"),
        n => format!("{n:.1e}"),
    }
}

/// `inside a host nvlink: 370 GB/s, 5 µs`
fn link(place: &str, wire: Wire) -> String {
    let (link, name) = (wire.link(), name_of(&wire));
    format!("{place} {name}: {} GB/s, {:.0} µs", number(link.bandwidth() / 1e9), 1e6 * link.latency)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_stays_short() {
        let numbers = [0.0, 1.084, 9.996, 42.49, 99.96, 808.96, 42_492.0, 99_999.6, 7e11];
        let expected = ["0.00", "1.08", "10.0", "42.5", "100", "809", "42492", "1.0e5", "7.0e11"];
        assert_eq!(numbers.map(digits), expected);
        assert_eq!([3e-6, 0.036, 1.0, 1e9].map(|it| unit(it).0), ["µs", "ms", "s", "s"]);
    }

    #[test]
    fn numbers_are_printed_as_they_were_given() {
        for thousandths in 1..2000 {
            let given = f64::from(thousandths) / 1000.0;
            assert_eq!(number(1e3 * (given * 1e-3)), given.to_string());
            assert_eq!(number(given * 1e12 / 1e12), given.to_string());
        }
    }

    /// LeNet on hosts of eight devices.
    fn scenario(batch: Batch, inside: Wire, between: Wire) -> Scenario {
        let hosts = Hosts { each: 8, inside: inside.link(), between: between.link() };
        Scenario::new(&Model::lenet().unwrap(), &Device::default(), hosts, batch)
    }

    #[test]
    fn the_conclusion_names_the_number_of_devices_and_the_algorithm() {
        use Wire::{Ethernet10, Ethernet100, Nvlink};
        let said = |batch, inside, between| conclusion(&scenario(batch, inside, between));
        assert_eq!(
            said(Batch::Shared(256), Nvlink, Ethernet100),
            "Best: any algorithm on 4 devices, 1.08 times one device (27 % of the ideal). More \
             devices make training no faster. Without messages, 256 devices would be 1.17 times one \
             device."
        );
        assert_eq!(
            said(Batch::Each(256), Nvlink, Ethernet100),
            "Best: tree on 1,024 devices, 505 times one device (49 % of the ideal). The others at \
             best: naive 11.4 on 1,024, ring 28.3 on 1,024, rings 179 on 1,024."
        );
        let one = said(Batch::Shared(256), Ethernet10, Ethernet10);
        assert!(one.starts_with("One device is fastest: messages take longer"), "{one}");
        assert!(!one.contains("The others") && !one.contains("no faster"), "{one}");
        let host = said(Batch::Shared(4096), Nvlink, Ethernet10);
        assert!(host.contains(" on 8 devices, "), "{host}");
        assert!(host.contains("A second host makes training no faster."), "{host}");
    }

    #[test]
    fn a_narrow_table_keeps_the_algorithms() {
        let scenario = scenario(Batch::Each(256), Wire::Nvlink, Wire::Ethernet100);
        for most in [60, 80] {
            let text = table(&scenario).text(most);
            assert!(text.lines().all(|line| line.chars().count() <= most), "{text}");
            assert!(text.contains("rings"), "{text}");
            assert_eq!(text.contains("too narrow for: "), most == 60, "{text}");
        }
    }
}
