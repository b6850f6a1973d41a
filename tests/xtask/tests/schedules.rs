//! What the book's figure of schedules shows is what stage 6 says, and can be counted in it.

use model_parallel::partition::Cost;
use model_parallel::pipeline::{check, predict};
use xtask::pictures;
use xtask::schedules::{Catalogue, KINDS, Plan, Row, Shape};

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

/// A row's busy time, its end, and the most that it keeps: activations, and with them what waits for weights' gradients.
fn counted(row: &Row, shape: &Shape, what: &str) -> (f64, f64, usize, usize) {
    let (mut busy, mut end, mut peak, mut both) = (0.0, 0.0, 0, 0);
    let (mut alive, mut waiting) = (0, 0);
    let halves = shape.passes.iter().any(|pass| pass.letter == 'W');
    for (i, letter) in row.passes.chars().enumerate() {
        let units = shape.passes.iter().find(|pass| pass.letter == letter).unwrap().units.0;
        assert!(row.starts[i].0 >= end, "{what}: two passes at one time");
        (busy, end) = (busy + units, row.starts[i].0 + units);
        match letter.to_ascii_uppercase() {
            'F' => alive += 1,
            'B' => (alive, waiting) = (alive - 1, waiting + usize::from(halves)),
            _ => waiting -= 1,
        }
        assert_eq!(row.activations[i], alive, "{what}");
        assert_eq!(row.for_weights.get(i).copied().unwrap_or(0), waiting, "{what}");
        (peak, both) = (peak.max(alive), both.max(alive + waiting));
    }
    assert_eq!((alive, waiting), (0, 0), "{what}");
    (busy, end, peak, both)
}

#[test]
fn bubbles_and_peaks_are_those_of_the_rows() {
    let Catalogue { shapes, plans, .. } = Catalogue::make().unwrap();
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
        let both = &timeline.peaks_with_weights;
        assert!(both.is_empty() || rows.iter().map(|row| row.3).eq(both.iter().copied()), "{what}");
        // With channels that hold no more, nothing is later.
        let kind = KINDS.into_iter().find(|one| one.to_string() == *kind).unwrap();
        let schedule = kind.schedule(*stages, *micro_batches).unwrap();
        let tight = check(schedule, timeline.capacity).unwrap();
        let tight = predict(&tight, &vec![Cost::UNITS; *stages], 0.0).unwrap();
        assert_eq!(tight.makespan(), timeline.units.0, "{what}");
    }
    assert_eq!((found, plans.len()), (156, 175));
}
