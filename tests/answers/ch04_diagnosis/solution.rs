//! Each mystery by its signs. The files have the last lines of the runs of the exercise's text.

use exercises::checks::ch04_diagnosis::{Answer, Diagnosis};

pub const ANSWER: Answer = Answer {
    metrics: &["tests/answers/ch04_diagnosis/metrics"],
    mysteries: [
        Diagnosis {
            bug: "mean-for-sum",
            difference: 0.5,
            with_two_images: 0.5,
            replicas_agree: true,
        },
        Diagnosis {
            bug: "none",
            difference: 1.7e-7,
            with_two_images: 7.2e-7,
            replicas_agree: true,
        },
        Diagnosis {
            bug: "skip-allreduce",
            difference: 1.3,
            with_two_images: 1.5,
            replicas_agree: false,
        },
        Diagnosis {
            bug: "same-shard",
            difference: 2.2,
            with_two_images: 2.1,
            replicas_agree: true,
        },
    ],
};

exercises::check!(ch04_diagnosis, ANSWER);
