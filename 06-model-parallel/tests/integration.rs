//! The stage from outside, in one program. Apart are `processes`, which needs MPI, and `times`.

mod any_order;
#[path = "../../tests/src/before.rs"]
mod before;
mod broken;
mod cli;
mod gpt;
#[path = "../../tests/src/layers.rs"]
mod layers;
mod pipelines;
mod prelude;
#[path = "../../tests/src/random.rs"]
mod random_numbers;
mod schedules;
mod tensor_parallel;
mod timelines;
