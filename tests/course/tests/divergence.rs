//! `cargo course divergence` names the first difference of two recordings, and the parts that one recording lacks.

use crate::*;

fn entry(step: usize, kind: &str, hash: &str) -> String {
    format!(r#"{{"step":{step},"rank":0,"kind":"{kind}","name":"{kind}","hash":"{hash}"}}"#) + "\n"
}

/// Lines of a recording of three steps on one rank.
fn lines(part: std::ops::Range<usize>) -> String {
    let kinds = ["images", "parameter", "loss", "gradient"];
    let step = |step: usize| kinds.map(|kind| entry(step, kind, &format!("0{step}")));
    (1..=3).flat_map(step).skip(part.start).take(part.len()).collect()
}

fn divergence(first: &str, second: &str) -> assert_cmd::assert::Assert {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("whole"), first).unwrap();
    fs::write(folder.path().join("other"), second).unwrap();
    tool(&["divergence", "whole", "other"]).current_dir(folder.path()).assert()
}

#[test]
fn what_only_one_recording_has_is_told() {
    let whole = lines(0..12);
    let second_rank = whole.clone() + &whole.replace("\"rank\":0", "\"rank\":1");
    let weights = |step, hash| lines(0..8) + &entry(step, "parameter", hash);
    for (first, second, told) in [
        (&whole, whole.clone(), "no difference in 3 steps, from step 1 to 3\n"),
        (
            &whole,
            lines(0..4),
            "no difference in 1 steps, from step 1 to 1\n\
             only the first recording has steps 2 to 3: the other ends sooner\n",
        ),
        (
            &whole,
            lines(4..12),
            "no difference in 2 steps, from step 2 to 3\n\
             only the first recording has step 1: the other begins later\n",
        ),
        (
            &whole,
            second_rank,
            "no difference in 3 steps, from step 1 to 3\n\
             only the second recording has rank 1: of that, nothing but images was compared\n",
        ),
        // The second run ends after step 2, with the weights of step 3 or with other weights.
        (
            &whole,
            weights(3, "03"),
            "no difference in 2 steps, from step 1 to 2, nor in the weights after that\n\
             only the first recording has step 3: the other ends sooner\n",
        ),
        (
            &whole,
            weights(3, "ff"),
            "after step 2, rank 0: the first difference, after 8 equal tensors\n\
            \x20 first recording:  parameter 03\n\
            \x20 second recording: parameter ff\n\
            \x20 made by the update of that step\n",
        ),
        // A run that was resumed, and the one before.
        (
            &weights(3, "03"),
            lines(8..12),
            "no difference in the weights after step 2\n\
             only the first recording has steps 1 to 2: the other begins later\n\
             only the second recording has step 3: the other ends sooner\n",
        ),
    ] {
        divergence(first, &second).success().stdout(diff(told));
    }
    let changed = lines(4..12).replace("\"loss\",\"hash\":\"03", "\"loss\",\"hash\":\"ff");
    let told = divergence(&whole, &changed).success();
    told.stdout(all(["step 3, rank 0: the first difference", "has step 1"]));
    let half = lines(0..6) + &lines(6..7)[..20];
    let told = starts_with("step 2, rank 0: the second recording ends here, after 6")
        .and(contains("\nother ends in the middle of a line: its run was cut short\n"));
    divergence(&whole, &half).success().stdout(told);
    let nothing = divergence(&whole, "").code(2);
    nothing.stderr(contains("error: other: nothing is recorded in it"));
    let none = lines(0..4).replace("\"step\":1", "\"step\":9");
    divergence(&whole, &none).code(2).stderr(contains("no step in common"));
}
