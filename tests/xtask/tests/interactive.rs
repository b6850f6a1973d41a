//! The book's interactive figures have the numbers of the stages, and the laws of the stages hold in them.

use itertools::Itertools as _;
use model_parallel::check;
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::Communicator as _;
use xtask::number::Rounded;
use xtask::scaling::{Curve, Measurement, Panel};
use xtask::schedules::{KINDS, Plan, Row, Shape};
use xtask::{scaling, schedules, steps};

/// The links count the same bytes. The number of steps is the number in the course. Each rank sends the sums that the stepper
/// shows in this rank, and every rank ends with the sum of all.
#[test]
fn messages_add_up() {
    for run in steps::Catalogue::record().unwrap().runs {
        let what = format!("{} on {}", run.algorithm, run.ranks);
        let holdings = run.holdings();
        let mut sent = vec![0; run.ranks];
        for (before, message) in
            holdings.iter().zip(&run.steps).flat_map(|(h, step)| step.iter().map(move |m| (h, m)))
        {
            sent[message.from] += message.bytes;
            for &chunk in &message.chunks {
                assert!(before[message.from][chunk].iter().eq(&message.sum_of), "{what}");
            }
        }
        assert_eq!(sent, run.sent, "{what}");
        let steps = match run.algorithm.as_str() {
            "tree" => 2 * run.ranks.next_power_of_two().ilog2() as usize,
            _ => 2 * (run.ranks - 1),
        };
        assert_eq!(run.steps.len(), steps, "{what}");
        let mut last = holdings[steps].iter().flatten();
        assert!(last.all(|held| held.len() == run.ranks), "{what}");
    }
}

#[test]
fn a_broken_ring_is_not_recorded() {
    let doubled = steps::record("ring", 4, |recorder, tensor| {
        let chunk = recorder.reduce_scatter(tensor)?;
        recorder.all_gather(&(chunk * 2.0)?, tensor.elem_count())
    });
    assert!(format!("{:#}", doubled.unwrap_err()).contains("whole chunks of one partial sum"));
    let pieces = steps::record("ring", 4, |recorder, tensor| {
        recorder.all_reduce(&tensor.narrow(0, 0, 100)?, Algorithm::Ring)
    });
    assert!(format!("{:#}", pieces.unwrap_err()).contains("whole chunks of one partial sum"));
    let nothing = steps::record("ring", 4, |_, tensor| Ok(tensor.clone()));
    assert!(nothing.unwrap_err().to_string().contains("rank 0 does not end with the sum"));
}

/// The busy time of a row, the end, and the most micro-batches that the stage keeps.
fn counted(row: &Row, shape: &Shape, what: &str) -> (f64, f64, usize) {
    let (mut busy, mut end, mut peak, mut alive) = (0.0, 0.0, 0, 0);
    let halves = shape.passes.iter().any(|pass| pass.letter == 'W');
    for (i, letter) in row.passes.chars().enumerate() {
        let units = shape.passes.iter().find(|pass| pass.letter == letter).unwrap().units.0;
        assert!(row.starts[i].0 >= end, "{what}: two passes at one time");
        (busy, end) = (busy + units, row.starts[i].0 + units);
        match letter.to_ascii_uppercase() {
            'F' => alive += 1,
            // The second half of a backward pass needs what the first half has left.
            'B' if halves => {}
            _ => alive -= 1,
        }
        assert_eq!(row.activations[i], alive, "{what}");
        peak = peak.max(alive);
    }
    assert_eq!(alive, 0, "{what}");
    (busy, end, peak)
}

#[test]
fn bubbles_and_peaks_are_those_of_the_rows() {
    let schedules::Catalogue { shapes, plans, .. } = schedules::Catalogue::make().unwrap();
    let mut found = 0;
    for Plan { kind, stages, micro_batches, timeline, .. } in &plans {
        let what = format!("{kind}, {stages} × {micro_batches}");
        let Some(timeline) = timeline else {
            assert!(kind.contains("interleaved") && micro_batches % stages != 0, "{what}");
            continue;
        };
        found += 1;
        let shape = shapes.iter().find(|shape| shape.kind == *kind).unwrap();
        let rows: Vec<_> = timeline.rows.iter().map(|row| counted(row, shape, &what)).collect();
        let busy: f64 = rows.iter().map(|row| row.0).sum();
        let idle = 1.0 - busy / (*stages as f64 * timeline.units.0);
        assert!((timeline.bubble - idle).abs() < 1e-12, "{what}: {idle}");
        assert_eq!(rows.iter().map(|row| row.1).fold(0.0, f64::max), timeline.units.0, "{what}");
        assert!(rows.iter().map(|row| row.2).eq(timeline.peaks.iter().copied()), "{what}");
        // With channels that hold no more, nothing is later.
        let kind = KINDS.into_iter().find(|one| one.to_string() == *kind).unwrap();
        let schedule = kind.schedule(*stages, *micro_batches).unwrap();
        let tight = check(schedule, timeline.capacity).unwrap();
        let tight = tight.simulate(&schedules::costs(kind, *stages), 0.0).unwrap();
        assert_eq!(tight.makespan(), timeline.units.0, "{what}");
    }
    assert_eq!((found, plans.len()), (156, 175));
}

/// The panels of machines on paper, or the measured panels.
fn panels(measured: bool) -> Vec<Panel> {
    let scaling::Catalogue { mut panels, .. } =
        scaling::Catalogue::make(&Measurement::stored().unwrap()).unwrap();
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
    assert!((a.0 - b).abs() <= 1.2e-3 * b.abs(), "{what}: {a:?}, {b}");
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
                assert!(speed_up[i].0 <= devices as f64, "{what}");
                assert_eq!(exposed[i].0 > 0.0, i > 0, "{what}");
                close(step[i], compute[i].0 + exposed[i].0, &what);
                close(speed_up[i], more as f64 * step[0].0 / step[i].0, &what);
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
