//! The book's figure of schedules has the numbers of stage 6, and the rows of the figure add up to these numbers.

use model_parallel::partition::Cost;
use model_parallel::pipeline::{check, predict};
use xtask::schedules::{Catalogue, KINDS, Plan, Row, Shape};

/// The busy time of a row, the end, and two peaks: of activations, and of activations with the waiting gradients of weights.
fn counted(row: &Row, shape: &Shape, what: &str) -> (f64, f64, usize, usize) {
    let (mut busy, mut end, mut peak, mut both) = (0.0, 0.0, 0, 0);
    let (mut alive, mut waiting) = (0, 0);
    let halves = shape.passes.iter().any(|pass| pass.letter == 'W');
    for (i, letter) in row.passes.chars().enumerate() {
        let units = shape.passes.iter().find(|pass| pass.letter == letter).unwrap().units.value();
        assert!(row.starts[i].value() >= end, "{what}: two passes at one time");
        (busy, end) = (busy + units, row.starts[i].value() + units);
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
        let idle = 1.0 - busy / (*stages as f64 * timeline.units.value());
        assert!((timeline.bubble - idle).abs() < 1e-12, "{what}: {idle}");
        assert_eq!(
            rows.iter().map(|row| row.1).fold(0.0, f64::max),
            timeline.units.value(),
            "{what}"
        );
        assert!(rows.iter().map(|row| row.2).eq(timeline.peaks.iter().copied()), "{what}");
        let both = &timeline.peaks_with_weights;
        assert!(both.is_empty() || rows.iter().map(|row| row.3).eq(both.iter().copied()), "{what}");
        // With channels that hold no more, nothing is later.
        let kind = KINDS.into_iter().find(|one| one.to_string() == *kind).unwrap();
        let schedule = kind.schedule(*stages, *micro_batches).unwrap();
        let tight = check(schedule, timeline.capacity).unwrap();
        let tight = predict(&tight, &vec![Cost::UNITS; *stages], 0.0).unwrap();
        assert_eq!(tight.makespan(), timeline.units.value(), "{what}");
    }
    assert_eq!((found, plans.len()), (156, 175));
}
