//! Stage 1: one device, from images to a trained network.
//!
//! Before a model is trained on many devices it has to be trained well on one: with gradients that have
//! been checked, at a speed that is worth multiplying. This stage builds that baseline from parameters
//! up. Every later stage uses it and adds one idea.
//!
//! | module | what it teaches |
//! | --- | --- |
//! | [`device`] | what a device is: a GPU, or a slice of the CPU with cores of its own |
//! | [`data`] | images from a folder or drawn; an epoch in shuffled batches |
//! | [`ops`] | convolution, pooling, relu, loss: forward, and a backward that is verified |
//! | [`mod@backward`] | from a loss to the gradients, each tensor's once |
//! | [`init`], [`random`] | numbers that depend on a name and a seed, never on who else draws |
//! | [`parameters`], [`lenet`] | a model is named tensors and a function |
//! | [`sgd`], [`train`], [`evaluate`] | a step, an epoch, an accuracy |
//! | [`weights_hash`], [`difference`] | are two sets of weights equal, to the last bit? how far are they apart? |
//! | [`statistics`] | of several measurements, the one to tell |
//! | [`report`], [`cli`] | what a run tells, and what it refuses |
//! | `allocator` | memory stays with the device that freed it |
//! | [`lock`] | what ranks share outlives one that panicked |
//! | [`interrupt`] | Ctrl-C: ending early, together, with what was learnt so far |
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
pub mod init;
pub mod interrupt;
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
