//! The course tool, the book, its figures, the releases, and which package may use which, in one program.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the right answer")]

mod book;
mod book_rules;
mod dependencies;
mod divergence;
mod doctor;
mod exercises;
mod gpu_run;
mod interrupts;
mod peers;
mod release;
mod scaling;
mod schedules;
mod steps;
