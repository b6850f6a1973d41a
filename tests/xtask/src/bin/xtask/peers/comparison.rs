//! The comparisons: each kind of work, its sizes, and the programs that do the work.

use clap::ValueEnum;
use harness::cli::name_of;
use harness::report::thousands;
use params_and_allreduce::Algorithm;

use super::ours::{Precision, Work};
use Program::{Ours, Script};

/// A kind of work, as `--only` names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Topic {
    /// A training step of LeNet on one device
    LenetStep,
    /// ResNet-18's twenty convolutions, forward and backward
    Convolutions,
    /// A training step of ResNet-18 on one device
    Resnet18Step,
    /// A training step of the small GPT on one device
    GptStep,
    /// A training step of LeNet on two devices of one core
    DataParallelStep,
    /// A training step of ResNet-18 on two devices of one core
    Resnet18DdpStep,
    /// An all-reduce between two ranks
    AllReduce,
    /// The memory of a process that trains LeNet
    Memory,
}

/// How PyTorch makes a step on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Way {
    /// As it is
    Eager,
    /// With its compiler, as that is (`torch.compile`)
    Compiled,
    /// With what people switch on for speed: channels last, cuDNN's stopwatch, a fused update; LeNet as CUDA graphs, too
    Tuned,
    /// With convolutions that have the same bits every time, as ours always have
    Deterministic,
}

/// A program that does the work in its own process.
#[derive(Clone, Copy, Debug)]
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
    /// A flag of this side alone, if it has one.
    pub(super) flag: String,
}

/// Some work, and all sides that do it.
#[derive(Clone, Debug)]
pub(super) struct Comparison {
    pub(super) topic: Topic,
    pub(super) what: String,
    /// The images of a step.
    pub(super) batch: Option<usize>,
    pub(super) precision: Precision,
    pub(super) way: Way,
    /// Threads of each device.
    pub(super) threads: usize,
    devices: usize,
    /// Flags of all sides: the sizes of the work, and the threads.
    pub(super) flags: String,
    /// `seconds` or `bytes`.
    pub(super) unit: &'static str,
    /// The series that each side measures, under the names in the answers.
    pub(super) series: &'static [&'static str],
    /// Ours first. The fastest of several is compared with all other programs.
    pub(super) sides: Vec<Side>,
    pub(super) ours: usize,
    pub(super) note: Option<&'static str>,
}

impl Comparison {
    fn new(topic: Topic, what: String, threads: usize, sizes: &[(&str, usize)]) -> Self {
        let sizes = || sizes.iter().copied().chain([("threads", threads)]);
        Self {
            topic,
            what,
            batch: sizes().find(|(name, _)| *name == "batch").map(|(_, images)| images),
            precision: Precision::F32,
            way: Way::Eager,
            threads,
            devices: 1,
            flags: sizes().map(|(name, number)| format!(" --{name} {number}")).collect(),
            unit: "seconds",
            series: &["step"],
            sides: Vec::new(),
            ours: 1,
            note: None,
        }
    }

    fn side(mut self, label: &str, program: Program) -> Self {
        self.sides.push(Side { label: label.to_owned(), program, flag: String::new() });
        self
    }

    /// The threads of all devices, such as `2 × 1`.
    pub(super) fn threads(&self) -> String {
        match self.devices {
            1 => self.threads.to_string(),
            devices => format!("{devices} × {}", self.threads),
        }
    }
}

