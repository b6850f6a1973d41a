//! Five orders of the passes of a pipeline: naive, GPipe, 1F1B, interleaved 1F1B and ZB-H1.
//!
//! A function for each kind generates the passes of a stage in their order. [`Schedule::complete`] adds the messages
//! and the updates. Other functions from list to list add replicas, drop the gradients that nobody needs, and
//! evaluate.
//!
//! `model-parallel --draw` draws all orders. Below, p is the number of stages and m the number of micro-batches.
//! Bubbles are those of stages that take equally long, with messages that take no time.

use std::fmt;
use std::str::FromStr;

use crate::Refused;
use crate::instructions::Action::{
    self, AllReduce, Backward, BackwardInput, BackwardWeight, Forward, ForwardOnly, Free, Gather,
    RecvActivation, RecvGradient, SendActivation, SendGradient, Update, Wait,
};
use crate::instructions::{Instruction, Schedule};

/// Naive: a micro-batch passes all stages forward and backward before the next micro-batch begins. One device works at a
/// time, so the bubble is (p − 1)/p for any m. The usual number of micro-batches is one: the whole batch.
// ANCHOR: naive
pub fn naive(_stage: usize, _stages: usize, micro_batches: usize) -> Vec<Action> {
    (0..micro_batches).flat_map(|i| [Forward(i), Backward(i)]).collect()
}
// ANCHOR_END: naive

/// GPipe: all micro-batches forward, then all micro-batches backward.
///
/// The bubble is (p − 1)/(m + p − 1), and a stage keeps the activations of all m micro-batches. Source: Huang et al.,
/// *GPipe*, 2019, arXiv 1811.06965, section 2.3 and figure 2c. The GPipe of the paper keeps the inputs of its stages
/// only, and computes the other activations a second time. Its figure goes backward from the last micro-batch. Here,
/// as in PyTorch, the first micro-batch goes backward first: gradients are summed in one order.
// ANCHOR: gpipe
pub fn gpipe(_stage: usize, _stages: usize, micro_batches: usize) -> Vec<Action> {
    let forward = (0..micro_batches).map(Forward);
    let backward = (0..micro_batches).map(Backward);
    forward.chain(backward).collect()
}
// ANCHOR_END: gpipe

/// 1F1B: a forward pass for each later stage, then one forward pass and one backward pass in turn.
///
/// The bubble is GPipe's, and stage r keeps the activations of at most p − r micro-batches. Source: Narayanan et al.,
/// 2021, arXiv 2006.09503, as PipeDream-Flush; and arXiv 2104.04473, section 2.2.1.
// ANCHOR: one_f_one_b
pub fn one_f_one_b(stage: usize, stages: usize, micro_batches: usize) -> Vec<Action> {
    in_turn(stages - stage - 1, micro_batches, Forward, Backward)
}

/// Forward and backward passes in turn, with `ahead` forward passes alone before, and as many backward passes alone
/// after.
fn in_turn<T>(
    ahead: usize,
    passes: usize,
    forward: impl Fn(usize) -> T,
    backward: impl Fn(usize) -> T,
) -> Vec<T> {
    let ahead = ahead.min(passes);
    let mut order: Vec<T> = (0..ahead).map(&forward).collect();
    order.extend((ahead..passes).flat_map(|k| [forward(k), backward(k - ahead)]));
    order.extend((passes - ahead..passes).map(&backward));
    order
}
// ANCHOR_END: one_f_one_b

/// Interleaved: 1F1B with v chunks of the model on each stage, which fills the pipeline sooner.
///
/// A micro-batch passes every stage v times. Micro-batches form groups of p: a group passes the first chunks, then the
/// second chunks, and so on. The bubble is (p − 1)/(v·m + p − 1). The price is v times as many messages, and more
/// activations than in 1F1B. m is a multiple of p. Source: Narayanan et al., arXiv 2104.04473, section 2.2.2.
// ANCHOR: interleaved
pub fn interleaved(
    stage: usize,
    stages: usize,
    chunks: usize,
    micro_batches: usize,
) -> Vec<Instruction> {
    // The k-th pass of this stage. Backward, a group passes the last chunks first.
    let pass = |k: usize, backward: bool| {
        let (group, within) = (k / (stages * chunks), k % (stages * chunks));
        let (i, chunk) = (group * stages + within % stages, within / stages);
        let (chunk, action) = match backward {
            true => (chunks - 1 - chunk, Backward(i)),
            false => (chunk, Forward(i)),
        };
        Instruction { unit: chunk * stages + stage, action }
    };
    // The first group passes all chunks but the last. Then come two passes for every later stage, because a forward
    // and a backward pass alternate there before the first gradient is back.
    let ahead = (chunks - 1) * stages + 2 * (stages - stage - 1);
    in_turn(ahead, chunks * micro_batches, |k| pass(k, false), |k| pass(k, true))
}
// ANCHOR_END: interleaved

