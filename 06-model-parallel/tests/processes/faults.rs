//! Stages that are killed, stopped or asked to leave in the middle of a step.

use std::fs;

use tempfile::TempDir;

use super::SMALL;
use super::job::{BOUNDED, Ended, Started, processes, turn};

/// A pipeline of three stages that trains, for much longer than anybody waits; `None` where there is no `mpirun`.
fn training() -> Option<(Started, TempDir)> {
    training_in("1f1b")
}

/// The same, by one schedule after the other.
fn training_in(schedules: &str) -> Option<(Started, TempDir)> {
    let folder = TempDir::new().unwrap();
    let metrics = folder.path().join("metrics");
    let mut job = processes(3)?;
    job.args(SMALL).args([
        "--widths=24,20,16",
        "--schedule",
        schedules,
        "--timeout=3",
        "--epochs=100000",
    ]);
    let mut job = Started::new({
        job.arg("--metrics").arg(&metrics);
        job
    });
    // An epoch's line says that it trains.
    job.until(|| fs::read_to_string(&metrics).is_ok_and(|text| text.contains("epoch")));
    Some((job, folder))
}

#[test]
fn a_killed_stage_ends_the_job() {
    let _turn = turn();
    for stage in [0, 1, 2] {
        let Some((mut job, _folder)) = training() else { return };
        job.signal(stage, "-KILL");
        let Ended { success, text, took, .. } = job.end();
        assert!(!success && took < BOUNDED, "{took:?}\n{text}");
        assert!(text.contains(&format!("rank {stage}")), "{text}");
    }
}

/// Whoever waits for it says so, with its own stage and micro-batch.
#[test]
fn a_stopped_stage_is_named_by_those_who_wait_for_it() {
    let _turn = turn();
    let mut texts = Vec::new();
    // Once in a while it is stopped between two steps, where all agree whether to go on.
    for _ in 0..5 {
        let Some((mut job, _folder)) = training() else { return };
        job.signal(1, "-STOP");
        let Ended { success, text, took, .. } = job.end();
        assert!(!success && took < BOUNDED, "{took:?}\n{text}");
        // It does not answer, or a sum in which it takes part does not come.
        let named = text.contains("rank 1 sent nothing for 3.0 s, does not answer");
        assert!(named || text.contains("rank 1") && text.contains("waited 3"), "{text}");
        if text.contains("stage ") && text.contains(", micro-batch ") {
            return;
        }
        texts.push(text);
    }
    panic!("always between two steps: {texts:#?}");
}

/// The text without line breaks: lines are wrapped to the terminal.
fn in_one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn a_stage_that_is_asked_to_leave_takes_all_along() {
    let _turn = turn();
    let Some((mut job, folder)) = training() else { return };
    job.signal(2, "-TERM");
    let Ended { code, text, took, .. } = job.end();
    assert_eq!(code, Some(143), "{text}");
    assert!(
        took < BOUNDED && in_one_line(&text).contains(", interrupted after"),
        "{took:?}\n{text}"
    );
    // All stages ended after the same step, and told what they came to.
    let metrics = fs::read_to_string(folder.path().join("metrics")).unwrap();
    assert!(metrics.lines().any(|line| line.contains("\"kind\":\"split\"")), "{metrics}");
}

/// Whoever has got the signal, all processes leave the same ways out.
#[test]
fn one_stages_signal_leaves_later_ways_out_everywhere() {
    let _turn = turn();
    for stage in [0, 2] {
        let Some((mut job, _folder)) = training_in("1f1b,gpipe") else { return };
        job.signal(stage, "-TERM");
        let Ended { code, text, took, .. } = job.end();
        assert_eq!(code, Some(143), "{text}");
        assert!(took < BOUNDED, "{took:?}\n{text}");
        for told in [", interrupted after", "left out after the interrupt"] {
            assert_eq!(
                in_one_line(&text).matches(told).count(),
                1,
                "stage {stage}: {told:?} once in\n{text}"
            );
        }
    }
}
