//! Stage 3: who works on which samples.
//!
//! In data parallelism every device has the whole model and a *shard* of the batch. The shards must hold
//! every sample exactly once, images must stay with their labels, and when the batch does not divide
//! evenly the shards must differ by at most one sample: nothing is dropped, nothing is counted twice.
//!
//! | module | what it teaches |
//! | --- | --- |
//! | [`split`] | which samples are whose, and a batch cut accordingly: `split_batch` |
//! | [`sampler`] | a whole epoch shared out: each rank's samples, step by step; and four ways to get that wrong |
//! | [`mod@gather`] | the parts put together again, in order |

pub mod gather;
pub mod sampler;
pub mod split;

pub use gather::gather;
pub use sampler::Sampler;
pub use sampler::breakage::Breakage;
pub use split::{cut_shard, shard_range, split_batch};
