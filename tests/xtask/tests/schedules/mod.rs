//! What the book's figure of schedules shows is what stage 6 says, and is right.
//!
//! The stored file is read here as a browser reads it, and checked without stage 6: that it is a pipeline,
//! and that what is told about it can be counted in it.

mod pipelines;
mod told;

use xtask::pictures;
use xtask::schedules::{Catalogue, KINDS, MICRO_BATCHES, Plan, STAGES};

use crate::*;

#[test]
fn the_book_has_what_stage_6_says_today() {
    let catalogue = Catalogue::make().unwrap();
    for (name, now) in [
        ("data/pipeline-schedules.json", catalogue.json().unwrap()),
        ("figures/pipeline-schedules.svg", pictures::schedules().unwrap()),
    ] {
        check_current(name, &now, "cargo xtask schedules").unwrap();
    }
}

/// A page of the book has all of it.
#[test]
fn the_file_is_small_and_fits_into_a_page() {
    check_fits_into_a_page("data/pipeline-schedules.json", 150_000).unwrap();
}

#[test]
fn every_kind_is_there_in_every_size_or_refused_in_words() {
    let catalogue = Catalogue::make().unwrap();
    let mut plans = catalogue.plans.iter();
    for kind in KINDS {
        for stages in STAGES {
            for micro_batches in MICRO_BATCHES {
                let Plan { kind: name, stages: p, micro_batches: m, .. } = plans.next().unwrap();
                assert_eq!((name, *p, *m), (&kind.to_string(), stages, micro_batches));
            }
        }
    }
    assert!(plans.next().is_none());
    let file: Value =
        serde_json::from_str(&in_the_book("data/pipeline-schedules.json").unwrap()).unwrap();
    for plan in file["plans"].as_array().unwrap() {
        let (p, m) = (plan["stages"].as_u64().unwrap(), plan["micro_batches"].as_u64().unwrap());
        let refused = plan["kind"].as_str().unwrap().contains("interleaved") && m % p != 0;
        let words = format!(
            "{m} micro-batches cannot be interleaved on {p} stages: their number has to be a multiple of {p}, \
             such as {}",
            m.next_multiple_of(p)
        );
        assert_eq!(plan.get("refused"), refused.then(|| json!(words)).as_ref(), "{plan}");
        assert_eq!(plan.get("rows").is_none(), refused);
    }
}
