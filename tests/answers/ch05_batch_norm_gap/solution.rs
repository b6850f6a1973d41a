//! Measured on a machine with two cores, with the command of the exercise's text. The files are named by setting and seed.

use exercises::checks::ch05_batch_norm_gap::{Answer, LostIn, Suspect};

pub const ANSWER: Answer = Answer {
    metrics: &["tests/answers/ch05_batch_norm_gap/metrics"],
    lost_by_batch: 0.339,
    lost_by_rate: -0.020,
    lost_by_both: 0.195,
    regained_by_statistics: 0.197,
    spread: 0.023,
    suspect: Suspect::Batch,
    lost_in: LostIn::Statistics,
    steps: 8,
    remembered: 10,
    reason: "The running statistics lag behind the weights.",
};

exercises::check!(ch05_batch_norm_gap, ANSWER);
