//! What can be counted in the file is what the file tells. (That each is a pipeline, and that of the literature, stage 6 tests.)

use model_parallel::partition::Cost;
use model_parallel::pipeline::{Kind, check, predict};
use xtask::schedules::{KINDS, MICRO_BATCHES, PICTURED, Plan, STAGES};

use super::told::{numbers, told};
use crate::*;

#[test]
fn the_bubble_is_what_is_idle() {
    let all = told();
    assert_eq!(all.len(), 156);
    for told in all {
        let spans = || told.rows.iter().flatten();
        assert_eq!(spans().map(|span| span.start).min(), Some(0), "{}", told.what);
        assert_eq!(spans().map(|span| span.end).max(), Some(told.time), "{}", told.what);
        let bubble = told.plan["bubble"].as_f64().unwrap();
        assert!((bubble - told.idle()).abs() < 1e-12, "{}: {bubble}, {}", told.what, told.idle());
    }
}

#[test]
fn what_is_kept_is_what_has_begun_and_is_not_done() {
    for told in told() {
        let halves = told.letters.contains(&'W');
        let mut peaks = Vec::new();
        let mut both = Vec::new();
        for (stage, row) in told.rows.iter().enumerate() {
            let kept: Vec<_> = (0..told.time).map(|step| told.kept(stage, step)).collect();
            peaks.push(kept.iter().map(|(alive, _)| *alive).max().unwrap());
            both.push(kept.iter().map(|(alive, waiting)| alive + waiting).max().unwrap());
            // What the file says holds from the beginning of a forward pass, and the end of any other.
            let lists = told.plan["rows"][stage].as_array().unwrap();
            assert_eq!(lists.len(), if halves { 5 } else { 4 }, "{}", told.what);
            let alive = numbers(&lists[3]);
            let waiting = lists.get(4).map_or_else(|| vec![0; row.len()], numbers);
            assert!(alive.len() == row.len() && waiting.len() == row.len(), "{}", told.what);
            for (i, span) in row.iter().enumerate() {
                let since = if span.forward() { span.start } else { span.end };
                // A pass that begins at once changes it again.
                if row.get(i + 1).is_none_or(|next| !next.forward() || next.start > since) {
                    let counted = told.kept(stage, since);
                    assert_eq!((alive[i], waiting[i]), counted, "{}, {span:?}", told.what);
                }
            }
        }
        assert_eq!(numbers(&told.plan["peaks"]), peaks, "{}", told.what);
        let with_weights = told.plan.get("peaks_with_weights").map(numbers);
        assert_eq!(with_weights, halves.then_some(both), "{}", told.what);
    }
}

/// The figure tells one capacity and one timeline: with channels that hold no more, nothing is later.
#[test]
fn the_smallest_channels_are_as_fast_as_any() {
    for kind in KINDS {
        for stages in STAGES {
            for micro_batches in MICRO_BATCHES {
                let plan = Plan::of(kind, stages, micro_batches).unwrap();
                let Some(timeline) = plan.timeline() else { continue };
                let schedule = kind.schedule(stages, micro_batches).unwrap();
                let tight = check(schedule, timeline.capacity).unwrap();
                let tight = predict(&tight, &vec![Cost::UNITS; stages], 0.0).unwrap();
                let what = format!("{kind}, {stages} × {micro_batches}");
                assert_eq!(tight.makespan(), timeline.units.0, "{what}");
            }
        }
    }
}

#[test]
fn the_picture_tells_what_the_file_tells() {
    let svg = in_the_book("figures/pipeline-schedules.svg").unwrap();
    let (kinds, stages, micro_batches) = PICTURED;
    assert_eq!(kinds, [Kind::GPipe, Kind::OneFOneB, Kind::ZbH1]);
    let mut rest = svg.as_str();
    for (kind, idle, units) in [("GPipe", "27.3", 33), ("1F1B", "27.3", 33), ("ZB-H1", "11.1", 27)]
    {
        let title = format!(">{kind}: idle (bubble) {idle} %, {units} units</text>");
        let at = rest.find(&title).unwrap_or_else(|| panic!("{title}"));
        rest = &rest[at..];
    }
    // Every pass, its number and its tooltip; the legend's three colours.
    let passes = stages * micro_batches * (2 + 2 + 3);
    assert_eq!(svg.matches("micro-batch ").count(), passes);
    let bars = |series: usize| svg.matches(&format!("<rect class=\"series-{series}\"")).count();
    assert_eq!((1..=3).map(bars).sum::<usize>(), passes + 3);
    assert_eq!(svg.matches("on-bar").count(), passes);
}
