//! Stage 1: one device, from images to a trained network.
//!
//! A model must train well on one device before it trains on many devices. Its gradients must be
//! right, and one device must be fast. This stage builds this baseline from the parameters up.
//!
//! The lesson, in reading order:
//!
//! | module | what it teaches |
//! | --- | --- |
//! | [`lenet`] | a model is named tensors and a function |
//! | [`init`] | initial weights that depend on a name and a seed alone |
//! | [`layers`] | convolution, relu, pooling, linear layer and loss as plain loops, forward and backward |
//! | [`gradient_check`] | gradients against finite differences |
//! | [`sgd`] | the update, which divides by the size of the batch |
//! | [`train`] | a step, and the loop over epochs |
//! | [`evaluate`] | accuracy on images that were not trained on |
//!
//! Devices, images, fast layers and reports come from the engine: the crates `devices`, `datasets`,
//! `ops`, `harness` and `trainer`.
//!
//! Two conventions apply in all stages. A loss is the *sum* over its samples, and the
//! update divides once, by the size of the whole batch. The gradients of shards of any size then
//! add up exactly. Initial weights depend on their name and the seed alone.
//!
//! Left out on purpose: other networks (stage 5), optimizers beyond plain SGD, data augmentation.

pub mod evaluate;
pub mod gradient_check;
pub mod init;
pub mod layers;
pub mod lenet;
pub mod sgd;
pub mod train;
