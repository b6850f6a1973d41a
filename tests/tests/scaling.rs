//! What the book's chart of the cost model shows is what stage 7 says, and is right.
//!
//! The stored file is read here as a browser reads it, and checked without stage 7: that it has every curve, and that
//! the laws of scaling hold in it.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the right answer")]

use std::path::Path;

use course_tests::scaling::{Catalogue, Measurement, PICTURED, picture};
use serde_json::{Value, json};

const LINKS: [&str; 5] = [
    "NVLink between all",
    "NVLink, InfiniBand between hosts",
    "NVLink, 100 Gb/s Ethernet between hosts",
    "PCIe, 10 Gb/s Ethernet between hosts",
    "10 Gb/s Ethernet between all",
];
const MODELS: [&str; 2] = ["LeNet", "ResNet-18 of width 64"];
/// With the most devices that have a sample each.
const BATCHES: [(&str, u64); 4] =
    [("256 for all", 256), ("2,048 for all", 1024), ("64 each", 1024), ("256 each", 1024)];
const WAYS: [&str; 4] = ["naive", "tree", "ring", "rings"];
const OVERLAPS: [&str; 2] = ["with_overlap", "without_overlap"];

/// Four digits are kept.
const ROUNDING: f64 = 6e-4;

fn in_the_book(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../book").join(name);
    // Git may have been told to end lines as another system does.
    std::fs::read_to_string(path).unwrap().replace("\r\n", "\n")
}

fn stored() -> Value {
    serde_json::from_str(&in_the_book("data/scaling.json")).unwrap()
}

fn list<'a>(value: &'a Value, name: &str) -> &'a Vec<Value> {
    value[name].as_array().unwrap_or_else(|| panic!("{name} in {value}"))
}

fn numbers(value: &Value, name: &str) -> Vec<f64> {
    list(value, name).iter().map(|number| number.as_f64().unwrap()).collect()
}

fn counts(panel: &Value) -> Vec<u64> {
    list(panel, "devices").iter().map(|count| count.as_u64().unwrap()).collect()
}

fn on_paper(panel: &&Value) -> bool {
    panel.get("on").is_none()
}

/// The panels of this link that are on paper, by model and batch.
fn of_link<'a>(file: &'a Value, link: &str) -> Vec<&'a Value> {
    list(file, "panels").iter().filter(|panel| panel["link"] == link).collect()
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() <= 2.0 * ROUNDING * a.abs().max(b.abs())
}

#[test]
fn the_book_has_what_stage_7_says_today() {
    let measurement = Measurement::parse(&in_the_book("data/cost-model-cpu.json")).unwrap();
    let catalogue = Catalogue::make(&measurement).unwrap();
    let pictured = catalogue.pictured().unwrap();
    for (name, now) in [
        ("data/scaling.json", catalogue.json().unwrap()),
        ("figures/scaling.svg", picture(&pictured)),
    ] {
        let old = in_the_book(name);
        let same = old.lines().zip(now.lines()).take_while(|(old, now)| old == now).count();
        assert!(old == now, "book/{name}, line {}: run `cargo course scaling`", same + 1);
    }
}

/// A page of the book has all of it.
#[test]
fn the_file_is_small_and_fits_into_a_page() {
    let text = in_the_book("data/scaling.json");
    assert!(text.len() < 100_000, "{} bytes", text.len());
    assert!(text.lines().all(|line| !line.is_empty()), "a blank line ends HTML in a page");
    assert!(!text.contains("</") && !text.contains("{{"), "it stands in a script, in a page");
}

#[test]
fn every_curve_is_there() {
    let file = stored();
    let mut panels = list(&file, "panels").iter().filter(on_paper);
    for link in LINKS {
        for model in MODELS {
            for (batch, most) in BATCHES {
                let panel = panels.next().unwrap();
                assert_eq!(
                    (&panel["link"], &panel["name"], &panel["batch"]),
                    (&json!(link), &json!(model), &json!(batch))
                );
                assert!(model.starts_with(panel["model"].as_str().unwrap()));
                let powers: Vec<u64> = (0..).map(|n| 1 << n).take_while(|n| *n <= most).collect();
                assert_eq!(counts(panel), powers);
                for overlap in OVERLAPS {
                    let ways: Vec<&Value> =
                        list(panel, overlap).iter().map(|curve| &curve["way"]).collect();
                    assert_eq!(ways, WAYS, "{link}, {model}, {batch}");
                }
            }
        }
    }
    assert!(panels.next().is_none());
    let links = list(&file, "links");
    let assumed: Vec<_> = links.iter().filter(|link| link["measured"] == false).collect();
    assert_eq!(assumed.iter().map(|link| &link["name"]).collect::<Vec<_>>(), LINKS);
    // Every panel's link is told about.
    for panel in list(&file, "panels") {
        assert!(links.iter().any(|link| link["name"] == panel["link"]), "{}", panel["link"]);
    }
}

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

