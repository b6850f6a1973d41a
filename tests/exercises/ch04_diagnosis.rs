//! Chapter 4, `book/src/ch04b-what-breaks.md`: four runs with a hidden bug.
//!
//! Check your answer: `cargo course check ch04_diagnosis`

use exercises::checks::ch04_diagnosis::{Answer, Diagnosis};

/// An experiment: your answer is a diagnosis of each run, and the numbers that lead to it.
///
/// `--break mystery:1` to `--break mystery:4` each hide one of the seven bugs of the page, or none. The program does not say which.
///
/// 1. Run each mystery on 6,000 images, from the folder of the course:
///
///    ```text
///    mkdir -p target/diagnosis
///    cargo run --release -p scratch-data-parallel -- --device cpu --data synthetic --train-size 6000 --test-size 1000 \
///        --epochs 1 --batch-size 32 --break mystery:1 --metrics target/diagnosis/1.jsonl
///    ```
///
/// 2. Run each mystery on two images: the same command with `--train-size 2 --batch-size 2 --seed 2`, and another file for
///    `--metrics`. Two images have two orders only. Seed 2 and seed 3 shuffle them to the same order.
/// 3. Read the largest weight difference after step 1 of each run, and whether the replicas ended with the same weights.
/// 4. Name the bug of each mystery as `--break` names it, or write `none`. Each wrong name contradicts one of your numbers.
pub const ANSWER: Answer = Answer {
    // TODO: run the mysteries, then write your numbers and the names.
    // The metrics files, or folders of them.
    metrics: &["target/diagnosis"],
    mysteries: [
        // mystery:1
        Diagnosis {
            bug: "",
            // The largest weight difference after step 1, on 6,000 images and on two.
            difference: f64::NAN,
            with_two_images: f64::NAN,
            // Whether the replicas agree at the end, on 6,000 images.
            replicas_agree: false,
        },
        // mystery:2
        Diagnosis {
            bug: "",
            difference: f64::NAN,
            with_two_images: f64::NAN,
            replicas_agree: false,
        },
        // mystery:3
        Diagnosis {
            bug: "",
            difference: f64::NAN,
            with_two_images: f64::NAN,
            replicas_agree: false,
        },
        // mystery:4
        Diagnosis {
            bug: "",
            difference: f64::NAN,
            with_two_images: f64::NAN,
            replicas_agree: false,
        },
    ],
};

// The check of this answer. Leave this line as it is.
exercises::check!(ch04_diagnosis, ANSWER);
