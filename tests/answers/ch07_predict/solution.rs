//! The prediction for a machine of two cores. Its measurements are those of LeNet in `book/data/cost-model-cpu.json`, as
//! `--metrics` writes them: `--devices 1` and `--devices 4`, on a quiet machine.

use exercises::checks::ch07_predict::Answer;

/// Two cores share the 21.3 ms of one device, on two devices and on four. A ring of k devices adds
/// 2 (k − 1) · (200 µs + 516,272 bytes / k / 100 MB/s).
pub const ANSWER: Answer = Answer {
    one: "tests/answers/ch07_predict/metrics/one.jsonl",
    four: "tests/answers/ch07_predict/metrics/four.jsonl",
    predicted: [0.0107 + 0.0056, 0.0107 + 0.0089],
    reason: "With two cores four devices compute no faster than two, and their ring has six messages in a row in place of two.",
};

exercises::check!(ch07_predict, ANSWER);
