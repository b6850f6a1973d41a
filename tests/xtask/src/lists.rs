//! The data of the book's figure `<step-lists>`: lists of instructions, which a reader chooses from menus.
//!
//! Stage 6 checks and simulates the lists, and says which lanes a device has. The figure itself knows streams, and no kinds of
//! lists: words, colours and menus are part of the data.

use anyhow::{Context as _, ensure};
use itertools::Itertools as _;
use model_parallel::gantt::{Lanes, words};
use model_parallel::simulate::Span;
use model_parallel::{Action, Bytes, Timeline};
use serde::Serialize;

use crate::number::Rounded;

/// A menu: the field of a plan, and a name.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Menu {
    pub field: &'static str,
    pub name: &'static str,
    /// Whether the choices of this menu are drawn on one scale of time.
    pub compared: bool,
}

/// A kind of memory.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Held {
    pub name: &'static str,
    /// The number of the colour, from 1.
    pub series: usize,
}

/// The memory of a device by [`HELD`].
pub type State = [Rounded; 5];

/// The kinds of memory, from the bottom of a curve to its top.
pub const HELD: [Held; 5] = [
    Held { name: "parameters", series: 5 },
    Held { name: "optimizer", series: 3 },
    Held { name: "gradients", series: 2 },
    Held { name: "activations", series: 1 },
    Held { name: "messages", series: 4 },
];

/// A kind of work, or of communication.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Label {
    /// The letter in a [`Row`].
    pub letter: char,
    pub name: &'static str,
    /// The number of the colour, from 1.
    pub series: usize,
    pub pale: bool,
    /// The meanings of the numbers of a span: "micro-batch", "chunk" or "unit".
    pub numbers: Vec<&'static str>,
    /// The time of a span, where a [`Row`] does not say another.
    pub units: Rounded,
}

impl Label {
    /// The label of an action that takes so many units of time, with the numbers that the action has among these.
    pub fn of(action: Action, units: f64, numbers: &[&'static str]) -> Self {
        let (colour, letter, name) = words(action);
        let has = |number: &&str| *number != "micro-batch" || action.micro_batch().is_some();
        let name = match action {
            Action::BackwardInput(_) => "backward, gradients of inputs",
            _ => name,
        };
        Self {
            letter,
            name,
            series: colour + 1,
            pale: !action.is_collective() && !action.computes(),
            numbers: numbers.iter().copied().filter(has).collect(),
            units: Rounded::of(units),
        }
    }
}

/// A kind of list.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Shape {
    pub kind: String,
    /// The meaning of the number that a span shows.
    pub number: &'static str,
    /// The meaning of the number that makes a computation pale if the number is odd.
    pub pale: &'static str,
    pub labels: Vec<Label>,
    /// Explains the numbers.
    pub key: String,
}

/// The computing stream, the communicating stream, and the memory of a device. Each is a text of spans, with spaces between them:
/// an object for every span would be ten times as long.
///
/// `F3.1:2` is a span with the letter and the numbers of a [`Label`], without a second number that is 0. It takes 2 units of time.
/// Without `:2` it takes the time of the label. `+5` is a gap, and `-5` says that the next span begins before the last one ends. The
/// memory has the number of a [`State`] in place of a letter. Without a time, it lasts until the computing stream begins or ends a span.
pub type Row = [String; 3];

/// A simulated step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Step {
    /// A value for each name of [`Catalogue::facts`].
    pub facts: Vec<String>,
    /// From the start of the first span to the end of the last.
    pub units: Rounded,
    /// The most memory that each device holds at one time.
    pub peaks: Vec<Rounded>,
    pub rows: Vec<Row>,
}

/// All lists of a figure.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Catalogue<Plan> {
    pub command: &'static str,
    /// The field of the first menu is the `kind` of a [`Shape`].
    pub menus: Vec<Menu>,
    pub facts: Vec<&'static str>,
    /// The owner of a row.
    pub row: &'static str,
    pub held: [Held; 5],
    /// All memories, in units of memory.
    pub states: Vec<State>,
    pub shapes: Vec<Shape>,
    pub plans: Vec<Plan>,
}

