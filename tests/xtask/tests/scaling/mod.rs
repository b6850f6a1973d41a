//! What the book's chart of the cost model shows is what stage 7 says, and is right.
//!
//! The stored file is read here as a browser reads it, and checked without stage 7: that it has every curve, and that
//! the laws of scaling hold in it.

mod drawn;
mod laws;
mod measured;

use xtask::pictures;
use xtask::scaling::{Catalogue, Measurement};

use crate::*;

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

fn stored() -> Value {
    serde_json::from_str(&in_the_book("data/scaling.json").unwrap()).unwrap()
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
    let measurement =
        Measurement::parse(&in_the_book("data/cost-model-cpu.json").unwrap()).unwrap();
    let catalogue = Catalogue::make(&measurement).unwrap();
    let pictured = catalogue.pictured().unwrap();
    for (name, now) in [
        ("data/scaling.json", catalogue.json().unwrap()),
        ("figures/scaling.svg", pictures::scaling(&pictured)),
    ] {
        check_current(name, &now, "cargo xtask scaling").unwrap();
    }
}

/// A page of the book has all of it.
#[test]
fn the_file_is_small_and_fits_into_a_page() {
    check_fits_into_a_page("data/scaling.json", 100_000).unwrap();
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
