//! Chapter 1, `book/src/ch01-single-gpu.md`: the loss, summed over the batch, and its gradient.
//!
//! Check your answer: `cargo course check ch01_cross_entropy`

/// Cross-entropy, summed over a batch, and its gradient with respect to the logits.
///
/// The softmax of a row of logits z gives each class a probability: p_c = exp(z_c) / Σ exp(z_j). The loss
/// of a sample is −ln p at its label.
///
/// | name | what | shape |
/// | --- | --- | --- |
/// | `logits` | B rows of C numbers each, row by row | `[B, C]` |
/// | `labels` | the right class of each row, from 0 to C − 1 | `[B]` |
/// | result | the *sum* of the B losses, and its gradient | a number, and `[B, C]` row by row |
///
/// A batch may be empty (B = 0, as a shard can be): its loss is 0. Logits may be large: of a row
/// (1000, 0) with label 1 the loss is 1000, a number like any other.
pub fn cross_entropy(logits: &[f64], labels: &[usize], classes: usize) -> (f64, Vec<f64>) {
    // TODO: both results.
    todo!("cross-entropy and its gradient")
}

// The check of this answer. Leave this line as it is.
exercises::check!(ch01_cross_entropy, cross_entropy, run);
