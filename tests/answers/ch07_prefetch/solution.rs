//! When a unit has arrived, the next one starts: it travels while this one computes.

use model_parallel::Action::{Gather, Wait};
use model_parallel::Instruction;

pub fn prefetched(list: Vec<Instruction>) -> Vec<Instruction> {
    let mut gathers = list.iter().copied().filter(|it| it.action == Gather);
    let mut found: Vec<_> = gathers.next().into_iter().collect();
    for &it in list.iter().filter(|it| it.action != Gather) {
        found.push(it);
        if it.action == Wait {
            found.extend(gathers.next());
        }
    }
    found
}

exercises::check!(ch07_prefetch, prefetched, run);
