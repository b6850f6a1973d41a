//! What is compared: each kind of work, its sizes, and who does it.

use std::fmt;

use clap::ValueEnum;
use harness::report::thousands;
use params_and_allreduce::Algorithm;
use serde::Serialize;

use super::on_a_gpu::Way;
use super::ours::{Precision, Work};

/// A kind of work, as `--only` names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Topic {
    /// A training step of LeNet on one device
    LenetStep,
    /// ResNet-18's twenty convolutions, forward and backward
    Convolutions,
    /// A training step of ResNet-18 on one device
    Resnet18Step,
    /// A training step of LeNet on two devices of one core
    DataParallelStep,
    /// A training step of ResNet-18 on two devices of one core
    Resnet18DdpStep,
    /// An all-reduce between two ranks
    AllReduce,
    /// Images drawn, and files of images decoded
    Data,
    /// The memory of a process that trains LeNet
    Memory,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Unit {
    Seconds,
    Bytes,
}

/// Who does the work, in a process of its own.
#[derive(Clone, Debug)]
pub(super) enum Program {
    /// This tool's own measurement.
    Ours(Work),
    /// A script of `tests/peers`.
    Script(&'static str),
}

#[derive(Clone, Debug)]
pub(super) struct Side {
    pub(super) label: String,
    pub(super) program: Program,
    pub(super) arguments: Vec<String>,
}

/// Threads of each device, and devices where there are several.
#[derive(Clone, Copy, Debug)]
pub(super) struct Threads {
    pub(super) each: usize,
    devices: usize,
}

impl fmt::Display for Threads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.devices {
            1 => write!(f, "{}", self.each),
            devices => write!(f, "{devices} × {}", self.each),
        }
    }
}

/// Some work, and all who do it: with the same sizes and the same number of threads.
#[derive(Clone, Debug)]
pub(super) struct Comparison {
    pub(super) topic: Topic,
    pub(super) what: String,
    /// The images of a step, where steps are made.
    pub(super) batch: Option<usize>,
    pub(super) precision: Precision,
    pub(super) way: Way,
    pub(super) threads: Threads,
    pub(super) unit: Unit,
    /// What each side times, under the names that the answers have for it.
    pub(super) series: &'static [&'static str],
    /// Ours; of several ways the best one is compared.
    pub(super) ours: Vec<Side>,
    pub(super) peers: Vec<Side>,
    /// Whether libraries may round f32 to TF32 where they like; everybody's environment tells them.
    pub(super) may_round: bool,
    /// What the reader should know.
    pub(super) note: Option<&'static str>,
}

impl Comparison {
    fn new(topic: Topic, what: impl Into<String>, threads: usize) -> Self {
        Self {
            topic,
            what: what.into(),
            batch: None,
            precision: Precision::F32,
            way: Way::Eager,
            threads: Threads { each: threads, devices: 1 },
            unit: Unit::Seconds,
            series: &["step"],
            ours: Vec::new(),
            peers: Vec::new(),
            may_round: true,
            note: None,
        }
    }

    fn ours(mut self, label: impl Into<String>, work: Work, sizes: &[(&str, usize)]) -> Self {
        let side = self.side(label, Program::Ours(work), sizes);
        self.ours.push(side);
        self.batch = sizes.iter().find(|(name, _)| *name == "batch").map(|&(_, images)| images);
        self
    }

    fn peer(mut self, label: &str, program: Program, sizes: &[(&str, usize)]) -> Self {
        let side = self.side(label, program, sizes);
        self.peers.push(side);
        self
    }

    fn side(&self, label: impl Into<String>, program: Program, sizes: &[(&str, usize)]) -> Side {
        let threads = ("threads", self.threads.each);
        let arguments = sizes.iter().chain([&threads]);
        let arguments =
            arguments.flat_map(|(name, value)| [format!("--{name}"), value.to_string()]);
        Side { label: label.into(), program, arguments: arguments.collect() }
    }
}

/// Everything, in the order of the table. `quick` is for finding out whether it runs at all.
pub(super) fn all(quick: bool) -> Vec<Comparison> {
    let repeated = |times: usize| ("repetitions", if quick { 1 } else { times });
    let images = ("images", if quick { 6_000 } else { 60_000 });
    let mut all = Vec::new();
    for threads in [1, 2] {
        all.push(lenet_step(threads, repeated(30)));
    }
    for (batch, times) in [(16, 7), (64, 3)] {
        for threads in [1, 2] {
            all.push(convolutions(batch, threads, repeated(times)));
        }
    }
    for (batch, times) in [(16, 7), (64, 3)] {
        for threads in [1, 2] {
            all.push(resnet18_step(batch, threads, repeated(times)));
        }
    }
    all.push(data_parallel_step(repeated(30)));
    all.push(resnet18_ddp_step(32, repeated(7)));
    all.push(all_reduce(repeated(11)));
    all.extend([1, 2].map(|threads| drawing(threads, images)));
    all.push(decoding(images, repeated(3)));
    all.push(memory(images));
    all
}

pub(super) fn lenet_step(threads: usize, repetitions: (&str, usize)) -> Comparison {
    let sizes = [("batch", 256), repetitions];
    Comparison::new(Topic::LenetStep, "LeNet step, batch 256", threads)
        .ours("ours", Work::LenetStep, &sizes)
        .peer("PyTorch", Program::Script("lenet_step.py"), &sizes)
}

fn convolutions(batch: usize, threads: usize, repetitions: (&str, usize)) -> Comparison {
    let sizes = [("batch", batch), repetitions];
    let what = format!("ResNet-18's convolutions, batch {batch}");
    let comparison = Comparison::new(Topic::Convolutions, what, threads)
        .ours("ours", Work::Convolutions, &sizes)
        .peer("PyTorch", Program::Script("convolutions.py"), &sizes);
    Comparison { series: &["forward", "backward", "both"], ..comparison }
}

