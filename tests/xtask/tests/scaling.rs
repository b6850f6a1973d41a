//! The book's chart of the cost model has the numbers of stage 7, and the laws of scaling hold in the chart.

use itertools::Itertools as _;
use xtask::number::Rounded;
use xtask::scaling::{Catalogue, Curve, Measurement, Panel};

/// The panels of machines on paper, or the measured panels.
fn panels(measured: bool) -> Vec<Panel> {
    let Catalogue { mut panels, .. } = Catalogue::make(&Measurement::stored().unwrap()).unwrap();
    panels.retain(|panel| panel.here.is_some() == measured);
    panels
}

/// Every way, with overlap and without.
fn curves(panel: &Panel) -> impl Iterator<Item = (&Curve, bool)> {
    let of = |curves, overlap| std::iter::zip(curves, std::iter::repeat(overlap));
    of(&panel.with_overlap, true).chain(of(&panel.without_overlap, false))
}

/// Four digits are kept.
#[track_caller]
fn close(a: Rounded, b: f64, what: &str) {
    assert!((a.value() - b).abs() <= 1.2e-3 * b.abs(), "{what}: {a:?}, {b}");
}

#[test]
fn the_laws_of_scaling_hold_on_paper() {
    let panels = panels(false);
    assert_eq!(panels.len(), 5 * 2 * 4);
    for panel in &panels {
        let Panel { name, batch, link, devices, samples, compute, .. } = panel;
        let shared = batch.ends_with("for all");
        let most = if batch.starts_with("256 for") { 256 } else { 1024 };
        assert_eq!(devices.last(), Some(&most), "{batch}");
        for (curve, _) in curves(panel) {
            let Curve { way, step, exposed, speed_up, .. } = curve;
            for (i, &devices) in devices.iter().enumerate() {
                let what = format!("{name}, {batch}, {link}: {way} on {devices}");
                let more = if shared { 1 } else { devices };
                assert_eq!((devices, samples[i] * devices), (1 << i, samples[0] * more), "{what}");
                assert!(speed_up[i].value() <= devices as f64, "{what}");
                assert_eq!(exposed[i].value() > 0.0, i > 0, "{what}");
                close(step[i], compute[i].value() + exposed[i].value(), &what);
                close(speed_up[i], more as f64 * step[0].value() / step[i].value(), &what);
            }
        }
        for (quick, slow) in panel.with_overlap.iter().zip(&panel.without_overlap) {
            let slower = quick.step.iter().zip(&slow.step).all(|(quick, slow)| quick <= slow);
            assert!(slower, "{name}, {batch}, {link}: {}", quick.way);
        }
    }
    // As far as hosts are alike: rings of hosts have fewer steps than one ring of all, whatever the link.
    let panels = panels.chunks(8).collect::<Vec<_>>();
    for (fast, slow) in [(0, 1), (1, 2), (2, 3), (0, 4)] {
        for (fast_panel, slow_panel) in panels[fast].iter().zip(panels[slow]) {
            for ((a, _), (b, _)) in curves(fast_panel).zip(curves(slow_panel)) {
                let alike = (fast, slow) != (0, 1) || a.way != "rings";
                assert!(!alike || a.step.iter().zip(&b.step).all(|(a, b)| a <= b), "{}", a.way);
            }
        }
    }
}

/// LeNet's gradients are one bucket of 516,272 bytes; without overlap nothing hides.
#[test]
fn lenets_ring_over_ethernet_is_what_one_computes_by_hand() {
    let (latency, byte) = (50e-6, 1.0 / 1.25e9);
    let over_ethernet = |panel: &Panel| panel.link == "10 Gb/s Ethernet between all";
    let panels = panels(false);
    for panel in panels.iter().filter(|panel| panel.name == "LeNet" && over_ethernet(panel)) {
        let ring = panel.without_overlap.iter().find(|curve| curve.way == "ring").unwrap();
        for (&devices, &waiting) in panel.devices.iter().zip(&ring.exposed).skip(1) {
            let n = devices as f64;
            let ring = 2.0 * (n - 1.0) * (latency + 516_272.0 / n * byte);
            // Each to each, or up and down a tree.
            let loss = (latency + 32.0 * byte) * (n - 1.0).min(2.0 * n.log2());
            close(waiting, 1e3 * (ring + loss), &format!("{devices}"));
        }
    }
}

/// Each step of the measurement is a point, and its prediction is on a line.
#[test]
fn what_was_measured_is_on_the_chart() {
    let Measurement { steps, .. } = Measurement::stored().unwrap();
    let mut points = 0;
    for panel in panels(true) {
        let alone = steps.iter().find(|s| s.how.is_none() && s.model == panel.name).unwrap();
        for ((curve, overlap), (i, &devices)) in
            curves(&panel).cartesian_product(panel.devices.iter().enumerate().skip(1))
        {
            let step = steps.iter().filter(|s| s.model == panel.name && s.devices == devices);
            let is = |how: &cost_model::record::How| {
                (how.sum.way.to_string(), how.sum.overlap) == (curve.way.clone(), overlap)
                    && how.slow == panel.link.contains("slow")
            };
            let step = step.filter(|s| s.how.as_ref().is_some_and(is)).exactly_one().unwrap();
            let (seen, predicted) = (curve.measured.as_ref().unwrap(), &step.predicted);
            let what = format!("{}, {}: {} on {devices}", panel.name, panel.link, curve.way);
            close(seen.measured[i], 1e3 * step.measured, &what);
            close(seen.measured_speed_up[i], alone.measured / step.measured, &what);
            close(curve.step[i], 1e3 * predicted.seconds, &what);
            close(curve.speed_up[i], alone.predicted.seconds / predicted.seconds, &what);
            close(curve.exposed[i], 1e3 * (predicted.seconds - predicted.compute), &what);
            points += 1;
        }
    }
    assert_eq!(points, steps.iter().filter(|step| step.how.is_some()).count());
}
