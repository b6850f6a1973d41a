//! The data of the book's figure of pipeline schedules, for every size that the figure offers.
//!
//! Stage 6 generates the schedules, checks the laws, predicts the times, and counts messages and activations.

mod row;

use anyhow::{Context as _, ensure};
use itertools::Itertools as _;
use model_parallel::{Cost, Kind, UNBOUNDED, check};
use serde::Serialize;

use crate::number::Rounded;

pub use row::{Pass, Row, passes};

/// The schedules of the figure. The first schedule has its own time scale.
pub const KINDS: [Kind; 5] =
    [Kind::Naive, Kind::GPipe, Kind::OneFOneB, Kind::Interleaved { chunks: 2 }, Kind::ZbH1];

/// The numbers of stages of the figure.
pub const STAGES: [usize; 5] = [2, 3, 4, 6, 8];

/// The numbers of micro-batches of the figure.
pub const MICRO_BATCHES: [usize; 7] = [1, 2, 4, 6, 8, 12, 16];

/// The schedules that are also drawn as a [picture](crate::pictures::schedules()), with their stages and micro-batches.
pub const PICTURED: ([Kind; 3], usize, usize) = ([Kind::GPipe, Kind::OneFOneB, Kind::ZbH1], 4, 8);

/// A kind of schedule.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Shape {
    pub kind: String,
    pub chunks: usize,
    pub passes: Vec<Pass>,
}

/// A schedule of some kind and size, or the refusal of such a schedule.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Plan {
    pub kind: String,
    pub stages: usize,
    pub micro_batches: usize,
    /// The refusal, in the words of the generator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    #[serde(flatten)]
    pub timeline: Option<Timeline>,
}

/// The work of every stage over time, and the totals.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Timeline {
    /// The part of the time of all devices that is waiting, from 0 to 1.
    pub bubble: f64,
    /// From the start of the first stage to the end of the last.
    pub units: Rounded,
    /// The number of messages that a channel has to hold at least.
    pub capacity: usize,
    /// The most micro-batches that a stage keeps activations of at one time, of each stage.
    pub peaks: Vec<usize>,
    pub rows: Vec<Row>,
}

/// All schedules of the figure.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Catalogue {
    pub command: String,
    pub shapes: Vec<Shape>,
    pub plans: Vec<Plan>,
}

/// The costs of all units: a stage takes a unit of time forward, and two backward.
pub fn costs(kind: Kind, stages: usize) -> Vec<Cost> {
    vec![Cost::UNITS.faster(kind.chunks() as f64); stages * kind.chunks()]
}

impl Plan {
    /// Asks stage 6 for a schedule and a prediction.
    /// Fails when a generated schedule breaks a law, or has a pass without a letter.
    pub fn of(kind: Kind, stages: usize, micro_batches: usize) -> anyhow::Result<Self> {
        let mut plan =
            Self { kind: kind.to_string(), stages, micro_batches, refused: None, timeline: None };
        let schedule = match kind.schedule(stages, micro_batches) {
            Ok(schedule) => schedule,
            Err(refused) => {
                plan.refused = Some(refused.to_string());
                return Ok(plan);
            }
        };
        let checked = check(schedule, UNBOUNDED)?;
        let timeline = checked.simulate(&costs(kind, stages), 0.0)?;
        ensure!(timeline.start() == 0.0, "time starts at 0");
        let rows = (0..stages).map(|stage| Row::of(kind, &timeline, stage));
        plan.timeline = Some(Timeline {
            bubble: timeline.bubble(),
            units: Rounded::of(timeline.makespan()),
            capacity: checked.smallest_capacity(),
            peaks: (0..stages).map(|stage| timeline.peak(stage).activations).collect(),
            rows: rows.collect::<anyhow::Result<_>>()?,
        });
        Ok(plan)
    }
}

impl Catalogue {
    /// Asks stage 6 for every kind in every size. Fails as [`Plan::of`] does.
    pub fn make() -> anyhow::Result<Self> {
        let shapes = KINDS.map(|kind| Shape {
            kind: kind.to_string(),
            chunks: kind.chunks(),
            passes: passes(kind),
        });
        let plan = |((kind, stages), micro_batches): ((Kind, usize), usize)| {
            let what = || format!("{kind}, {stages} × {micro_batches}");
            Plan::of(kind, stages, micro_batches).with_context(what)
        };
        let sizes = KINDS.into_iter().cartesian_product(STAGES).cartesian_product(MICRO_BATCHES);
        let plans = sizes.map(plan).collect::<anyhow::Result<_>>()?;
        Ok(Self { command: "cargo xtask schedules".to_owned(), shapes: shapes.to_vec(), plans })
    }
}
