//! The stage from outside, in one program. Apart are `processes`, which needs MPI, and `times`.

mod any_order;
mod broken;
mod cli;
mod pipelines;
mod prelude;
mod schedules;
mod tensor_parallel;
mod timelines;
