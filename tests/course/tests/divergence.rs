//! `cargo course divergence` tells where two recordings part, and what one of them does not have.

use crate::*;

/// A recording of three steps on one rank.
fn whole() -> String {
    let kinds = ["images", "parameter", "loss", "gradient"];
    let entry = |step: usize, kind: &str| {
        format!(r#"{{"step":{step},"rank":0,"kind":"{kind}","name":"{kind}","hash":"0{step}"}}"#)
    };
    (1..=3).flat_map(|step| kinds.map(|kind| entry(step, kind) + "\n")).collect()
}

fn lines(part: std::ops::Range<usize>) -> String {
    whole().lines().skip(part.start).take(part.len()).map(|line| format!("{line}\n")).collect()
}

fn divergence(folder: &Path) -> Command {
    let mut course = tool(&["divergence", "whole", "other"]);
    course.current_dir(folder);
    course
}

fn beside(other: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("whole"), whole()).unwrap();
    fs::write(folder.path().join("other"), other).unwrap();
    folder
}

#[test]
fn what_only_one_recording_has_is_told() {
    let told = |other: &str| divergence(beside(other).path()).assert().success();
    told(&whole()).stdout(diff("no difference in 3 steps, from step 1 to 3\n"));
    told(&lines(0..4)).stdout(diff(
        "no difference in 1 steps, from step 1 to 1\n\
         only the first recording has steps 2 to 3: the other ends sooner\n",
    ));
    told(&lines(4..12)).stdout(diff(
        "no difference in 2 steps, from step 2 to 3\n\
         only the first recording has step 1: the other begins later\n",
    ));
    // A rank that only one of them has.
    let second = whole().replace("\"rank\":0", "\"rank\":1");
    told(&(whole() + &second)).stdout(diff(
        "no difference in 3 steps, from step 1 to 3\n\
         only the second recording has rank 1: of that, nothing but images was compared\n",
    ));
    let changed = lines(4..12).replace("\"loss\",\"hash\":\"03", "\"loss\",\"hash\":\"ff");
    let told = told(&changed);
    told.stdout(contains("step 3, rank 0: the first difference").and(contains("has step 1")));
    let nothing = divergence(beside("").path()).assert().code(2);
    nothing.stderr(contains("error: other: nothing is recorded in it"));
    let none = divergence(beside(&lines(0..4).replace("\"step\":1", "\"step\":9")).path()).assert();
    none.code(2).stderr(contains("no step in common"));
}

#[test]
fn what_a_run_ended_with_is_compared_too() {
    let weights = |step: usize, hash: &str| {
        format!(
            r#"{{"step":{step},"rank":0,"kind":"parameter","name":"parameter","hash":"{hash}"}}"#
        ) + "\n"
    };
    let told = |other: &str| divergence(beside(other).path()).assert().success();
    // The other run ends after step 2; with what step 3 begins with, or with something else.
    told(&(lines(0..8) + &weights(3, "03"))).stdout(diff(
        "no difference in 2 steps, from step 1 to 2, nor in the weights after that\n\
         only the first recording has step 3: the other ends sooner\n",
    ));
    told(&(lines(0..8) + &weights(3, "ff"))).stdout(diff(
        "after step 2, rank 0: the first difference, after 8 equal tensors\n\
        \x20 first recording:  parameter 03\n\
        \x20 second recording: parameter ff\n\
        \x20 made by the update of that step\n",
    ));
    // A run that was resumed, and the one before.
    let resumed = beside(&lines(8..12));
    fs::write(resumed.path().join("whole"), lines(0..8) + &weights(3, "03")).unwrap();
    divergence(resumed.path()).assert().success().stdout(diff(
        "no difference in the weights after step 2\n\
         only the first recording has steps 1 to 2: the other begins later\n\
         only the second recording has step 3: the other ends sooner\n",
    ));
}

#[test]
fn a_recording_that_was_cut_is_no_other_computation() {
    // Between two lines of step 2, and in the middle of one.
    let between = divergence(beside(&lines(0..6)).path()).assert().success();
    between.stdout(diff(
        "step 2, rank 0: the second recording ends here, after 6 equal tensors\n\
        \x20 first recording:  loss 02\n\
        \x20 second recording: nothing\n\
        \x20 in the middle of a step: nothing differs up to there\n",
    ));
    let half = lines(0..6) + &lines(6..7)[..20];
    let half = divergence(beside(&half).path()).assert().success();
    let told = starts_with("step 2, rank 0: the second recording ends here, after 6")
        .and(contains("\nother ends in the middle of a line: its run was cut short\n"));
    half.stdout(told);
}

#[test]
fn an_entry_that_one_lacks_is_told_as_lacking() {
    let lacking = lines(0..5) + &lines(6..12);
    let told = divergence(beside(&lacking).path()).assert().success();
    let lacks = contains("\n  the second recording lacks parameter there\n");
    told.stdout(lacks.and(contains("made by").not()));
}
