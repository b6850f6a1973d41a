//! What was measured where devices are, beside what was predicted.

use xtask::scaling::{Catalogue, Measurement};

use super::{OVERLAPS, close, counts, list, numbers, on_paper, stored};
use crate::*;

/// Each step of the measurement is a point, and its prediction is on a line.
#[test]
fn what_was_measured_is_on_the_chart() {
    let file = stored();
    let measured: Value =
        serde_json::from_str(&in_the_book("data/cost-model-cpu.json").unwrap()).unwrap();
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
