//! The stage from outside, in one program. Apart is `processes`, which needs MPI.

mod any_order;
mod broken;
mod cli;
mod pipelines;
mod schedules;
mod tensor_parallel;
mod timelines;
