//! Tensor parallelism: every rank holds a part of every layer.
//!
//! All ranks of a group get the same batch. A rank computes some of a layer's outputs, or a term of all of them. Two dense
//! layers on two ranks, with one all-reduce forward and one backward:
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
//! [`mappings`] are f and g, and the layers that they make. [`sharding`] is the part of a tensor that a rank holds. The group
//! is a communicator, such as a row of the [mesh](crate::mesh).
//! [`Layers::build_part`](crate::layers::Layers::build_part) builds a rank's part of a network. The ranks of a group never
//! send gradients of weights.

pub mod mappings;
pub mod sharding;
