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

use crate::compute::median;
pub use compute::compute;
pub use link::link;
pub use training::{Together, training};

/// A replica of a model, with the initial values that stage 5 gives it.
fn network(layers: &Layers, device: &Device) -> candle_core::Result<Network<Stage>> {
    layers.build(0..layers.len(), 1, DType::F32, device)
}

/// The median, over all times, of the slowest rank's number: `ranks` has each rank's, time by time.
fn slowest(ranks: &[Vec<f64>]) -> f64 {
    let times = ranks.iter().map(Vec::len).min().unwrap_or(0);
    median((0..times).map(|time| ranks.iter().map(|rank| rank[time]).fold(0.0, f64::max)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_rank_counts_each_time() {
        let ranks = [vec![1.0, 9.0, 2.0], vec![3.0, 1.0, 8.0]];
        assert_eq!(slowest(&ranks), 8.0);
    }
}
