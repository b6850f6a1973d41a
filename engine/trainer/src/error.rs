//! The reasons why training stops early.

/// The reason why training stopped early.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An operation failed.
    #[error(transparent)]
    Tensor(#[from] candle_core::Error),
    /// The loss became infinite or NaN.
    #[error(
        "the loss is {loss} at step {step} of epoch {epoch}: {}",
        likely_cause(*updated, *learning_rate)
    )]
    NotFinite {
        /// Counted from 1.
        epoch: usize,
        /// Counted from 1, within the epoch. When losses are read later, an earlier step may have
        /// been the first.
        step: usize,
        /// The loss.
        loss: f64,
        /// The learning rate.
        learning_rate: f64,
        /// Whether an update was made before.
        updated: bool,
    },
    /// Progress or metrics could not be written.
    #[error("cannot write the report: {0}")]
    Report(#[from] std::io::Error),
}

/// Names the most likely reason for a loss that is not finite.
fn likely_cause(updated: bool, learning_rate: f64) -> String {
    if !updated {
        return "no update was made yet, so the images or the initial weights are not finite"
            .to_owned();
    }
    // Debug prints a very large or small rate with an exponent.
    format!(
        "the weights have run away, most likely because the learning rate {learning_rate:?} is too \
         large; try a tenth of it"
    )
}
