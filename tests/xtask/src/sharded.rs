//! The data of the book's figure of sharded state: every strategy of stage 7, for every size that the figure offers.

use anyhow::Context as _;
use itertools::Itertools as _;
use model_parallel::{Action, Cost, UNBOUNDED, check};
use serde::Serialize;
use sharded_state::{Sharing, Strategy};

use crate::lists::{Catalogue, HELD, Label, Menu, Shape, Step, Writer};

/// The strategies of the figure, with their names.
pub const STRATEGIES: [(&str, Strategy); 6] = [
    ("DDP", Sharing::Ddp.plain()),
    ("ZeRO 1", Sharing::Zero1.plain()),
    ("ZeRO 2", Sharing::Zero2.plain()),
    ("ZeRO 3", Sharing::Zero3.plain()),
    ("ZeRO 3, prefetch", PREFETCHED),
    ("ZeRO 3, prefetch, recomputation", Strategy { recomputes: Some(1), ..PREFETCHED }),
];

const PREFETCHED: Strategy = Strategy { prefetches: true, ..Sharing::Zero3.plain() };

/// The number of units of the model.
pub const UNITS: usize = 6;

/// The numbers of devices of the figure.
pub const DEVICES: [usize; 3] = [2, 4, 8];

/// The numbers of micro-batches of the figure.
pub const MICRO_BATCHES: [usize; 2] = [1, 2];

/// The links of the figure, with the time of an all-reduce of a unit.
pub const LINKS: [(&str, f64); 2] = [("fast", 1.0), ("slow", 4.0)];

/// The bytes of a unit of memory: the parameters of a unit of the model.
pub const MEMORY_UNIT: usize = 16;

/// The cost of a unit.
pub const COST: Cost = Cost {
    update: 0.25,
    parameters: MEMORY_UNIT,
    optimizer: 2 * MEMORY_UNIT,
    activations: MEMORY_UNIT,
    input: MEMORY_UNIT / 4,
    output: MEMORY_UNIT / 4,
    ..Cost::UNITS
};

/// A strategy on some devices.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Plan {
    pub kind: &'static str,
    pub devices: usize,
    pub micro_batches: usize,
    pub links: &'static str,
    #[serde(flatten)]
    pub step: Step,
}

/// Asks stage 7 for a list, and stage 6 for a simulation. Fails when the list breaks a law, or has a span without a label.
fn plan(
    (kind, strategy): (&'static str, Strategy),
    (devices, micro_batches): (usize, usize),
    (links, all_reduce): (&'static str, f64),
    writer: &mut Writer,
) -> anyhow::Result<Plan> {
    let checked = check(strategy.schedule(UNITS, micro_batches, devices), UNBOUNDED)?;
    let timeline = checked.simulate(&[Cost { all_reduce, ..COST }; UNITS], 0.0)?;
    let facts = vec![
        format!("{} units", timeline.makespan()),
        format!("{:.1} %", 100.0 * timeline.bubble()),
        format!("{} units", writer.amount(timeline.held(0).total).0),
    ];
    let step = writer.step(&timeline, &labels(), facts)?;
    Ok(Plan { kind, devices, micro_batches, links, step })
}

/// The labels of all lists. Times of communication are those of slow links.
fn labels() -> Vec<Label> {
    let all_reduce = LINKS[1].1;
    let actions = [
        (Action::Forward(0), COST.forward),
        (Action::Recompute(0), COST.forward),
        (Action::Backward(0), COST.backward),
        (Action::Update, COST.update),
        (Action::AllReduce, all_reduce),
        (Action::Gather, all_reduce / 2.0),
        (Action::ReduceScatter, all_reduce / 2.0),
    ];
    let label = |(action, units)| Label {
        // No other colour is left for updates beside communication.
        series: if action == Action::Update { 5 } else { Label::of(action, units, &[]).series },
        pale: action == Action::Gather,
        ..Label::of(action, units, &["unit", "micro-batch"])
    };
    actions.map(label).to_vec()
}

/// Asks stages 6 and 7 for every strategy in every size.
pub fn catalogue() -> anyhow::Result<Catalogue<Plan>> {
    let mut writer = Writer::new(MEMORY_UNIT);
    let sizes = DEVICES.into_iter().cartesian_product(MICRO_BATCHES);
    let all = STRATEGIES.into_iter().cartesian_product(sizes).cartesian_product(LINKS);
    let plans = all.map(|((strategy, size), links)| {
        let what = || format!("{}, {} × {}, {} links", strategy.0, size.0, size.1, links.0);
        plan(strategy, size, links, &mut writer).with_context(what)
    });
    let plans = plans.collect::<anyhow::Result<_>>()?;
    let menu = |(field, name)| Menu { field, name, compared: field == "kind" };
    let key = "A number is a unit of the model, framed wherever it is the same. The second micro-batch is pale. A unit of time is \
               a forward pass of a unit of the model. An all-reduce takes one unit with fast links, and four with slow links. A \
               gather and a reduce-scatter take half of this time. A unit of memory is the parameters of a unit of the model. \
               Its gradients and its activations of a micro-batch take as much, and AdamW's state takes twice as much.";
    let shape = |(kind, _): (&str, _)| Shape {
        kind: kind.to_owned(),
        number: "unit",
        pale: "micro-batch",
        labels: labels(),
        key: key.to_owned(),
    };
    Ok(Catalogue {
        command: "cargo xtask sharded",
        menus: [
            ("kind", "Strategy"),
            ("devices", "Devices"),
            ("micro_batches", "Micro-batches"),
            ("links", "Links"),
        ]
        .map(menu)
        .to_vec(),
        facts: vec!["Time for the step", "Not computing", "Peak memory"],
        row: "rank",
        held: HELD,
        states: writer.states(),
        shapes: STRATEGIES.map(shape).to_vec(),
        plans,
    })
}
