//! Stage 7: the state that a device holds, and ways to hold less state: ZeRO 1, 2 and 3, prefetch, and recomputation.
//!
//! A step is a list, as in stage 6. A strategy is a function from list to list ([`strategies`]), and stage 6's
//! checker, simulator and executor do the rest. New is a second kind of
//! [`Unit`](model_parallel::execute::unit::Unit), whose parameters can be freed and filled again ([`flat`],
//! [`mod@unit`]).

pub mod checkpoint;
pub mod flat;
pub mod memory;
pub mod strategies;
pub mod unit;

pub use checkpoint::Sets;
pub use unit::Sharded;

use std::fmt;
use std::str::FromStr;

use itertools::iproduct;
use model_parallel::{Instruction, Refused, Schedule};
use strategies::{List, alone, ddp, passes, prefetched, recomputed, zero1, zero2, zero3};

// ANCHOR: strategy
/// The state that is shared out over the replicas.
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

/// A strategy: the state that is shared out, and the places of gathers and forward passes in the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Strategy {
    /// The state that is shared out.
    pub sharing: Sharing,
    /// Whether a gather starts a unit earlier.
    pub prefetches: bool,
    /// Every n-th unit is recomputed.
    pub recomputes: Option<usize>,
}

impl Sharing {
    /// The strategy without prefetch and recomputation.
    pub const fn plain(self) -> Strategy {
        Strategy { sharing: self, prefetches: false, recomputes: None }
    }
}

impl Strategy {
    /// The list of a step of so many units and micro-batches on each of so many replicas. One replica has nothing to
    /// share.
    pub fn schedule(self, units: usize, micro_batches: usize, replicas: usize) -> Schedule {
        self.of_passes(passes(units, micro_batches), replicas)
    }

    /// The list of a step with these passes, in their order, on each of so many replicas.
    pub fn of_passes(self, mut list: List, replicas: usize) -> Schedule {
        let of_list = |of: fn(&Instruction) -> Option<usize>| list.iter().filter_map(of).max();
        let units = of_list(|it| Some(it.unit + 1)).unwrap_or(0);
        let micro_batches = of_list(|it| Some(it.action.micro_batch()? + 1)).unwrap_or(0);
        if let Some(every) = self.recomputes {
            list = recomputed(list, |unit| unit.is_multiple_of(every));
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

impl fmt::Display for Strategy {
    /// `ZeRO 3 + prefetch`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = ["DDP", "ZeRO 1", "ZeRO 2", "ZeRO 3"][self.sharing as usize];
        let prefetch = if self.prefetches { " + prefetch" } else { "" };
        let recompute = match self.recomputes {
            None => String::new(),
            Some(1) => " + recompute".to_owned(),
            Some(every) => format!(" + recompute 1/{every}"),
        };
        write!(f, "{name}{prefetch}{recompute}")
    }
}

impl FromStr for Strategy {
    type Err = Refused;

    /// Reads a name without its spaces, such as `zero3+prefetch`. With `+recompute`, every unit is recomputed.
    fn from_str(text: &str) -> Result<Self, Refused> {
        let sharings = [Sharing::Ddp, Sharing::Zero1, Sharing::Zero2, Sharing::Zero3];
        iproduct!(sharings, [false, true], [None, Some(1)])
            .map(|(sharing, prefetches, recomputes)| Self { sharing, prefetches, recomputes })
            .filter(|it| it.sharing == Sharing::Zero3 || !it.prefetches)
            .find(|it| it.to_string().replace(' ', "").eq_ignore_ascii_case(text))
            .ok_or_else(|| {
                Refused(format!(
                    "\"{text}\" is no strategy: there are ddp, zero1, zero2, zero3 and zero3+prefetch, each also with +recompute"
                ))
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_strategy_has_a_name_on_the_command_line_and_one_in_tables() {
        for (flag, name) in [
            ("ddp", "DDP"),
            ("zero1", "ZeRO 1"),
            ("zero2+recompute", "ZeRO 2 + recompute"),
            ("zero3", "ZeRO 3"),
            ("zero3+prefetch", "ZeRO 3 + prefetch"),
            ("ZeRO3+prefetch+recompute", "ZeRO 3 + prefetch + recompute"),
        ] {
            assert_eq!(flag.parse::<Strategy>().map(|it| it.to_string()), Ok(name.to_owned()));
        }
        let every = Strategy { recomputes: Some(3), ..Strategy::from_str("ddp").expect("DDP") };
        assert_eq!(every.to_string(), "DDP + recompute 1/3");
        for wrong in [
            "",
            "zero4",
            "ddp+prefetch",
            "zero1+",
            "zero3+prefetch+prefetch",
            "zero3+recompute+prefetch",
        ] {
            let told = wrong.parse::<Strategy>().expect_err("a refusal").to_string();
            assert!(told.starts_with(&format!("\"{wrong}\" is no strategy: there are ")), "{told}");
        }
    }
}
