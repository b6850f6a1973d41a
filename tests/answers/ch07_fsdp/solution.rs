//! A run of passes of one unit stands between its gather and its free. A unit is done after its last instruction.

use model_parallel::Action::{Free, Gather, ReduceScatter, Wait};
use model_parallel::Instruction;

pub fn gathered(list: Vec<Instruction>) -> Vec<Instruction> {
    let mut found = Vec::new();
    for run in list.chunk_by(|a, b| a.unit == b.unit) {
        let of = |action| Instruction { unit: run[0].unit, action };
        found.extend([of(Gather), of(Wait)]);
        found.extend(run);
        found.push(of(Free));
    }
    found
}

pub fn reduced(list: Vec<Instruction>) -> Vec<Instruction> {
    let mut found = Vec::new();
    for (n, &it) in list.iter().enumerate() {
        found.push(it);
        if !list[n + 1..].iter().any(|later| later.unit == it.unit) {
            found.push(Instruction { action: ReduceScatter, ..it });
        }
    }
    found
}

exercises::check!(ch07_fsdp, Answer { gathered, reduced }, run);
