//! Stage 3: the samples of each rank.
//!
//! Every device has the whole model and a *shard* of the batch. Each sample is in one shard, with its label.
//!
//! | module | content |
//! | --- | --- |
//! | [`split`] | cuts a batch into shards, and joins shards to a batch |
//! | [`sampler`] | the samples of each rank in an epoch, step by step; four samplers with a mistake |
//! | [`loader`] | loads the shards of a rank, step by step |

pub mod loader;
pub mod sampler;
pub mod split;

pub use sampler::{Breakage, Sampler, epoch_share};
pub use split::{gather, split_batch};

/// Returns the samples of one shard. Samples are cut into shards as tensors are cut into chunks.
#[doc(inline)]
pub use params_and_allreduce::collectives::chunk_range as shard_range;
