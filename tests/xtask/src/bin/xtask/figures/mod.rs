//! `cargo xtask figures`: draws the book's measured figures from its data.
//!
//! A figure is `book/figures/NAME.svg`, drawn from `book/data/NAME.json` alone, or from several such files;
//! beside it lies `NAME.caption.txt`, which says on what it was measured. So a figure changes when its data does,
//! and a test sees to it that it does.

mod all_reduce;
mod chart;
mod cost_model;
mod drawing;
mod measurement;
mod peers;
mod pipeline;
mod timeline;
mod training;

use std::path::Path;

use anyhow::{Context as _, bail};
use clap::{Args, ValueEnum};
use harness::report::line;
use measurement::Recorded;
use serde_json::Value;
use xtask::{root, scaling};

use crate::book;
use crate::machine::{this_machine, today};

#[derive(Clone, Debug, Args)]
pub(crate) struct Arguments {
    /// Change nothing; say which figures are not what their data gives
    #[arg(long, conflicts_with = "measure")]
    check: bool,

    /// First run what makes the data of these figures, and store what it measured with this machine
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    measure: Vec<Measured>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Measured {
    /// Stage 2's table
    #[value(name = "all-reduce-cpu")]
    AllReduce,
    /// Stage 4's default run
    #[value(name = "training-cpu")]
    Training,
    /// A step of stage 5
    #[value(name = "timeline-cpu")]
    Timeline,
    /// A step of each pipeline of stage 6
    #[value(name = "pipeline-cpu")]
    Pipeline,
    /// Stage 7's predictions, and what came of them
    #[value(name = "cost-model-cpu")]
    CostModel,
}

impl Measured {
    /// Runs the command, and stores what is made of the file that it writes.
    fn make(self, path: &Path) -> anyhow::Result<()> {
        let (_, command) = self.command();
        let lines: fn(&str) -> anyhow::Result<Vec<Value>> = match self {
            Self::AllReduce | Self::Training => measurement::lines_of,
            Self::Timeline => timeline::step_of,
            Self::Pipeline => pipeline::pipelines_of,
            Self::CostModel => {
                let data =
                    |text: &str| scaling::Measurement::of(text, command, this_machine(), today());
                return measurement::make(path, command, data);
            }
        };
        measurement::make(path, command, |text| Ok(Recorded::here(command, lines(text)?)))
    }

    /// The name of its data, and the command that makes it.
    fn command(self) -> (&'static str, &'static str) {
        match self {
            Self::AllReduce => {
                ("all-reduce-cpu", "cargo run --release -p params-and-allreduce -- --metrics FILE")
            }
            Self::Training => (
                "training-cpu",
                "cargo run --release -p scratch-data-parallel -- --data synthetic --metrics FILE",
            ),
            Self::Timeline => (
                "timeline-cpu",
                "cargo run --release -p concise-wrapper -- --data synthetic --train-size 1536 --test-size 100 \
                 --epochs 1 --batch-size 64 --bucket-mb 0.4 --slow-link 40 --trace FILE",
            ),
            Self::Pipeline => (
                "pipeline-cpu",
                "cargo run --release -p model-parallel -- --data synthetic --model resnet18 --width 8 \
                 --batch-size 128 --train-size 1536 --test-size 100 --epochs 1 --metrics FILE",
            ),
            Self::CostModel => {
                ("cost-model-cpu", "cargo run --release -p cost-model -- --metrics FILE")
            }
        }
    }
}

pub(super) struct Figure {
    svg: String,
    caption: String,
}

type Draw = fn(&[String]) -> anyhow::Result<Figure>;

/// Every figure by its data; the first is also the figure's name.
const FIGURES: [(&[&str], Draw); 7] = [
    (&["peers-cpu", "peers-cpu-amd"], peers::draw),
    (&["peers-gpu"], peers::draw),
    (&["all-reduce-cpu"], |texts| all_reduce::draw(&texts[0])),
    (&["training-cpu"], |texts| training::draw(&texts[0])),
    (&["timeline-cpu"], |texts| timeline::draw(&texts[0])),
    (&["pipeline-cpu"], |texts| pipeline::draw(&texts[0])),
    (&["cost-model-cpu"], |texts| cost_model::draw(&texts[0])),
];

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let folder = root().join("book");
    for measured in &arguments.measure {
        let (name, _) = measured.command();
        measured.make(&folder.join("data").join(name).with_extension("json"))?;
        line(format_args!("{name}: measured"))?;
    }
    let mut stale = Vec::new();
    for (data, draw) in FIGURES {
        let name = data[0];
        let read = |data: &&str| {
            let path = folder.join("data").join(data).with_extension("json");
            std::fs::read_to_string(&path).with_context(|| format!("{}", path.display()))
        };
        let texts = data.iter().map(read).collect::<anyhow::Result<Vec<_>>>()?;
        let figure = draw(&texts).with_context(|| format!("figure {name}"))?;
        let figures = folder.join("figures");
        let parts = [(".svg", figure.svg), (".caption.txt", figure.caption)];
        for (ending, content) in parts {
            let path = figures.join(format!("{name}{ending}"));
            let there = std::fs::read_to_string(&path).unwrap_or_default();
            if there == content {
                continue;
            }
            if arguments.check {
                stale.push(format!("{name}{ending}"));
            } else {
                book::write(&format!("figures/{name}{ending}"), &content)?;
                line(format_args!("{name}{ending}: drawn"))?;
            }
        }
    }
    match &stale[..] {
        [] => Ok(line(format_args!("{} figures are what their data gives", FIGURES.len()))?),
        stale => {
            bail!("not what the data gives: {}; `cargo xtask figures` draws them", stale.join(", "))
        }
    }
}
