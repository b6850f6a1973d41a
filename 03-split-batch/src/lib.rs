//! Stage 3: the samples of each rank.
//!
//! In data parallelism, every device has the whole model and a *shard* of the batch. Each sample is in exactly one shard,
//! and each image stays with its label. The sizes of two shards differ by at most one sample.
//!
//! | module | content |
//! | --- | --- |
//! | [`split`] | `split_batch`, and the rule that gives the samples of each shard |
//! | [`sampler`] | the samples of each rank in an epoch, step by step; four samplers with a mistake |
//! | [`mod@gather`] | joins shards to a batch |
//! | [`loader`] | loads the shards of a rank, step by step |

pub mod gather;
pub mod loader;
pub mod sampler;
pub mod split;

pub use gather::gather;
pub use sampler::Sampler;
pub use sampler::breakage::Breakage;
pub use split::{cut_shard, split_batch};

/// Returns the samples of one shard. Samples are cut into shards as tensors are cut into chunks.
#[doc(inline)]
pub use params_and_allreduce::collectives::chunk_range as shard_range;
