//! The data of the book's figure of pipeline schedules, for every size that the figure offers.
//!
//! Stage 6 generates the schedules, checks the laws, and simulates the streams and the bytes of each stage.

use anyhow::Context as _;
use itertools::Itertools as _;
use model_parallel::{Action, Cost, Kind, UNBOUNDED, check};
use serde::Serialize;

use crate::lists::{HELD, Label, Menu, Shape, Step, Writer};

/// The schedules of the figure.
pub const KINDS: [Kind; 5] =
    [Kind::Naive, Kind::GPipe, Kind::OneFOneB, Kind::Interleaved { chunks: 2 }, Kind::ZbH1];

/// The numbers of stages of the figure.
pub const STAGES: [usize; 4] = [2, 3, 4, 8];

/// The numbers of micro-batches of the figure.
pub const MICRO_BATCHES: [usize; 5] = [1, 2, 4, 8, 12];

/// The schedules that are also drawn as a [picture](crate::pictures::schedules()), with their stages and micro-batches.
pub const PICTURED: ([Kind; 3], usize, usize) = ([Kind::GPipe, Kind::OneFOneB, Kind::ZbH1], 4, 8);

/// The bytes of a unit of memory: the activations that a stage keeps of one micro-batch.
pub const MEMORY_UNIT: usize = 4;

/// The links between devices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Links {
    pub name: &'static str,
    /// The time of a message.
    pub message: f64,
    /// The cost of a stage.
    pub cost: Cost,
}

/// Links on which nothing takes time.
pub const FAST: Links = Links {
    name: "fast",
    message: 0.0,
    cost: Cost {
        parameters: 2 * MEMORY_UNIT,
        optimizer: 2 * MEMORY_UNIT,
        activations: MEMORY_UNIT,
        input: MEMORY_UNIT / 4,
        output: MEMORY_UNIT / 4,
        ..Cost::UNITS
    },
};

/// Links on which a message takes half as long as a forward pass.
pub const SLOW: Links =
    Links { name: "slow", message: 0.5, cost: Cost { all_reduce: 2.0, ..FAST.cost } };

impl Links {
    /// The costs of all units. The chunks of a stage share its work and its bytes, but their messages have the whole size.
    pub fn costs(&self, kind: Kind, stages: usize) -> Vec<Cost> {
        let (chunks, cost) = (kind.chunks(), self.cost.faster(kind.chunks() as f64));
        let unit = Cost {
            parameters: cost.parameters / chunks,
            optimizer: cost.optimizer / chunks,
            activations: cost.activations / chunks,
            ..cost
        };
        vec![unit; stages * chunks]
    }
}

/// A schedule of some kind and size, or the refusal of such a schedule.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Plan {
    pub kind: String,
    pub stages: usize,
    pub micro_batches: usize,
    pub links: &'static str,
    /// The refusal, in the words of the generator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    #[serde(flatten)]
    pub step: Option<Step>,
    /// The part of the time of all devices that is waiting, from 0 to 1.
    #[serde(skip)]
    pub bubble: f64,
    /// The number of messages that a channel has to hold at least.
    #[serde(skip)]
    pub capacity: usize,
}

impl Plan {
    /// Asks stage 6 for a schedule and a simulation.
    /// Fails when a generated schedule breaks a law, or has a span without a label.
    pub fn of(
        kind: Kind,
        (stages, micro_batches): (usize, usize),
        links: Links,
        writer: &mut Writer,
    ) -> anyhow::Result<Self> {
        let mut plan = Self {
            kind: kind.to_string(),
            stages,
            micro_batches,
            links: links.name,
            refused: None,
            step: None,
            bubble: 0.0,
            capacity: 0,
        };
        let schedule = match kind.schedule(stages, micro_batches) {
            Ok(schedule) => schedule.with_replicas(2),
            Err(refused) => {
                plan.refused = Some(refused.to_string());
                return Ok(plan);
            }
        };
        let checked = check(schedule, UNBOUNDED)?;
        let timeline = checked.simulate(&links.costs(kind, stages), links.message)?;
        (plan.bubble, plan.capacity) = (timeline.bubble(), checked.smallest_capacity());
        let count = |n: f64, what: &str| format!("{n} {what}{}", if n == 1.0 { "" } else { "s" });
        let facts = [
            format!("{:.1} %", 100.0 * plan.bubble),
            count(timeline.makespan(), "unit"),
            count(plan.capacity as f64, "message"),
        ];
        plan.step = Some(writer.step(&timeline, &labels(kind), facts.to_vec())?);
        Ok(plan)
    }
}

