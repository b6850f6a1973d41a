//! Checkpoints of stage 5: a run that is cut anywhere and goes on comes to the same bits as one that is not;
//! and no damaged or foreign file is ever used.
//!
//! Six steps in two epochs, of 7, 7 and 2 samples, with momentum, weight decay and a warm-up of five steps:
//! each of them changes the next step if it is lost.

mod damage;
#[path = "../../src/files.rs"]
mod files;
mod folder;
mod going_on;
mod other_run;
mod ranks;
mod run;
mod signals;
#[path = "../../src/watched.rs"]
mod watched;
