//! Stage 1: one device, from images to a trained network.
//!
//! A model that is to be trained on many devices must first be trained well on one: with gradients
//! that have been checked, at a speed that is worth multiplying. This stage builds that baseline
//! from parameters up.
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
//! The engine, which the lesson and all later stages use:
//!
//! | module | what it does |
//! | --- | --- |
//! | [`ops`] | the fast layers, for CPU and GPU |
//! | [`mod@backward`] | the backward pass: from a loss to the gradients |
//! | [`parameters`] | named parameters of one replica |
//! | [`device`] | GPUs, or slices of the CPU with cores of their own |
//! | [`data`] | images from a folder or drawn; an epoch in shuffled batches |
//! | [`random`] | random numbers that depend on a purpose and a seed |
//! | [`weights_hash`], [`difference`] | compare two sets of weights, to the last bit or by their largest difference |
//! | [`statistics`] | the median of several measurements |
//! | [`report`], [`cli`] | progress, files and results; flags and exit codes |
//! | `allocator` | keeps memory with the device that freed it |
//! | [`lock`] | locks that outlive a panic |
//! | [`interrupt`] | Ctrl-C: every device ends early, together |
//!
//! Two conventions hold from here to the last stage. A loss is the *sum* over its samples, and the
//! update divides once, by the size of the whole batch: then shards of any size add up exactly. And
//! initial weights depend on their name and the seed alone.
//!
//! Left out on purpose: other networks (stage 5), optimisers beyond plain SGD, data augmentation.

mod allocator;
pub mod backward;
pub mod cli;
pub mod data;
pub mod device;
pub mod difference;
pub mod evaluate;
pub mod gradient_check;
pub mod init;
pub mod interrupt;
pub mod layers;
pub mod lenet;
pub mod lock;
pub mod ops;
pub mod parameters;
pub mod random;
pub mod report;
pub mod sgd;
pub mod statistics;
pub mod train;
pub mod weights_hash;
