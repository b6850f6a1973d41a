//! Tensor parallelism: every rank holds a part of every layer.
//!
//! All ranks see the same whole batch. A rank makes some of a layer's outputs, or all of them from some of
//! the inputs; what is missing comes from the others, in the middle of the layer. Two dense layers on two
//! ranks, with one message on the way forward and one on the way back:
//!
//! ```text
//!              rank 0                                 rank 1
//! forward      X                                      X              the same on both
//!              X·A₀ + a₀ → relu                       X·A₁ + a₁ → relu      A cut by columns
//!              H₀·B₀                                  H₁·B₁                 B cut by rows
//!              └──────────── all-reduce ────────────────┘            g
//!              H₀·B₀ + H₁·B₁ + b                      the same
//!
//! backward     G                                      G              the same on both
//!              G·B₀ᵀ → relu' → ·A₀ᵀ                   G·B₁ᵀ → relu' → ·A₁ᵀ
//!              └──────────── all-reduce ────────────────┘            f
//!              dX                                     the same
//! ```
//!
//! | module | what it teaches |
//! | --- | --- |
//! | [`group`] | the ranks that hold one model together |
//! | [`cut`] | which part of a tensor a rank holds |
//! | [`conjugate`] | f and g: what is a copy forward is a sum backward, and the other way round |
//! | [`linear`] | a dense layer cut by columns, or by rows |
//! | [`conv2d`] | a convolution cut by output channels (filters), or by input channels |
//! | [`parts`] | tensors by name, of which each rank gets its part: the same numbers on any number of ranks |
//! | [`layout`] | which tensors are split, and what they are put together |
//! | [`mod@model`] | a network in parts, with the loop of stage 5 |
//! | [`replicated`] | with data parallelism: several replicas, each in parts |
//! | [`dense`], [`lenet`] | two networks in parts |
//! | [`memory`], [`exchange`] | bytes that a device holds, and bytes that it sends |
//!
//! # Which gradients are whose
//!
//! A part's gradient is needed on the rank that holds the part, and is complete there: no gradient of a
//! weight is ever sent. A tensor that all ranks hold (a bias that is added after a sum) has the same
//! gradient on all of them, to the last bit: an all-reduce and an all-gather give everyone the same bits, and
//! from there to the loss, and back, all ranks compute the same. So replicated tensors stay equal although
//! nobody compares them.
//!
//! # Sources
//!
//! Columns, rows, f and g: Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language Models
//! Using Model Parallelism", arXiv 1909.08053, 2019, section 3. Convolutions: Dryden et al., "Channel and
//! Filter Parallelism for Large-Scale CNN Training", SC19. That dense layers, with many weights and few
//! activations, suit this and convolutions suit data parallelism: Krizhevsky, "One weird trick for
//! parallelizing convolutional neural networks", arXiv 1404.5997, 2014.
//!
//! Left out: a loss of logits that stay cut (Megatron-LM's vocabulary-parallel cross-entropy; here every
//! rank has all logits), activations cut along the batch or the image between layers (sequence and spatial
//! parallelism), attention, checkpoints of a network in parts.

pub mod conjugate;
pub mod conv2d;
pub mod cut;
pub mod dense;
pub mod exchange;
pub mod group;
pub mod layout;
pub mod lenet;
pub mod linear;
pub mod memory;
pub mod model;
pub mod parts;
pub mod replicated;

pub use cut::Cut;
pub use exchange::Exchange;
pub use group::Group;
pub use layout::Layout;
pub use memory::Memory;
pub use model::TensorParallel;
pub use parts::Parts;
pub use replicated::Replicated;
