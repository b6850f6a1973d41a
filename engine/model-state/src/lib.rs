//! The state of a model: named tensors, their initial values, their types and their hash.

pub mod initial;
pub mod parameters;
pub mod precision;
pub mod weights;
pub mod weights_hash;
