//! The state of a model: named tensors, their initial values, their types and their hash.
//!
//! | module | contents |
//! | --- | --- |
//! | [`initial`] | the value of a tensor before training, which depends on its name and a seed alone |
//! | [`parameters`] | the parameters of one replica, as a list of variables |
//! | [`weights`] | the parameters and buffers of a network, as plain tensors |
//! | [`precision`] | the types of weights and of layers, which differ in mixed precision |
//! | [`weights_hash`] | a hash, by which replicas compare their weights to the last bit |

pub mod initial;
pub mod parameters;
pub mod precision;
pub mod weights;
pub mod weights_hash;
