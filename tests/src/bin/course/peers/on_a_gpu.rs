//! What is compared on a GPU: training steps, beside PyTorch's as they are, with its compiler, and with convolutions that
//! have the same bits every time, as ours always have.

use single_gpu::cli::name_of;

use super::comparison::{Comparison, Side, lenet_step, resnet18_step};
use super::ours::Precision;

/// Everything, in the order of the table. `quick` is for finding out whether it runs at all.
pub(super) fn all(quick: bool) -> Vec<Comparison> {
    let repeated = |times: usize| ("repetitions", if quick { 1 } else { times });
    let mut all = Vec::new();
    for precision in [Precision::F32, Precision::Tf32] {
        all.push(there(lenet_step(1, repeated(200)), precision));
    }
    for batch in [256, 512] {
        for precision in [Precision::F32, Precision::Tf32, Precision::Bf16] {
            all.push(there(resnet18_step(batch, 1, repeated(20)), precision));
        }
    }
    all
}

/// The same work there.
fn there(mut comparison: Comparison, precision: Precision) -> Comparison {
    let name = name_of(&precision);
    comparison.what = format!("{}, {name}", comparison.what);
    comparison.precision = precision;
    comparison.may_round = precision != Precision::F32;
    for side in comparison.ours.iter_mut().chain(&mut comparison.peers) {
        side.arguments.extend(["--device", "cuda", "--precision", &name].map(str::to_owned));
    }
    let further =
        |how: &str| -> Vec<Side> { comparison.peers.iter().map(|side| with(side, how)).collect() };
    let mut others = further("compiled");
    // With tensor cores, cuDNN's heuristics prefer what has the same bits every time anyway.
    if precision == Precision::F32 {
        others.extend(further("deterministic"));
    }
    comparison.peers.extend(others);
    comparison
}

/// The same in another way, which the script has a flag for.
fn with(side: &Side, how: &str) -> Side {
    let mut other = side.clone();
    other.label.push_str(&format!(", {how}"));
    other.arguments.push(format!("--{how}"));
    other
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_precision_and_images_name_one_comparison() {
        let named = |one: &Comparison| (name_of(&one.topic), name_of(&one.precision), one.batch);
        let names: Vec<_> = all(false).iter().map(named).collect();
        for (position, name) in names.iter().enumerate() {
            assert!(name.2.is_some(), "{name:?}");
            assert!(!names[..position].contains(name), "{name:?}");
        }
    }
}
