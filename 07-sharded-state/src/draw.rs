//! `--draw`: lists as text, without training.

use anyhow::Result;
use concise_wrapper::launch::Launch;
use devices::SeveralDevices;
use harness::report::{columns, counted, line, paragraph};
use itertools::Itertools as _;
use model_parallel::simulate::Span;
use model_parallel::{Action, Cost, Instruction, Timeline, UNBOUNDED, check};

use crate::arguments::Arguments;

const LEGEND: &str = "F forward, R forward again, B backward, U update; G gather, S sum, C reduce-scatter, each with the number of its unit. \
    In a list, w waits for a gather, and d drops a unit's parameters. Forward passes, gathers, reduce-scatters and updates take a unit of \
    time, backward passes and sums take two.";

/// The width of the names of the streams.
const NAME: usize = 15;

/// Prints each list as text, and the two streams of a device over time. Of several processes one prints.
pub(crate) fn draw(flags: &Arguments, launch: &Launch) -> Result<()> {
    let (units, devices) =
        (flags.features().len() - 1, flags.launch.devices.unwrap_or(SeveralDevices::DEFAULT));
    flags.check(launch, devices)?;
    launch.say(LEGEND)?;
    let sum = if devices > 1 { 2.0 } else { 0.0 };
    for strategy in flags.strategies().filter(|_| launch.speaks()) {
        let checked = check(strategy.schedule(units, flags.micro_batches, devices), UNBOUNDED)?;
        let cost = Cost { all_reduce: sum, update: 1.0, ..Cost::UNITS };
        let step = checked.simulate(&vec![cost; units], 0.0)?;
        let size = [
            counted(units, "unit"),
            counted(flags.micro_batches, "micro-batch"),
            counted(devices, "device"),
        ]
        .join(", ");
        paragraph(format_args!(
            "\n{strategy}: {size}; {} units of time, idle {:.0} %",
            step.makespan(),
            100.0 * step.bubble()
        ))?;
        paragraph(checked.schedule().lists[0].iter().map(word).join(" "))?;
        line(streams(&step))?;
    }
    Ok(())
}

/// The letter of an instruction, and its unit.
fn word(it: &Instruction) -> String {
    let letter = match it.action {
        Action::Forward(_) | Action::ForwardOnly(_) => 'F',
        Action::Recompute(_) => 'R',
        Action::Update => 'U',
        Action::Gather => 'G',
        Action::AllReduce => 'S',
        Action::ReduceScatter => 'C',
        Action::Wait => 'w',
        Action::Free => 'd',
        _ => 'B',
    };
    format!("{letter}{}", it.unit)
}

/// A row of text for each stream, with a column for each unit of time, in parts that are as wide as the terminal.
fn streams(step: &Timeline) -> String {
    let mut rows = ["computing", "communicating"]
        .map(|name| (name, vec!["·".to_owned(); step.makespan() as usize]));
    for Span { instruction: it, start, end, .. } in &step.spans {
        if it.action.computes() || it.action.is_collective() {
            let (_, row) = &mut rows[usize::from(it.action.is_collective())];
            row[*start as usize..*end as usize].fill(word(it));
        }
    }
    let words = rows.iter().flat_map(|(_, row)| row);
    let width = words.map(|word| word.chars().count() + 1).max().unwrap_or(1);
    let each = (columns() - NAME) / width;
    let part = |first: usize| {
        let row = |(name, row): &(&str, Vec<String>)| {
            let words = row.iter().skip(first).take(each).map(|word| format!("{word:width$}"));
            format!("{name:NAME$}{}", words.format("")).trim_end().to_owned()
        };
        rows.iter().map(row).join("\n")
    };
    (0..rows[0].1.len()).step_by(each).map(part).join("\n")
}