/// Each step of the measurement is a point, and its prediction is on a line.
#[test]
fn what_was_measured_is_on_the_chart() {
    let file = stored();
    let measured: Value = serde_json::from_str(&in_the_book("data/cost-model-cpu.json")).unwrap();
    let panels = list(&file, "panels");
    let steps = list(&measured, "steps");
    let mut points = 0;
    for step in steps.iter().filter(|step| !step["how"].is_null()) {
        let how = &step["how"];
        let slow = how["slow"].as_bool().unwrap();
        let link = if slow { "measured here: slow link" } else { "measured here: memory" };
        let panel =
            panels.iter().find(|p| p["link"] == link && p["name"] == step["model"]).unwrap();
        let place =
            list(panel, "devices").iter().position(|count| *count == step["devices"]).unwrap();
        let overlap = OVERLAPS[usize::from(how["overlap"] == false)];
        let curve = list(panel, overlap).iter().find(|curve| curve["way"] == how["way"]).unwrap();
        let seconds = |value: &Value| 1e3 * value.as_f64().unwrap();
        let alone = |s: &&Value| s["how"].is_null() && s["model"] == step["model"];
        let alone = steps.iter().find(alone).unwrap();
        let predicted = &step["predicted"];
        let at = |name: &str| numbers(curve, name)[place];
        assert!(close(at("measured"), seconds(&step["measured"])), "{step}");
        assert!(close(at("step"), seconds(&predicted["seconds"])), "{step}");
        assert!(close(numbers(panel, "compute")[place], seconds(&predicted["compute"])), "{step}");
        let waiting = seconds(&predicted["seconds"]) - seconds(&predicted["compute"]);
        assert!(close(at("exposed"), waiting), "{step}");
        let times = seconds(&alone["measured"]) / seconds(&step["measured"]);
        assert!(close(at("measured_speed_up"), times), "{step}");
        let times = seconds(&alone["predicted"]["seconds"]) / seconds(&predicted["seconds"]);
        assert!(close(at("speed_up"), times), "{step}");
        points += 1;
    }
    let curves = |panel: &Value| OVERLAPS.iter().map(|o| list(panel, o).len()).sum::<usize>();
    let here = panels.iter().filter(|panel| !on_paper(panel));
    let all: usize = here.map(|panel| (counts(panel).len() - 1) * curves(panel)).sum();
    assert_eq!(points, all);
    assert!(points > 0, "nothing was measured");
}

/// A measurement on these numbers of devices, by ring.
fn measured_on(devices: &[usize]) -> Value {
    let step = |devices: usize, how: Value| {
        json!({"model": "LeNet", "batch_size": 256, "devices": devices, "how": how, "measured": 0.02 / devices as f64,
               "predicted": {"seconds": 0.01, "compute": 0.008, "communication": 0.002}})
    };
    let (mut steps, mut calibrations) = (Vec::new(), Vec::new());
    for &count in devices {
        let some = json!({"samples": 1, "passes": 0.1, "update": 0.1});
        let link = if count > 1 {
            json!({"latency": 1e-6, "wire": 1e-9, "handling": 0.0})
        } else {
            Value::Null
        };
        calibrations.push(json!({
            "model": "LeNet", "batch_size": 256, "devices": vec!["gpu"; count], "note": "busy", "measured": [some, some],
            "line": {"fixed": 0.0, "sample": 0.1, "forward": 0.3, "update": 0.1}, "memory": link, "slow": link,
        }));
        for slow in [false, true] {
            for overlap in [false, true] {
                if count > 1 {
                    steps.push(step(
                        count,
                        json!({"slow": slow, "way": "ring", "overlap": overlap}),
                    ));
                }
            }
        }
        if count == 1 {
            steps.push(step(1, Value::Null));
        }
    }
    json!({"command": "", "calibrations": calibrations, "steps": steps,
           "machine": {"processor": "", "cores": 2, "instruction_sets": [], "memory": null, "system": ""}})
}

fn made_of(measurement: &Value) -> Result<Value, String> {
    let measurement = Measurement::parse(&measurement.to_string()).map_err(|e| format!("{e:#}"))?;
    let catalogue = Catalogue::make(&measurement).map_err(|e| format!("{e:#}"))?;
    Ok(serde_json::from_str(&catalogue.json().unwrap()).unwrap())
}

