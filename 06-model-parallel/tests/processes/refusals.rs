//! What cannot work is told once, by one process, before anybody trains.

use super::job::{Ended, Started, mpirun, processes, refused, turn};
use super::{SMALL, binary};

#[test]
fn flags_that_make_no_sense_are_told_once() {
    let _turn = turn();
    let refusals: [(&[&str], &str); 4] = [
        (&["--mesh=2x2x1"], "3 processes were started, one for each device, and --devices is 4"),
        (&["--cut=1"], "--cut 1 makes 2 stages, not 3"),
        (&["--widths=2"], "dense stack 784-2-10: 2 layers cannot be cut into 3 stages"),
        (&["--gantt=/dev/null/at/all"], "--gantt /dev/null/at/all"),
    ];
    for (flags, says) in refusals {
        let Some(mut job) = processes(3) else { return };
        job.args(SMALL).args(flags);
        refused(job, 2, says);
    }
}

#[test]
fn processes_that_were_not_started_alike_are_told_the_difference() {
    let _turn = turn();
    let differences: [(&[&str], &[&str], &str); 3] = [
        (
            &["--widths=9,8"],
            &["--widths=9,7"],
            "rank 1 has model dense stack 784-9-7-10, rank 0 has",
        ),
        (&["--schedule=gpipe"], &["--schedule=1f1b"], "rank 1 has run 1F1B, 8 micro-batches"),
        (&["--cut=1"], &["--cut=2"], "rank 1 has parts [0..2, 2..7], rank 0 has [0..1, 1..7]"),
    ];
    for (of_rank_0, of_rank_1, says) in differences {
        let Some(mut job) = mpirun("two different ranks") else { return };
        job.args(["-n", "1", binary()]).args(SMALL).args(of_rank_0);
        job.args([":", "-n", "1", binary()]).args(SMALL).args(of_rank_1);
        let Ended { code, text, .. } = Started::new(job).end();
        assert_eq!(code, Some(1), "{text}");
        assert!(text.contains(says), "{says:?} in:\n{text}");
        assert!(!text.contains("panicked"), "{text}");
    }
}

#[test]
fn drawings_are_made_once() {
    let _turn = turn();
    let Some(mut job) = processes(2) else { return };
    job.args(["--draw", "--schedule=zb-h1"]);
    let Ended { success, text, .. } = Started::new(job).end();
    assert!(success, "{text}");
    assert_eq!(text.matches("ZB-H1: 2 stages, 8 micro-batches").count(), 1, "{text}");
}
