//! Stage 1: one device, from images to a trained network.
//!
//! Before a model is trained on many devices it has to be trained well on one: with gradients that have
//! been checked, at a speed that is worth multiplying. This stage builds that baseline from parameters
//! up. Every later stage uses it and adds one idea.
//!
//! | module | what it teaches |
//! | --- | --- |
//! | [`init`] | initial weights that depend on a name and a seed, never on who else draws |
//! | [`lenet`] | a model is named tensors and a function |
//! | [`sgd`], [`train`], [`evaluate`] | a step, an epoch, an accuracy |
//!
//! Devices, images, fast operations and reports come from the engine: the crates `devices`, `datasets`, `ops`,
//! `harness` and `trainer`.
//!
//! Two conventions hold from here to the last stage. A loss is the *sum* over its samples, and the
//! update divides once, by the size of the whole batch: then shards of any size add up exactly. And
//! initial weights depend on their name and the seed alone.
//!
//! Left out on purpose: other networks (stage 5), optimisers beyond plain SGD, data augmentation.

pub mod evaluate;
pub mod init;
pub mod lenet;
pub mod sgd;
pub mod train;
