//! Names that most checks use.

pub use candle_core::{DType, Device, Shape, Tensor, Var};
pub use datasets::Batch;
pub use harness::records::BatchSums;
pub use harness::report::counted;
pub use params_and_allreduce::Algorithm;
pub use params_and_allreduce::communicator::{Communicator, Error};
pub use params_and_allreduce::thread::Traffic;
pub use single_gpu::sgd::sgd;
pub use split_batch::shard_range;

pub use crate::call::given;
pub use crate::classifier::{Classifier, worked};
pub use crate::contributions::{self, contribution, guess, sum};
pub use crate::expectation::{Expectation, numbers};
pub use crate::laws;
pub use crate::laws::Law;
pub use crate::outcome::{
    Finding, Outcome, demand, expect, in_a_row, in_groups, refused, same, short,
};
pub use crate::ranks::{self, Message, Rank, Sends};
pub use crate::replicas::{self, Weights};
pub use crate::shown;
pub use crate::tracer::{self, in_words, multiple, taking_part};

/// A result; its error is candle's if none is named.
pub type Result<T, E = candle_core::Error> = std::result::Result<T, E>;