/// ZB-H1: 1F1B with the backward pass in two halves. A stage computes and sends the gradient of the input first, and
/// computes the gradients of its weights later: stage r after r micro-batches.
///
/// When the three passes take tF, tB and tW, a device is idle for (p − 1)(tF + tB − tW), against (p − 1)(tF + tB + tW)
/// in 1F1B. This holds from m = p on, and as far as tW is not longer than tF and tB. As in 1F1B, no stage keeps
/// anything of more than p micro-batches. Source: Qi et al., *Zero Bubble Pipeline Parallelism*, 2023, arXiv
/// 2401.10241, section 2.1, figure 3 and table 2.
// ANCHOR: zb_h1
pub fn zb_h1(stage: usize, stages: usize, micro_batches: usize) -> Vec<Action> {
    let mut order = Vec::new();
    for action in one_f_one_b(stage, stages, micro_batches) {
        match action {
            Backward(i) => {
                order.push(BackwardInput(i));
                order.extend(i.checked_sub(stage).map(BackwardWeight));
            }
            forward => order.push(forward),
        }
    }
    order.extend((micro_batches.saturating_sub(stage)..micro_batches).map(BackwardWeight));
    order
}
// ANCHOR_END: zb_h1

// ANCHOR: kind
/// The largest number of chunks on a stage: a drawing names chunks by the letters from a to z.
pub const MOST_CHUNKS: usize = 26;

/// The kinds of schedules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One device works at a time: [`naive`].
    Naive,
    /// All forward, then all backward: [`gpipe`].
    GPipe,
    /// One forward, one backward: [`one_f_one_b`].
    OneFOneB,
    /// 1F1B with several chunks of the model on each stage: [`interleaved`].
    Interleaved {
        /// Chunks on each stage, 2 to [`MOST_CHUNKS`].
        chunks: usize,
    },
    /// 1F1B with the backward pass in two halves: [`zb_h1`].
    ZbH1,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Naive => f.write_str("naive"),
            Self::GPipe => f.write_str("GPipe"),
            Self::OneFOneB => f.write_str("1F1B"),
            Self::Interleaved { chunks } => write!(f, "interleaved 1F1B, {chunks} chunks"),
            Self::ZbH1 => f.write_str("ZB-H1"),
        }
    }
}

impl FromStr for Kind {
    type Err = Refused;

    fn from_str(text: &str) -> Result<Self, Refused> {
        let chunks = || text.strip_prefix("interleaved:")?.parse().ok();
        match text {
            "naive" => Ok(Self::Naive),
            "gpipe" => Ok(Self::GPipe),
            "1f1b" => Ok(Self::OneFOneB),
            "zb-h1" => Ok(Self::ZbH1),
            _ => chunks().map(|chunks| Self::Interleaved { chunks }).ok_or_else(|| {
                Refused(format!(
                    "\"{text}\" is no schedule: there are naive, gpipe, 1f1b, interleaved:CHUNKS (2 to {MOST_CHUNKS}, \
                     such as interleaved:2) and zb-h1"
                ))
            }),
        }
    }
}
// ANCHOR_END: kind

// ANCHOR: generate
impl Kind {
    /// The number of units on each stage: the chunks of the model.
    pub fn chunks(self) -> usize {
        if let Self::Interleaved { chunks } = self { chunks } else { 1 }
    }

    /// Checks, without generating the schedule, that there is a schedule of this kind for so many stages and
    /// micro-batches. Fails when there are no stages or no micro-batches, or the kind does not exist for these numbers.
    pub fn check(self, stages: usize, micro_batches: usize) -> Result<(), Refused> {
        Err(Refused(match self {
            _ if stages == 0 || micro_batches == 0 => format!(
                "{stages} stages and {micro_batches} micro-batches: a schedule needs at least one of each"
            ),
            Self::Interleaved { chunks } if !(2..=MOST_CHUNKS).contains(&chunks) => format!(
                "an interleaved schedule has 2 to {MOST_CHUNKS} chunks on each stage, not {chunks}"
            ),
            Self::Interleaved { .. } if !micro_batches.is_multiple_of(stages) => format!(
                "{micro_batches} micro-batches cannot be interleaved on {stages} stages: their number has to be a \
                 multiple of {stages}, such as {}",
                micro_batches.next_multiple_of(stages)
            ),
            _ => return Ok(()),
        }))
    }

