//! The outcomes of checks that are no tables of cases yet: their functions panic.

use params_and_allreduce::communicator::Error;

use crate::Expectation;
use crate::call;
use crate::outcome::{Finding, Outcome};
use crate::ranks::{self, Rank, Sends};
use candle_core::Tensor;

/// Ends a check with a message.
#[track_caller]
pub fn fail(what: &str, expected: &str, got: &str, law: &str) -> ! {
    panic!("{}", Finding::new(what).expected(expected, got).law(law))
}

/// Ends a check with a finding, if there is one.
#[track_caller]
pub fn must<T>(outcome: Outcome<T>) -> T {
    outcome.unwrap_or_else(|finding| panic!("{finding}"))
}

/// [`call::within`], or a panic.
#[track_caller]
pub fn within<R: Send + 'static>(input: &str, work: impl FnOnce() -> R + Send + 'static) -> R {
    must(call::within(input, work))
}

/// [`ranks::run`]s `work`. Fails with the message.
pub fn attempt<R: Send + 'static>(
    world_size: usize,
    sends: Sends,
    work: impl Fn(&Rank) -> Result<R, Error> + Send + Sync + 'static,
) -> Result<Vec<R>, String> {
    ranks::run(world_size, sends, work).map_err(|finding| finding.to_string())
}

/// Ends a check: there is no `what`, since an [`attempt`] ended with this `failure`.
#[track_caller]
pub fn fail_on_ranks(what: &str, expected: &str, failure: &str, law: &str, empty: bool) -> ! {
    let law = if empty || ranks::is_between_ranks(failure) { law } else { "" };
    panic!("{}", Finding::new(what).expected(expected, failure).law(law))
}

impl Expectation<'_> {
    /// [`compare`](Self::compare), or a panic.
    #[track_caller]
    pub fn check(&self, expected: &[f64], got: &[f64]) {
        must(self.compare(expected, got));
    }

    /// [`compare_tensors`](Self::compare_tensors), or a panic.
    #[track_caller]
    pub fn check_tensor(&self, expected: &Tensor, got: &Tensor) {
        must(self.compare_tensors(expected, got));
    }
}
