//! The measurements of this machine that the model needs, and the training steps that test the model.
//!
//! | module | measurement |
//! | --- | --- |
//! | [`mod@compute`] | a step on devices that compute at the same time, without messages |
//! | [`mod@link`] | messages between idle devices |
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
