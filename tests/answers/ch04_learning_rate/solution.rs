//! Measured on a machine with two cores, with the command of the exercise's text and the rates in the names of the files.

use exercises::checks::ch04_learning_rate::Answer;

pub const ANSWER: Answer = Answer {
    metrics: &["tests/answers/ch04_learning_rate/metrics"],
    steps: [375, 188],
    best_rate: [0.2, 0.3],
    lost_by_keeping_the_rate: 0.097,
    reason: "Twice the batch makes half as many steps of an epoch, and less noisy ones: each step may and must go further.",
};

exercises::check!(ch04_learning_rate, ANSWER);
