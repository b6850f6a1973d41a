//! Measured with the command of the exercise's text. The files have the rates in their names, and a line for each seed.

use exercises::checks::ch04_learning_rate::{Answer, Reason};

pub const ANSWER: Answer = Answer {
    metrics: &["tests/answers/ch04_learning_rate/metrics"],
    steps: [375, 94],
    best_rate: [0.2, 0.4],
    accuracy: [0.855, 0.815],
    spread: [0.014, 0.033],
    lost_by_keeping_the_rate: 0.145,
    lost_by_four_times_the_rate: 0.715,
    reason: Reason::FewerStepsUpToALimit,
};

exercises::check!(ch04_learning_rate, ANSWER);
