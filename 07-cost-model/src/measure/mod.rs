//! What the model needs to know of this machine, each by itself, and what it is to be judged by.
//!
//! | module | what is measured |
//! | --- | --- |
//! | [`mod@compute`] | a device's step, while the others work beside it and nobody talks |
//! | [`mod@link`] | messages between devices that have nothing else to do |
//! | [`mod@training`] | whole steps of stage 5's training: to compare, never to fit |

pub mod compute;
pub mod link;
pub mod training;

use candle_core::{DType, Device};
use concise_wrapper::Network;
use model_parallel::layers::{Layers, Stage};

pub use compute::compute;
pub use link::{Links, links};
pub use training::{Together, training};

/// A replica of a model, with the initial values that stage 5 gives it.
fn network(layers: &Layers, device: &Device) -> candle_core::Result<Network<Stage>> {
    layers.build(0..layers.len(), 1, DType::F32, device)
}