/// Everything on cores, in the order of the table. `quick` only finds out whether everything runs.
pub(super) fn on_cores(quick: bool) -> Vec<Comparison> {
    let times = |times: usize| ("repetitions", if quick { 1 } else { times });
    let images = ("images", if quick { 6_000 } else { 60_000 });
    let of_resnet18 = [(16, 1, 7), (16, 2, 7), (64, 1, 3), (64, 2, 3)];
    let mut all = [1, 2].map(|threads| step(Topic::LenetStep, 256, threads, times(30))).to_vec();
    all.extend(of_resnet18.map(|(batch, threads, repeated)| {
        let what = format!("ResNet-18's convolutions, batch {batch}");
        let sizes = [("batch", batch), times(repeated)];
        let mut one = Comparison::new(Topic::Convolutions, what, threads, &sizes)
            .side("ours", Ours(Work::Convolutions))
            .side("PyTorch", Script("convolutions.py"));
        one.series = &["forward", "backward", "both"];
        one
    }));
    all.extend(of_resnet18.map(|(batch, threads, repeated)| {
        step(Topic::Resnet18Step, batch, threads, times(repeated))
    }));
    for (blocks, width, heads, context, batch, repeated) in
        [(4, 128, 4, 64, 32, 9), (6, 384, 6, 256, 8, 3)]
    {
        let sizes = [
            ("batch", batch),
            ("blocks", blocks),
            ("width", width),
            ("heads", heads),
            ("context", context),
            times(repeated),
        ];
        let what = format!("GPT step, {blocks} × {width}, {context} tokens, batch {batch}");
        all.extend([1, 2].map(|threads| {
            Comparison::new(Topic::GptStep, what.clone(), threads, &sizes)
                .side("ours", Ours(Work::GptStep))
                .side("PyTorch", Script("gpt_step.py"))
        }));
    }
    all.push(step(Topic::DataParallelStep, 256, 1, times(30)));
    all.push(step(Topic::Resnet18DdpStep, 32, 1, times(7)));
    let mut reduce = Comparison::new(Topic::AllReduce, "all-reduce".to_owned(), 1, &[times(11)]);
    reduce.sides.extend(Algorithm::OURS.map(|algorithm| Side {
        label: algorithm.to_string(),
        program: Ours(Work::AllReduce),
        flag: format!(" --algorithm {algorithm}"),
    }));
    let reduce = reduce
        .side("Gloo", Script("all_reduce_gloo.py"))
        .side("Open MPI", Script("all_reduce_mpi.py"))
        .side("memory limit", Ours(Work::AddAndCopy));
    let (ours, series) = (Algorithm::OURS.len(), &["4 KB", "1 MB", "45 MB"]);
    all.push(Comparison { devices: 2, ours, series, ..reduce });
    let what = format!("memory, LeNet, {} images", thousands(images.1));
    let memory = Comparison::new(Topic::Memory, what, 1, &[images])
        .side("ours", Ours(Work::Memory))
        .side("PyTorch", Script("memory.py"));
    all.push(Comparison { unit: "bytes", series: &["peak", "before the data"], ..memory });
    all
}

/// A training step.
fn step(topic: Topic, batch: usize, threads: usize, repetitions: (&str, usize)) -> Comparison {
    let (what, ours, one_device, script) = match topic {
        Topic::LenetStep => ("LeNet step", Work::LenetStep, None, "lenet_step.py"),
        Topic::DataParallelStep => (
            "LeNet step on two devices",
            Work::DataParallelStep,
            Some(Work::LenetStep),
            "data_parallel_step.py",
        ),
        Topic::Resnet18DdpStep => (
            "ResNet-18 step on two devices",
            Work::Resnet18DdpStep,
            Some(Work::Resnet18Step),
            "resnet18_ddp_step.py",
        ),
        _ => ("ResNet-18 step", Work::Resnet18Step, None, "resnet18_step.py"),
    };
    let sizes = [("batch", batch), repetitions];
    let what = format!("{what}, batch {batch}");
    let step = Comparison::new(topic, what, threads, &sizes).side("ours", Ours(ours));
    let Some(one_device) = one_device else { return step.side("PyTorch", Script(script)) };
    let note = Some("the speed-up over one device is 1 ÷ its ratio");
    let step = step.side("ours, one device", Ours(one_device));
    Comparison { devices: 2, note, ..step.side("PyTorch DDP, Gloo", Script(script)) }
}

/// Training steps on a GPU, in the order of the table. Each of PyTorch's ways is a comparison of its own, with the most
/// important first, so a run that ends early leaves these behind.
pub(super) fn on_a_gpu(quick: bool) -> Vec<Comparison> {
    let times = |times: usize| ("repetitions", if quick { 1 } else { times });
    let resnet18 = |batch| step(Topic::Resnet18Step, batch, 1, times(50));
    let work = [step(Topic::LenetStep, 256, 1, times(500)), resnet18(256), resnet18(512)];
    let mut all = Vec::new();
    for way in [Way::Eager, Way::Compiled, Way::Tuned, Way::Deterministic] {
        for one in &work {
            for precision in [Precision::F32, Precision::Tf32, Precision::Bf16] {
                // With tensor cores, cuDNN's heuristics mostly prefer convolutions that have the same bits every time.
                if way == Way::Deterministic && precision != Precision::F32 {
                    continue;
                }
                let mut one = Comparison { precision, way, ..one.clone() };
                let (precision, way_name) = (name_of(&precision), name_of(&way));
                one.what += &format!(", {precision}");
                one.flags += &format!(" --device cuda --precision {precision}");
                if way != Way::Eager {
                    one.what += &format!(", {way_name}");
                    one.sides[1].label += &format!(", {way_name}");
                    // The script has a flag of this name.
                    one.sides[1].flag = format!(" --{way_name}");
                }
                all.push(one);
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_script_is_there_and_no_two_comparisons_have_one_name() {
        let folder = xtask::root().join("tests/peers");
        for all in [on_cores(false), on_cores(true), on_a_gpu(false)] {
            let mut names: Vec<_> = all.iter().map(|one| (&one.what, one.threads())).collect();
            names.sort();
            assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "{names:?}");
            for side in all.iter().flat_map(|one| &one.sides) {
                if let Script(script) = side.program {
                    assert!(folder.join(script).is_file(), "{script}");
                }
            }
        }
    }
}
