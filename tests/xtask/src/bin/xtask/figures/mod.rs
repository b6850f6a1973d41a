//! `cargo xtask figures`: draws the book's measured figures from its data.
//!
//! A figure is `book/figures/NAME.svg`, drawn from `book/data/NAME.json` alone, or from several such files. The file
//! `NAME.caption.txt` has the machine and the command of the measurement. A test compares figures with their data.

mod all_reduce;
mod cost_model;
mod measurement;
mod peers;
mod pipeline;
mod timeline;
mod training;

use anyhow::{Context as _, bail};
use clap::Args;
use clap::builder::PossibleValuesParser;
use harness::report::line;
use measurement::{Measurement, lines_of};
use xtask::{root, stored};

use crate::book;

#[derive(Clone, Debug, Args)]
pub(crate) struct Arguments {
    /// Change nothing; say which figures are not what their data gives
    #[arg(long, conflicts_with = "measure")]
    check: bool,

    /// First run what makes the data of these figures, and store what it measured with this machine
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = measured())]
    measure: Vec<String>,
}

/// A drawn figure.
struct Figure {
    svg: String,
    caption: String,
}

/// Draws a figure from the texts of its data.
type Draw = fn(&[String]) -> anyhow::Result<Figure>;

/// The figures: the names of their data, of which the first is the figure's name, and the measurement, if this tool runs it.
const FIGURES: [(&[&str], Draw, Option<Measurement>); 7] = [
    (&["peers-cpu", "peers-cpu-amd"], peers::draw, None),
    (&["peers-gpu"], peers::draw, None),
    (
        &["all-reduce-cpu"],
        all_reduce::draw,
        Some(Measurement {
            command: "cargo run --release -p params-and-allreduce -- --metrics FILE",
            data: |command, text| measurement::here(command, lines_of(text)?),
        }),
    ),
    (
        &["training-cpu"],
        training::draw,
        Some(Measurement {
            command: "cargo run --release -p scratch-data-parallel -- --data synthetic --metrics FILE",
            data: |command, text| measurement::here(command, lines_of(text)?),
        }),
    ),
    (
        &["timeline-cpu"],
        timeline::draw,
        Some(Measurement {
            command: "cargo run --release -p concise-wrapper -- --data synthetic --train-size 1536 --test-size 100 \
                      --epochs 1 --batch-size 64 --bucket-mb 0.4 --slow-link 40 --trace FILE",
            data: |command, text| measurement::here(command, timeline::step_of(text)?),
        }),
    ),
    (
        &["pipeline-cpu"],
        pipeline::draw,
        Some(Measurement {
            command: "cargo run --release -p model-parallel -- --data synthetic --model resnet18 --width 8 \
                      --batch-size 128 --train-size 1536 --test-size 100 --epochs 1 --metrics FILE",
            data: |command, text| measurement::here(command, pipeline::splits_of(text)?),
        }),
    ),
    (
        &["cost-model-cpu"],
        cost_model::draw,
        Some(Measurement {
            command: "cargo run --release -p cost-model -- --metrics FILE",
            data: cost_model::data,
        }),
    ),
];

/// The figures whose data this tool measures.
fn measured() -> PossibleValuesParser {
    let measured = FIGURES.iter().filter(|(.., measurement)| measurement.is_some());
    PossibleValuesParser::new(measured.map(|(data, ..)| data[0]))
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let mut stale = Vec::new();
    for (data, draw, measurement) in &FIGURES {
        let name = data[0];
        let wanted = arguments.measure.iter().any(|it| it == name);
        if let Some(measurement) = measurement.as_ref().filter(|_| wanted) {
            measurement.make(&root().join("book/data").join(name).with_extension("json"))?;
            line(format_args!("{name}: measured"))?;
        }
        let read = |data: &&str| stored::in_the_book(&format!("data/{data}.json"));
        let texts = data.iter().map(read).collect::<anyhow::Result<Vec<_>>>()?;
        let Figure { svg, caption } = draw(&texts).with_context(|| format!("figure {name}"))?;
        for (file, content) in
            [(format!("{name}.svg"), svg), (format!("{name}.caption.txt"), caption)]
        {
            let path = format!("figures/{file}");
            if stored::in_the_book(&path).is_ok_and(|there| there == content) {
                continue;
            }
            if arguments.check {
                stale.push(file);
            } else {
                book::write(&path, &content)?;
                line(format_args!("{file}: drawn"))?;
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