#[test]
fn any_numbers_of_devices_can_have_been_measured() {
    let file = made_of(&measured_on(&[1, 2, 3])).unwrap();
    let here: Vec<_> = list(&file, "panels").iter().filter(|panel| !on_paper(panel)).collect();
    assert_eq!(here.len(), 2);
    for panel in here {
        assert_eq!(counts(panel), [1, 2, 3]);
        assert_eq!(numbers(panel, "samples"), [256.0, 128.0, 86.0]);
        assert_eq!(panel["on"], json!(["gpu", "gpu, gpu", "gpu, gpu, gpu"]));
        assert_eq!(panel["links"], json!([null, [1, 1], [1, 1]]));
        assert_eq!(panel["notes"], json!(["busy", "busy", "busy"]));
        assert_eq!(numbers(&panel["with_overlap"][0], "measured"), [20.0, 10.0, 6.667]);
        assert_eq!(numbers(&panel["with_overlap"][0], "measured_speed_up"), [1.0, 2.0, 3.0]);
    }
    assert_eq!(list(&file, "links").len(), 7);
    // One device has nobody to talk to.
    let alone = made_of(&measured_on(&[1])).unwrap();
    assert!(list(&alone, "panels").iter().all(|panel| on_paper(&panel)));
    assert_eq!(list(&alone, "links").len(), 5);
}

#[test]
fn a_measurement_that_is_not_whole_is_refused_in_words() {
    let wrong = made_of(&measured_on(&[2])).unwrap_err();
    assert!(
        wrong.contains("LeNet, measured here: memory: no step of ring on 1 devices"),
        "{wrong}"
    );
    let mut lost = measured_on(&[1, 2]);
    lost["calibrations"].as_array_mut().unwrap().pop();
    let wrong = made_of(&lost).unwrap_err();
    assert!(wrong.contains("no calibration of 2"), "{wrong}");
    let wrong = made_of(&json!({"lines": []})).unwrap_err();
    assert!(wrong.contains("--measure cost-model-cpu"), "{wrong}");
}

#[test]
fn lines_of_metrics_become_a_measurement() {
    let whole = measured_on(&[1, 2]);
    let mut metrics = String::new();
    for (kind, name) in [("calibration", "calibrations"), ("step", "steps")] {
        for line in list(&whole, name) {
            let mut line = line.clone();
            line["kind"] = json!(kind);
            metrics += &format!("{line}\n");
        }
    }
    let machine = || serde_json::from_value(whole["machine"].clone()).unwrap();
    let read = Measurement::of(&metrics, "run", machine(), None).unwrap();
    assert_eq!(serde_json::to_value(&read).unwrap()["steps"], whole["steps"]);
    assert_eq!((read.calibrations.len(), read.command.as_str()), (2, "run"));
    let wrong = Measurement::of("{\"kind\":\"epoch\"}\n", "run", machine(), None).unwrap_err();
    assert!(wrong.to_string().contains("neither a calibration nor a step"), "{wrong}");
}

#[test]
fn the_picture_tells_what_the_file_tells() {
    let (svg, file) = (in_the_book("figures/scaling.svg"), stored());
    let paths = |class: &str| -> Vec<&str> {
        svg.lines().filter(|line| line.contains(&format!("class=\"{class}"))).collect()
    };
    assert_eq!(paths("ideal").len(), PICTURED.len());
    let mut curves = paths("curve series-").into_iter();
    for [model, batch, link] in PICTURED {
        let panels = of_link(&file, link);
        let panel =
            panels.iter().find(|panel| panel["model"] == model && panel["batch"] == batch).unwrap();
        assert!(svg.contains(&format!(">{}, ", panel["name"].as_str().unwrap())), "{model}");
        // Up is faster: points of a curve are as high as its numbers are large.
        for series in [2, 0, 1, 3] {
            let curve = curves.next().unwrap();
            assert!(curve.contains(&format!("series-{}\"", series + 1)), "{curve}");
            let path = curve.split(" d=\"M").nth(1).unwrap().split('"').next().unwrap();
            let heights: Vec<f64> = path
                .split('L')
                .map(|point| point.split(' ').nth(1).unwrap().parse().unwrap())
                .collect();
            let numbers = numbers(&panel["with_overlap"][series], "speed_up");
            assert_eq!(heights.len(), numbers.len());
            // A decade is as high everywhere.
            let far = (0..numbers.len())
                .max_by(|&a, &b| numbers[a].ln().abs().total_cmp(&numbers[b].ln().abs()));
            let far = far.unwrap();
            let unit = (heights[0] - heights[far]) / numbers[far].ln();
            for (height, number) in heights.iter().zip(&numbers) {
                assert!(
                    (heights[0] - height - unit * number.ln()).abs() < 1.0,
                    "{model}: {height}, {number}"
                );
            }
        }
    }
    assert!(curves.next().is_none());
}
