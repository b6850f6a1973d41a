//! What most checks name.

pub use std::time::Duration;

pub use candle_core::{DType, Device, Tensor, Var};
pub use params_and_allreduce::Algorithm;
pub use params_and_allreduce::communicator::Communicator;
pub use params_and_allreduce::thread::Traffic;
pub use single_gpu::sgd::sgd;

pub use crate::classifier::{Classifier, worked};
pub use crate::expectation::{Expectation, numbers};
pub use crate::limit::{called_within, within};
pub use crate::mismatch::{fail, in_a_row, in_groups, short};
pub use crate::ranks::{self, Sends};
pub use crate::refusal;
pub use crate::replicas::{self, Weights};
pub use crate::tracer::{self, counted, in_words, multiple, taking_part};

/// The time that an answer gets: far more than any of them needs.
pub const LIMIT: Duration = Duration::from_secs(10);
