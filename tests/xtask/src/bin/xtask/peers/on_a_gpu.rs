//! What is compared on a GPU: training steps, beside PyTorch's as they are, with its compiler, with what else makes them
//! faster, and with convolutions that have the same bits every time, as ours always have.
//!
//! Each of these ways is a comparison of its own, beside ours anew: with what matters most measured first, whatever ends
//! a run early has left that behind.

use clap::ValueEnum;
use harness::cli::name_of;

use super::comparison::{Comparison, lenet_step, resnet18_step};
use super::ours::Precision;

/// How PyTorch makes a step on a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Way {
    /// As it is
    #[default]
    Eager,
    /// With its compiler, as that is (`torch.compile`)
    Compiled,
    /// With what people switch on for speed: channels last, cuDNN's stopwatch, a fused update; LeNet as CUDA graphs, too
    Tuned,
    /// With convolutions that have the same bits every time, as ours always have
    Deterministic,
}

/// Everything, in the order of the table. `quick` is for finding out whether it runs at all.
pub(super) fn all(quick: bool) -> Vec<Comparison> {
    let repeated = |times: usize| ("repetitions", if quick { 1 } else { times });
    let mut all = Vec::new();
    let precisions = [Precision::F32, Precision::Tf32, Precision::Bf16];
    for way in [Way::Eager, Way::Compiled, Way::Tuned, Way::Deterministic] {
        for precision in precisions {
            all.extend(there(lenet_step(1, repeated(500)), precision, way));
        }
        for batch in [256, 512] {
            for precision in precisions {
                all.extend(there(resnet18_step(batch, 1, repeated(50)), precision, way));
            }
        }
    }
    all
}

/// The same work there. With tensor cores, cuDNN's heuristics mostly prefer what has the same bits every time.
fn there(mut comparison: Comparison, precision: Precision, way: Way) -> Option<Comparison> {
    if way == Way::Deterministic && precision != Precision::F32 {
        return None;
    }
    let name = name_of(&precision);
    comparison.what = format!("{}, {name}", comparison.what);
    comparison.precision = precision;
    comparison.way = way;
    comparison.may_round = precision != Precision::F32;
    for side in comparison.ours.iter_mut().chain(&mut comparison.peers) {
        side.arguments.extend(["--device", "cuda", "--precision", &name].map(str::to_owned));
    }
    if way != Way::Eager {
        let way = name_of(&way);
        comparison.what = format!("{}, {way}", comparison.what);
        for side in &mut comparison.peers {
            side.label.push_str(&format!(", {way}"));
            // The script has a flag of this name.
            side.arguments.push(format!("--{way}"));
        }
    }
    Some(comparison)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_precision_images_and_way_name_one_comparison() {
        let named = |one: &Comparison| {
            (name_of(&one.topic), name_of(&one.precision), one.batch, name_of(&one.way))
        };
        let names: Vec<_> = all(false).iter().map(named).collect();
        // 9 as they are, 9 compiled, 9 tuned, and those in f32 with deterministic convolutions.
        assert_eq!(names.len(), 9 + 9 + 9 + 3);
        for (position, name) in names.iter().enumerate() {
            assert!(name.2.is_some(), "{name:?}");
            assert!(!names[..position].contains(name), "{name:?}");
        }
    }
}
