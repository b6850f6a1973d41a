//! Which layers go on which device: a list of layers is cut into stages.
//!
//! A pipeline is as fast as its slowest stage, so a good cut makes the largest stage small. What one would do
//! by hand, to give a stage layers as long as they fit into its fair share, goes wrong:
//!
//! ```text
//! costs       3  3  3  3  3  1          fair share of three stages: 16 / 3 = 5.33
//! by share    3 |3 |3  3  3  1          10: what the first stages leave, the last one has
//! best        3  3 |3  3 |3  1          6
//! ```
//!
//! | file | its idea |
//! | --- | --- |
//! | `measured` | what each layer costs |
//! | `best` | the smallest largest stage, found by dynamic programming |
//! | `cut_points` | a cut that somebody asks for, such as `3,7` |

mod best;
mod cut_points;
mod measured;

pub use best::cut;
pub use cut_points::CutPoints;
pub use measured::{LayerCost, measure};

/// Why a list of layers cannot be cut like this.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Error {
    /// A stage would have no layer.
    #[error(
        "{layers} layers cannot be cut into {stages} stages: every stage has at least one layer, and there is \
         at least one stage"
    )]
    Stages {
        /// How many layers there are.
        layers: usize,
        /// How many stages were asked for.
        stages: usize,
    },
    /// A cost that is none.
    #[error("layer {layer} costs {cost}: a cost is a finite number, and not negative")]
    Cost {
        /// The first layer with such a cost.
        layer: usize,
        /// Its cost.
        cost: f64,
    },
    /// A cut that is not a list of numbers.
    #[error(
        "a cut is the layers at which a new stage begins, such as 3,7; \"{found}\" is no number"
    )]
    NotANumber {
        /// What stands there.
        found: String,
    },
    /// A stage that begins before the one before it has a layer.
    #[error(
        "cut {cut}: a stage that begins at layer {begin} comes after one that begins at layer {before}. \
         Each stage begins later than the one before it, and the first begins at layer 0"
    )]
    NotRising {
        /// The cut.
        cut: String,
        /// Where the stage should begin.
        begin: usize,
        /// Where the one before it begins.
        before: usize,
    },
    /// A stage that begins after the last layer.
    #[error("cut {cut}: no stage can begin at layer {begin}; layers are 0 to {}", layers.saturating_sub(1))]
    Beyond {
        /// The cut.
        cut: String,
        /// Where the stage should begin.
        begin: usize,
        /// How many layers there are.
        layers: usize,
    },
}
