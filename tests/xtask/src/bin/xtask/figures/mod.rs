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
use xtask::{root, stored};

#[derive(Clone, Debug, Args)]
pub(crate) struct Arguments {
    /// Change nothing; say which figures do not match their data
    #[arg(long, conflicts_with = "measure")]
    check: bool,

    /// First run the commands that measure the data of these figures, and store their results with this machine
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

/// The command of a measurement, which writes the file that the command calls `FILE`; and the function that makes the figure's
/// data of the command and of the text of `FILE`.
type Measure = (&'static str, fn(&str, &str) -> anyhow::Result<String>);

/// The figures: the names of their data, of which the first is the figure's name, and the measurement, if this tool runs it.
const FIGURES: [(&[&str], Draw, Option<Measure>); 8] = [
    (&["peers-cpu", "peers-cpu-amd"], peers::draw, None),
    (&["peers-gpu"], peers::draw, None),
    (&["all-reduce-cpu"], all_reduce::draw, Some((ALL_REDUCE, measurement::data))),
    (&["training-cpu"], training::accuracies, Some((TRAINING, measurement::data))),
    (&["bugs-cpu"], training::losses, Some((BUGS, measurement::data))),
    (&["timeline-cpu"], timeline::draw, Some((TIMELINE, timeline::data))),
    (&["pipeline-cpu"], pipeline::draw, Some((PIPELINE, pipeline::data))),
    (&["cost-model-cpu"], cost_model::draw, Some((COST_MODEL, cost_model::data))),
];

const ALL_REDUCE: &str = "cargo run --release -p params-and-allreduce -- --metrics FILE";
const TRAINING: &str =
    "cargo run --release -p scratch-data-parallel -- --data synthetic --metrics FILE";
const BUGS: &str = "cargo run --release -p scratch-data-parallel -- --data synthetic --train-size 6000 --test-size 1000 \
                    --epochs 3 --batch-size 32 --break skip-allreduce,mean-for-sum,reduce-params,same-shard \
                    --metrics FILE";
const TIMELINE: &str = "cargo run --release -p concise-wrapper -- --data synthetic --train-size 1536 --test-size 100 \
                        --epochs 1 --batch-size 64 --bucket-mb 0.4 --slow-link 40 --trace FILE";
const PIPELINE: &str = "cargo run --release -p model-parallel -- --data synthetic --model resnet18 --width 8 \
                        --batch-size 128 --train-size 1536 --test-size 100 --epochs 1 --metrics FILE";
const COST_MODEL: &str = "cargo run --release -p cost-model -- --metrics FILE";

/// The figures with data that this tool measures.
fn measured() -> PossibleValuesParser {
    let measured = FIGURES.iter().filter(|(.., measurement)| measurement.is_some());
    PossibleValuesParser::new(measured.map(|(data, ..)| data[0]))
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let mut stale = Vec::new();
    for (data, draw, measurement) in &FIGURES {
        let name = data[0];
        let wanted = arguments.measure.iter().any(|it| it == name);
        if let Some((command, data)) = measurement.filter(|_| wanted) {
            let text = data(command, &measurement::written_by(command)?)? + "\n";
            stored::write(&root().join(format!("book/data/{name}.json")), &text)?;
            line(format_args!("{name}: measured"))?;
        }
        let read = |data: &&str| stored::text(&format!("book/data/{data}.json"));
        let texts = data.iter().map(read).collect::<anyhow::Result<Vec<_>>>()?;
        let Figure { svg, caption } = draw(&texts).with_context(|| format!("figure {name}"))?;
        for (file, content) in
            [(format!("{name}.svg"), svg), (format!("{name}.caption.txt"), caption)]
        {
            let path = format!("book/figures/{file}");
            if stored::text(&path).is_ok_and(|there| there == content) {
                continue;
            }
            if arguments.check {
                stale.push(file);
            } else {
                stored::write(&root().join(path), &content)?;
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
