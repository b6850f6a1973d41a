//! Stage 7: what a device holds, and how to hold less of it: ZeRO 1, 2 and 3, prefetch, and recomputation.
//!
//! A step is a list, as in stage 6. A strategy is a function from list to list ([`strategies`]), and stage 6's checker,
//! simulator and executor do the rest. What is new is a second kind of [`Unit`](model_parallel::execute::unit::Unit), whose
//! parameters can be freed and filled again ([`flat`], [`mod@unit`]).

pub mod checkpoint;
pub mod counted;
pub mod flat;
pub mod strategies;
pub mod unit;

pub use checkpoint::Sets;
pub use counted::Counted;
pub use unit::Sharded;

use model_parallel::Schedule;
use strategies::{List, alone, ddp, passes, prefetched, recomputed, zero1, zero2, zero3};

// ANCHOR: strategy
/// What is shared out over the replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// Nothing: every replica holds everything.
    Ddp,
    /// The optimizer's state.
    Zero1,
    /// The optimizer's state and the gradients.
    Zero2,
    /// The optimizer's state, the gradients and the parameters.
    Zero3,
}

/// A strategy: what is shared out, and when gathers and forward passes happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Strategy {
    /// What is shared out.
    pub sharing: Sharing,
    /// Whether a gather starts a unit earlier.
    pub prefetches: bool,
    /// Every n-th unit is recomputed.
    pub recomputes: Option<usize>,
}

impl Strategy {
    /// The list of a step of so many units and micro-batches on each of so many replicas. One replica has nothing to share.
    pub fn schedule(self, units: usize, micro_batches: usize, replicas: usize) -> Schedule {
        let mut list: List = passes(units, micro_batches);
        if let Some(every) = self.recomputes {
            list = recomputed(list, every);
        }
        let mut list = match self.sharing {
            Sharing::Ddp if replicas == 1 => alone(list),
            Sharing::Ddp => ddp(list),
            Sharing::Zero1 => zero1(list),
            Sharing::Zero2 => zero2(list),
            Sharing::Zero3 => zero3(list),
        };
        if self.prefetches && self.sharing == Sharing::Zero3 {
            list = prefetched(list);
        }
        Schedule {
            micro_batches,
            replicas,
            placement: vec![0; units],
            first_trained: 0,
            sharded: self.sharing == Sharing::Zero3,
            lists: vec![list],
        }
    }
}
// ANCHOR_END: strategy
