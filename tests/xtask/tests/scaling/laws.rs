//! Laws of scaling, which hold on paper whatever is assumed.

use super::{
    BATCHES, LINKS, MODELS, OVERLAPS, WAYS, close, counts, list, numbers, of_link, on_paper, stored,
};
use crate::*;

/// What is wrong with a panel on paper, first of all.
fn keeps_the_laws(panel: &Value) -> Result<(), String> {
    let counts = counts(panel);
    let (samples, compute) = (numbers(panel, "samples"), numbers(panel, "compute"));
    let shared = panel["batch"].as_str().unwrap().ends_with("for all");
    for (place, &devices) in counts.iter().enumerate() {
        let all = if shared { samples[place] * devices as f64 } else { samples[place] };
        if all != samples[0] {
            return Err(format!("{} samples on {devices}", samples[place]));
        }
    }
    let (before, after) = (list(panel, OVERLAPS[0]), list(panel, OVERLAPS[1]));
    for (quick, slow) in before.iter().zip(after) {
        let way = quick["way"].as_str().unwrap();
        for curve in [quick, slow] {
            for name in ["step", "exposed", "speed_up"] {
                if numbers(curve, name).len() != counts.len() {
                    return Err(format!("{way}: {name} is not for each number of devices"));
                }
            }
            let (step, exposed) = (numbers(curve, "step"), numbers(curve, "exposed"));
            let speed_up = numbers(curve, "speed_up");
            if (speed_up[0], exposed[0]) != (1.0, 0.0) {
                return Err(format!("{way}: one device is not as fast as itself"));
            }
            for (place, &devices) in counts.iter().enumerate() {
                let what = format!("{way} on {devices}");
                let devices = devices as f64;
                if !(speed_up[place] > 0.0 && speed_up[place] <= devices) {
                    return Err(format!("{what}: {} times as fast", speed_up[place]));
                }
                if place > 0 && exposed[place] <= 0.0 {
                    return Err(format!("{what}: nobody waits"));
                }
                if !close(compute[place] + exposed[place], step[place]) {
                    return Err(format!("{what}: the parts are not the step"));
                }
                let more = if shared { 1.0 } else { devices };
                if !close(more * step[0] / step[place], speed_up[place]) {
                    return Err(format!("{what}: the speed-up is not that of the steps"));
                }
            }
        }
        let (quick, slow) = (numbers(quick, "step"), numbers(slow, "step"));
        if let Some(place) = (0..quick.len()).find(|&place| quick[place] > slow[place]) {
            return Err(format!("{way} on {}: overlap makes it slower", counts[place]));
        }
    }
    Ok(())
}

#[test]
fn the_laws_of_scaling_hold() {
    let file = stored();
    let panels: Vec<_> = list(&file, "panels").iter().filter(on_paper).collect();
    assert_eq!(panels.len(), 40);
    for panel in panels {
        let what = format!("{}, {}, {}", panel["name"], panel["batch"], panel["link"]);
        assert_eq!(keeps_the_laws(panel), Ok(()), "{what}");
    }
}

#[test]
fn a_number_that_is_another_is_noticed() {
    let file = stored();
    // A model of several buckets: the gradients of one bucket cannot travel before the backward pass is over.
    let sound = of_link(&file, LINKS[2])[4];
    assert_eq!((&sound["name"], &sound["batch"]), (&json!(MODELS[1]), &json!(BATCHES[0].0)));
    let broken = |change: &dyn Fn(&mut Value)| {
        let mut panel = sound.clone();
        change(&mut panel);
        keeps_the_laws(&panel).unwrap_err()
    };
    for (name, number, wrong) in [
        ("speed_up", 5.0, "4 on 4: 5 times"),
        ("speed_up", 1.5, "is not that of the steps"),
        ("exposed", 0.0, "nobody waits"),
        ("step", 1.0, "the parts are not the step"),
    ] {
        for overlap in OVERLAPS {
            for (way, name_of_way) in WAYS.iter().enumerate() {
                let told = broken(&|panel| panel[overlap][way][name][2] = json!(number));
                let wrong = wrong.replace("4 on 4", &format!("{name_of_way} on 4"));
                assert!(told.contains(&wrong), "{told}, not {wrong}");
            }
        }
    }
    let told = broken(&|panel| {
        panel["with_overlap"][0]["step"].as_array_mut().unwrap().pop();
    });
    assert!(told.contains("step is not for each"), "{told}");
    let swapped = broken(&|panel| {
        let with = panel["with_overlap"].take();
        panel["with_overlap"] = panel["without_overlap"].take();
        panel["without_overlap"] = with;
    });
    assert!(swapped.contains("overlap makes it slower"), "{swapped}");
    let told = broken(&|panel| panel["samples"][1] = json!(129));
    assert!(told.contains("129 samples"), "{told}");
}

/// As far as hosts are alike: rings of hosts have fewer steps than one ring of all, whatever the link.
#[test]
fn a_slower_link_makes_no_step_faster() {
    let file = stored();
    for (fast, slow) in [(0, 1), (1, 2), (2, 3), (0, 4)] {
        let ways = if fast == 0 && slow == 1 { &WAYS[..3] } else { &WAYS };
        let panels = of_link(&file, LINKS[fast]).into_iter().zip(of_link(&file, LINKS[slow]));
        for (fast, slow) in panels {
            for overlap in OVERLAPS {
                let curves = list(fast, overlap).iter().zip(list(slow, overlap));
                for (a, b) in curves.filter(|(a, _)| ways.iter().any(|way| a["way"] == *way)) {
                    let what = [&fast["name"], &fast["batch"], &a["way"], &slow["link"]];
                    let pairs = numbers(a, "step").into_iter().zip(numbers(b, "step"));
                    for ((a, b), devices) in pairs.zip(counts(fast)) {
                        assert!(a <= b, "{what:?}: {b} ms on {devices}, over the faster link {a}");
                    }
                }
            }
        }
    }
}

/// LeNet's gradients are one bucket of 516,272 bytes; without overlap nothing hides.
#[test]
fn lenets_ring_over_ethernet_is_what_one_computes_by_hand() {
    let file = stored();
    let wire = &list(&file, "links")[4]["wires"][0];
    let (latency, byte) =
        (1e-6 * wire["latency"].as_f64().unwrap(), 1e-9 / wire["bandwidth"].as_f64().unwrap());
    assert!(close(latency, 50e-6) && close(byte, 1.0 / 1.25e9), "{wire}");
    for panel in of_link(&file, LINKS[4]).iter().filter(|panel| panel["name"] == "LeNet") {
        let ring = &panel["without_overlap"][2];
        for (devices, waiting) in counts(panel).into_iter().zip(numbers(ring, "exposed")).skip(1) {
            let n = devices as f64;
            let ring = 2.0 * (n - 1.0) * (latency + 516_272.0 / n * byte);
            // Each to each, or up and down a tree.
            let loss = (latency + 32.0 * byte) * (n - 1.0).min(2.0 * n.log2());
            let by_hand = 1e3 * (ring + loss);
            assert!(close(waiting, by_hand), "{waiting} ms on {devices}, by hand {by_hand}");
        }
    }
}