/// Writes steps, and collects the memories that occur in them.
#[derive(Clone, Debug)]
pub struct Writer {
    states: Vec<Bytes>,
    /// The bytes of a unit of memory.
    unit: usize,
}

impl Writer {
    /// A writer without memories, with so many bytes in a unit of memory.
    pub fn new(unit: usize) -> Self {
        Self { states: Vec::new(), unit }
    }

    /// All memories, in the order of their numbers.
    pub fn states(&self) -> Vec<State> {
        let state = |&Bytes { parameters, gradients, optimizer, activations, messages }: &Bytes| {
            [parameters, optimizer, gradients, activations, messages].map(|it| self.amount(it))
        };
        self.states.iter().map(state).collect()
    }

    /// A number of bytes in units of memory.
    pub fn amount(&self, bytes: usize) -> Rounded {
        Rounded::of(bytes as f64 / self.unit as f64)
    }

    /// Writes a step. Fails when a span has no label.
    pub fn step(
        &mut self,
        timeline: &Timeline,
        labels: &[Label],
        facts: Vec<String>,
    ) -> anyhow::Result<Step> {
        ensure!(timeline.start() == 0.0, "time starts at 0");
        let peaks = (0..timeline.stages).map(|stage| self.amount(timeline.held(stage).total));
        let (peaks, units) = (peaks.collect(), Rounded::of(timeline.makespan()));
        let lanes = timeline.lanes();
        let rows = lanes.iter().map(|lanes| self.row(lanes, labels, timeline.stages));
        Ok(Step { facts, units, peaks, rows: rows.collect::<anyhow::Result<_>>()? })
    }

    fn row(&mut self, lanes: &Lanes, labels: &[Label], stages: usize) -> anyhow::Result<Row> {
        let takes_time = |span: &&Span| span.start < span.end;
        let name = |span: &Span| {
            let letter = words(span.instruction.action).1;
            let label = labels.iter().find(|label| label.letter == letter);
            let label = label.with_context(|| format!("{} has no label", span.instruction))?;
            let number = |(place, meaning): (usize, &&str)| {
                let unit = span.instruction.unit;
                let number = match *meaning {
                    "unit" => unit,
                    "chunk" => unit / stages,
                    _ => span.instruction.action.micro_batch()?,
                };
                Some(number).filter(|&number| place == 0 || number > 0)
            };
            let numbers = label.numbers.iter().enumerate().filter_map(number).join(".");
            anyhow::Ok((format!("{letter}{numbers}"), label.units, span.start, span.end))
        };
        let [computing, communicating, memory] = lanes;
        let bounds = computing.iter().filter(takes_time).flat_map(|span| [span.start, span.end]);
        let bounds = bounds.chain(memory.last().map(|span| span.end)).collect_vec();
        let mut state = |span: &Span| {
            let known = self.states.iter().position(|state| *state == span.held);
            let number = known.unwrap_or_else(|| {
                self.states.push(span.held);
                self.states.len() - 1
            });
            let bound = bounds.iter().find(|&&bound| bound > span.start).unwrap_or(&span.end);
            (number.to_string(), Rounded::of(bound - span.start), span.start, span.end)
        };
        let memory = memory.iter().filter(takes_time).map(&mut state).collect();
        let stream = |spans: &[Span]| {
            let spans = spans.iter().filter(takes_time).map(name);
            anyhow::Ok(text(spans.collect::<anyhow::Result<_>>()?))
        };
        Ok([stream(computing)?, stream(communicating)?, text(memory)])
    }
}

/// Writes spans with their names, their usual lengths, their starts and their ends.
fn text(spans: Vec<(String, Rounded, f64, f64)>) -> String {
    let mut before = 0.0;
    let written = spans.into_iter().flat_map(|(name, usual, start, end)| {
        let (gap, length) = (Rounded::of(start - before), Rounded::of(end - start));
        before = end;
        let gap = (gap.0 != 0.0).then(|| format!("{:+}", gap.0));
        let name = if length == usual { name } else { format!("{name}:{}", length.0) };
        gap.into_iter().chain([name])
    });
    written.collect_vec().join(" ")
}