    /// Generates the schedule for so many stages and micro-batches. Unit u is on stage u modulo the number of stages:
    ///
    /// ```text
    ///                       stage 0   stage 1   stage 2
    /// one chunk each        unit 0    unit 1    unit 2
    /// a second chunk each   unit 3    unit 4    unit 5
    /// ```
    ///
    /// Fails with the errors of [`check`](Self::check).
    pub fn schedule(self, stages: usize, micro_batches: usize) -> Result<Schedule, Refused> {
        self.check(stages, micro_batches)?;
        let one_unit_each = |order: fn(usize, usize, usize) -> Vec<Action>| {
            Schedule::of(stages, micro_batches, |stage| order(stage, stages, micro_batches))
        };
        let passes = match self {
            Self::Naive => one_unit_each(naive),
            Self::GPipe => one_unit_each(gpipe),
            Self::OneFOneB => one_unit_each(one_f_one_b),
            Self::ZbH1 => one_unit_each(zb_h1),
            Self::Interleaved { chunks } => {
                let list = |stage| interleaved(stage, stages, chunks, micro_batches);
                Schedule {
                    placement: (0..stages * chunks).map(|unit| unit % stages).collect(),
                    lists: (0..stages).map(list).collect(),
                    ..Schedule::of(stages, micro_batches, |_| vec![])
                }
            }
        };
        Ok(passes.complete())
    }
}

impl Schedule {
    /// Completes lists of passes: receives an input right before the pass that needs the input, sends a result right
    /// after the pass that computes the result, and updates all units at the end.
    #[must_use]
    pub fn complete(mut self) -> Self {
        let of_unit = |unit| move |action| Instruction { unit, action };
        let around = |Instruction { unit, action }: &Instruction| {
            let around = match *action {
                Forward(i) | ForwardOnly(i) => vec![RecvActivation(i), *action, SendActivation(i)],
                Backward(i) | BackwardInput(i) => vec![RecvGradient(i), *action, SendGradient(i)],
                _ => vec![*action],
            };
            around.into_iter().map(of_unit(*unit))
        };
        let list = |(stage, passes): (usize, &Vec<Instruction>)| {
            let updates = self.units_of(stage).map(|unit| of_unit(unit)(Update));
            let all = passes.iter().flat_map(around).chain(updates);
            all.filter(|&it| self.has(it)).collect()
        };
        self.lists = self.lists.iter().enumerate().map(list).collect();
        self
    }
}
// ANCHOR_END: generate

// ANCHOR: lists
impl Schedule {
    /// The same step for several replicas: starts to sum a unit's gradients right after its last backward pass.
    #[must_use]
    pub fn with_replicas(mut self, replicas: usize) -> Self {
        self.replicas = replicas;
        for list in &mut self.lists {
            list.retain(|it| it.action != AllReduce);
            for unit in (0..self.placement.len()).filter(|_| replicas > 1) {
                let adds = |it: &Instruction| it.unit == unit && it.action.adds_gradients();
                if let Some(last) = list.iter().rposition(adds) {
                    list.insert(last + 1, Instruction { unit, action: AllReduce });
                }
            }
        }
        self
    }

    /// The same step for a model whose first units have nothing to train. They go forward only, and no gradient goes
    /// back to them.
    #[must_use]
    pub fn trained_from(mut self, unit: usize) -> Self {
        self.first_trained = unit;
        let translated = |it: &Instruction| match it.action {
            Forward(i) if it.unit < unit => Instruction { action: ForwardOnly(i), ..*it },
            _ => *it,
        };
        let list = |list: &Vec<Instruction>| {
            list.iter().map(translated).filter(|&it| self.has(it)).collect()
        };
        self.lists = self.lists.iter().map(list).collect();
        self
    }

    /// Forward passes alone, for an evaluation on so many micro-batches: all micro-batches pass a unit, then the next
    /// one. A unit in chunks is whole for its passes.
    #[must_use]
    pub fn forward_only(&self, micro_batches: usize) -> Self {
        let forward = |unit| {
            let passes = (0..micro_batches).map(ForwardOnly);
            let (before, after) =
                if self.sharded { (vec![Gather, Wait], Some(Free)) } else { (vec![], None) };
            let actions = before.into_iter().chain(passes).chain(after);
            actions.map(move |action| Instruction { unit, action })
        };
        let list = |stage| self.units_of(stage).flat_map(forward).collect();
        let (placement, first_trained) = (self.placement.clone(), self.units());
        let lists = (0..self.stages()).map(list).collect();
        Self { micro_batches, placement, first_trained, lists, ..*self }.complete()
    }
}
// ANCHOR_END: lists
