//! `--draw`: lists as text, without training.

use anyhow::Result;
use concise_wrapper::launch::Launch;
use devices::SeveralDevices;
use harness::report::{columns, counted, line, paragraph};
use itertools::Itertools as _;
use model_parallel::gantt::{in_parts, words};
use model_parallel::mesh::Mesh;
use model_parallel::simulate::Span;
use model_parallel::{Cost, Instruction, Timeline, UNBOUNDED, check};

use crate::arguments::Arguments;

const LEGEND: &str = "Letters, each with the number of its unit: F forward, R forward again, B backward, U update; G gather, S sum, C \
    reduce-scatter. In a list, p waits for parameters, and d drops them. B and S take 2 units of time, p and d 0, others 1.";

/// Prints each list, and the two streams of a device over time. Of several processes, one prints.
pub(crate) fn draw(flags: &mut Arguments, launch: &Launch) -> Result<()> {
    let devices = flags.common.launch.devices.unwrap_or(SeveralDevices::DEFAULT);
    let (units, micro_batches) = (flags.features().len() - 1, flags.micro_batches);
    flags.check(launch, Mesh { data: devices, ..Mesh::pipeline(1) })?;
    launch.say(LEGEND)?;
    let all_reduce = if devices > 1 { 2.0 } else { 0.0 };
    let costs = vec![Cost { all_reduce, update: 1.0, ..Cost::UNITS }; units];
    let size = [(units, "unit"), (micro_batches, "micro-batch"), (devices, "device")];
    let size = size.map(|(number, noun)| counted(number, noun)).join(", ");
    for strategy in flags.strategies().iter().filter(|_| launch.speaks()) {
        let checked = check(strategy.schedule(units, micro_batches, devices), UNBOUNDED)?;
        let step = checked.simulate(&costs, 0.0)?;
        let (time, idle) = (step.makespan(), 100.0 * step.bubble());
        paragraph(format_args!("\n{strategy}: {size}; time {time}, idle {idle:.0} %"))?;
        paragraph(checked.schedule().lists[0].iter().map(word).join(" "))?;
        line(streams(&step).trim_end())?;
    }
    Ok(())
}

/// The letter of an instruction, and its unit.
fn word(it: &Instruction) -> String {
    format!("{}{}", words(it.action).1, it.unit)
}

/// A row of text for each stream, with a column for each unit of time, in parts that are as wide as the terminal.
fn streams(step: &Timeline) -> String {
    let row = |(name, spans): (&str, &Vec<Span>)| {
        let mut row = vec!["·".to_owned(); step.makespan() as usize];
        for span in spans {
            row[span.start as usize..span.end as usize].fill(word(&span.instruction));
        }
        (name.to_owned(), row)
    };
    let lanes = step.lanes().swap_remove(0);
    let rows = ["computing      ", "communicating  "].into_iter().zip(&lanes).map(row);
    in_parts(&rows.collect_vec(), 0, columns(), |_| String::new())
}