/// The labels of a kind of schedule.
fn labels(kind: Kind) -> Vec<Label> {
    let cost = SLOW.costs(kind, 1)[0];
    let numbers = ["micro-batch", "chunk"];
    let numbers = &numbers[..if kind.chunks() > 1 { 2 } else { 1 }];
    let mut actions = vec![
        (Action::Forward(0), cost.forward),
        (Action::Backward(0), cost.backward),
        (Action::RecvActivation(0), SLOW.message),
        (Action::RecvGradient(0), SLOW.message),
        (Action::AllReduce, cost.all_reduce),
    ];
    if kind == Kind::ZbH1 {
        let halves = [
            (Action::BackwardInput(0), cost.backward_input),
            (Action::BackwardWeight(0), cost.backward_weight),
        ];
        actions.splice(1..2, halves);
    }
    actions.into_iter().map(|(action, units)| Label::of(action, units, numbers)).collect()
}

fn shape(kind: Kind) -> Shape {
    let chunks = match kind.chunks() {
        1 => "",
        _ => " Each pass is of one chunk, and so half as large. Chunk 1 is pale.",
    };
    let halves = match kind {
        Kind::ZbH1 => " Activations are held until the gradients of weights are computed.",
        _ => "",
    };
    let key = format!(
        "A number is a micro-batch, framed wherever it is the same.{chunks}{halves} A unit of time is a stage's forward pass. \
         With slow links, a message takes half a unit, and a sum over two replicas takes two. A message is drawn while its \
         stage waits. A unit of memory is the activations of a micro-batch on a stage. Parameters, gradients and optimizer \
         state have two units each, and a message has a quarter. Peak: the most memory at one time."
    );
    Shape {
        kind: kind.to_string(),
        number: "micro-batch",
        pale: "chunk",
        labels: labels(kind),
        key,
    }
}

/// All schedules of the figure.
pub type Catalogue = crate::lists::Catalogue<Plan>;

/// Asks stage 6 for every kind in every size. Fails as [`Plan::of`] does.
pub fn catalogue() -> anyhow::Result<Catalogue> {
    let mut writer = Writer::new(MEMORY_UNIT);
    let sizes = STAGES.into_iter().cartesian_product(MICRO_BATCHES);
    let all = KINDS.into_iter().cartesian_product(sizes).cartesian_product([FAST, SLOW]);
    let plan = |((kind, size), links): ((Kind, (usize, usize)), Links)| {
        let what = || format!("{kind}, {} × {}, {} links", size.0, size.1, links.name);
        Plan::of(kind, size, links, &mut writer).with_context(what)
    };
    let plans = all.map(plan).collect::<anyhow::Result<_>>()?;
    let menu = |(field, name)| Menu { field, name, compared: field == "kind" };
    Ok(Catalogue {
        command: "cargo xtask schedules",
        menus: [
            ("kind", "Schedule"),
            ("stages", "Stages"),
            ("micro_batches", "Micro-batches"),
            ("links", "Links"),
        ]
        .map(menu)
        .to_vec(),
        facts: vec!["Bubble", "Time for the step", "Smallest channel capacity"],
        row: "stage",
        held: HELD,
        states: writer.states(),
        shapes: KINDS.map(shape).to_vec(),
        plans,
    })
}