pub(super) fn resnet18_step(
    batch: usize,
    threads: usize,
    repetitions: (&str, usize),
) -> Comparison {
    let sizes = [("batch", batch), repetitions];
    let what = format!("ResNet-18 step, batch {batch}");
    Comparison::new(Topic::Resnet18Step, what, threads)
        .ours("ours", Work::Resnet18Step, &sizes)
        .peer("PyTorch", Program::Script("resnet18_step.py"), &sizes)
}

fn resnet18_ddp_step(batch: usize, repetitions: (&str, usize)) -> Comparison {
    let sizes = [("batch", batch), repetitions];
    let what = format!("ResNet-18 step on two devices, batch {batch}");
    let comparison = Comparison::new(Topic::Resnet18DdpStep, what, 1)
        .ours("ours", Work::Resnet18DdpStep, &sizes)
        .peer("ours, one device", Program::Ours(Work::Resnet18Step), &sizes)
        .peer("PyTorch DDP, Gloo", Program::Script("resnet18_ddp_step.py"), &sizes);
    Comparison { threads: Threads { each: 1, devices: 2 }, note: SPEED_UP, ..comparison }
}

/// What is to be said where several of our devices are compared with one.
const SPEED_UP: Option<&str> = Some("the speed-up over one device is 1 ÷ its ratio");

fn data_parallel_step(repetitions: (&str, usize)) -> Comparison {
    let sizes = [("batch", 256), repetitions];
    let what = "LeNet step on two devices, batch 256";
    let comparison = Comparison::new(Topic::DataParallelStep, what, 1)
        .ours("ours", Work::DataParallelStep, &sizes)
        .peer("ours, one device", Program::Ours(Work::LenetStep), &sizes)
        .peer("PyTorch DDP, Gloo", Program::Script("data_parallel_step.py"), &sizes);
    Comparison { threads: Threads { each: 1, devices: 2 }, note: SPEED_UP, ..comparison }
}

fn all_reduce(repetitions: (&str, usize)) -> Comparison {
    let sizes = [repetitions];
    let mut comparison = Comparison::new(Topic::AllReduce, "all-reduce", 1);
    comparison.threads.devices = 2;
    comparison.series = &["4 KB", "1 MB", "45 MB"];
    for algorithm in Algorithm::OURS {
        comparison = comparison.ours(algorithm.to_string(), Work::AllReduce, &sizes);
        if let Some(side) = comparison.ours.last_mut() {
            side.arguments.extend(["--algorithm".to_owned(), algorithm.to_string()]);
        }
    }
    comparison
        .peer("Gloo", Program::Script("all_reduce_gloo.py"), &sizes)
        .peer("Open MPI", Program::Script("all_reduce_mpi.py"), &sizes)
        .peer("limit: add and copy", Program::Ours(Work::AddAndCopy), &sizes)
}

fn drawing(threads: usize, images: (&str, usize)) -> Comparison {
    let what = format!("{} images drawn", thousands(images.1));
    let comparison =
        Comparison::new(Topic::Data, what, threads).ours("ours", Work::Drawing, &[images]);
    Comparison { series: &["drawing"], ..comparison }
}

fn decoding(images: (&str, usize), repetitions: (&str, usize)) -> Comparison {
    let what = format!("{} + {} images decoded", thousands(images.1), thousands(images.1 / 6));
    let comparison =
        Comparison::new(Topic::Data, what, 1).ours("ours", Work::Decoding, &[images, repetitions]);
    Comparison { series: &["decoding"], ..comparison }
}

fn memory(images: (&str, usize)) -> Comparison {
    let what = format!("memory, LeNet, {} images", thousands(images.1));
    let comparison = Comparison::new(Topic::Memory, what, 1)
        .ours("ours", Work::Memory, &[images])
        .peer("PyTorch", Program::Script("memory.py"), &[images]);
    Comparison { unit: Unit::Bytes, series: &["peak", "before the data"], ..comparison }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::on_a_gpu;

    #[test]
    fn every_script_is_there() {
        let folder = xtask::root().join("tests/peers");
        for comparison in all(false).into_iter().chain(on_a_gpu::all(false)) {
            for side in comparison.peers {
                if let Program::Script(script) = side.program {
                    assert!(folder.join(script).is_file(), "{script}");
                }
            }
        }
    }

    #[test]
    fn every_side_of_a_comparison_gets_the_same_sizes_and_threads() {
        let of_gpus = on_a_gpu::all(false).into_iter().chain(on_a_gpu::all(true));
        for comparison in all(false).into_iter().chain(all(true)).chain(of_gpus) {
            let mut sides = comparison.ours.iter().chain(&comparison.peers);
            let first = &sides.next().unwrap().arguments;
            let threads = ["--threads".to_owned(), comparison.threads.each.to_string()];
            assert!(first.windows(2).any(|pair| pair == threads), "{comparison:?}");
            // Beyond them an algorithm may be named, or another way asked for.
            const BEYOND: [&str; 4] = ["--algorithm", "--compiled", "--tuned", "--deterministic"];
            let beyond = |arguments: &[String]| {
                arguments.iter().position(|argument| BEYOND.contains(&argument.as_str()))
            };
            let sizes = |arguments: &[String]| {
                arguments[..beyond(arguments).unwrap_or(arguments.len())].to_vec()
            };
            for side in sides {
                assert_eq!(sizes(&side.arguments), sizes(first), "{}", side.label);
            }
        }
    }
}
