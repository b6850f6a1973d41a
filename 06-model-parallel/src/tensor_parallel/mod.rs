//! Tensor parallelism: every rank holds a part of every layer.
//!
//! All ranks of a group get the same batch. A rank computes some of a layer's outputs, or a term of all of them. The ranks
//! exchange the rest in the middle of the layer. Two dense layers on two ranks, with one all-reduce forward and one
//! backward:
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
//! | module | content |
//! | --- | --- |
//! | [`mappings`] | f and g: a copy forward is a sum backward, and a sum forward is a copy backward |
//! | [`linear`] | a dense layer cut by columns, or by rows |
//! | [`convolution`] | a convolution cut by filters, or by channels |
//! | [`sharding`] | the part of a tensor that a rank holds |
//! | [`group`] | the ranks that hold one model together |
//!
//! [`Layers::build_part`](crate::layers::Layers::build_part) builds the part of a network that a rank holds, and a
//! [`Worker`](crate::pipeline::Worker) trains the part.
//!
//! # Gradients
//!
//! The gradient of a part is complete on the rank that holds the part, so ranks of a group never send gradients of weights. A tensor that all ranks
//! hold, such as a bias that is added after a sum, has the same gradient on all ranks, to the last bit: an all-reduce and
//! an all-gather give all ranks the same bits, and all ranks compute the same from there. So these tensors stay equal,
//! although nobody compares them.
//!
//! # Sources
//!
//! Columns, rows, f and g: Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model
//! Parallelism", arXiv 1909.08053, 2019, section 3. Convolutions: Dryden et al., "Channel and Filter Parallelism for
//! Large-Scale CNN Training", SC19. Dense layers, with many weights and few activations, suit tensor parallelism, and
//! convolutions suit data parallelism: Krizhevsky, "One weird trick for parallelizing convolutional neural networks",
//! arXiv 1404.5997, 2014.
//!
//! Left out: a loss of logits that stay cut (Megatron-LM's vocabulary-parallel cross-entropy), sequence and spatial
//! parallelism, attention, and checkpoints of a network in parts.

pub mod convolution;
pub mod group;
pub mod linear;
pub mod mappings;
pub mod sharding;

pub use group::Group;
pub use sharding::Cut;
