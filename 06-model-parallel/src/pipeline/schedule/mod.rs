//! Who does what, in which order: a schedule is data.
//!
//! A schedule has a list of instructions for every stage. A worker that executes its list from the first
//! to the last needs to know nothing else; it does not even know which kind of schedule it executes.
//!
//! ```text
//! stage 0   Forward(0)         SendActivation(0)   RecvGradient(0)   Backward(0)        Update
//! stage 1   RecvActivation(0)  Forward(0)          Backward(0)       SendGradient(0)    Update
//! ```
//!
//! The drawings in the files below have a line for each stage and a column for every pass: `F` forward, `B`
//! backward, then the micro-batch. They are drawn as if all passes took equally long and messages no time;
//! `··` is a device that waits. p is the number of stages, m that of micro-batches.
//!
//! | file | its idea |
//! | --- | --- |
//! | `instruction` | what a stage can be told to do |
//! | `place` | which part of the model lies where, and what comes before and after it |
//! | `messages` | what is computed settles what is sent |
//! | [`kind`] | the schedules by name |
//! | [`naive`] | one device works at a time |
//! | [`gpipe`] | all forward, then all backward |
//! | [`one_f_one_b`] | backward as soon as possible: fewer activations are alive |
//! | [`interleaved`] | several chunks of the model on each device: a smaller bubble |
//! | [`zb_h1`] | the backward pass in two halves, one of which can wait |

pub mod gpipe;
mod instruction;
pub mod interleaved;
pub mod kind;
mod messages;
pub mod naive;
pub mod one_f_one_b;
mod place;
pub mod zb_h1;

use serde::{Deserialize, Serialize};

pub use instruction::{Action, Instruction};
pub use kind::{Kind, MOST_CHUNKS, Refused};
pub use place::Place;

/// What every stage does in one step of training, from the first micro-batch to the update.
///
/// Anybody can write one, and write nonsense: [`check`](crate::pipeline::check()) tells.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Schedule {
    /// How many micro-batches the batch is cut into. They are numbered from 0.
    pub micro_batches: usize,
    /// How many chunks of the model each stage holds. One, except where schedules are interleaved.
    pub chunks: usize,
    /// One list for each stage, in stage order.
    pub instructions: Vec<Vec<Instruction>>,
}

impl Schedule {
    /// A schedule with one chunk a stage, from the list of each stage.
    ///
    /// ```
    /// use model_parallel::pipeline::Schedule;
    /// use model_parallel::pipeline::schedule::Action::{Backward, Forward, Update};
    ///
    /// let alone = Schedule::of(1, 2, |_stage| {
    ///     vec![Forward(0), Backward(0), Forward(1), Backward(1), Update]
    /// });
    /// assert_eq!(alone.stages(), 1);
    /// ```
    pub fn of(stages: usize, micro_batches: usize, actions: impl Fn(usize) -> Vec<Action>) -> Self {
        let list = |stage| actions(stage).into_iter().map(Instruction::from).collect();
        Self { micro_batches, chunks: 1, instructions: (0..stages).map(list).collect() }
    }

    /// How many stages there are: one device each.
    pub fn stages(&self) -> usize {
        self.instructions.len()
    }
}
