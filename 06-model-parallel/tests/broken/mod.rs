//! Schedules with one mistake each, and what their author is told.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the right answer")]

mod deadlocks;
mod laws;

use model_parallel::pipeline::Action;
use model_parallel::pipeline::UNBOUNDED;
use model_parallel::pipeline::{Kind, Schedule, check};

/// A schedule that is about to be broken.
struct Edit(Schedule);

impl Edit {
    fn of(kind: Kind, stages: usize, micro_batches: usize) -> Self {
        Self(kind.schedule(stages, micro_batches).unwrap())
    }

    fn find(&self, stage: usize, action: Action) -> usize {
        let mut list = self.0.instructions[stage].iter();
        list.position(|i| i.action == action).unwrap()
    }

    fn drop(mut self, stage: usize, action: Action) -> Self {
        let position = self.find(stage, action);
        self.0.instructions[stage].remove(position);
        self
    }

    fn put(mut self, stage: usize, position: usize, action: Action) -> Self {
        self.0.instructions[stage].insert(position, action.into());
        self
    }

    fn swap(mut self, stage: usize, one: Action, other: Action) -> Self {
        let (one, other) = (self.find(stage, one), self.find(stage, other));
        self.0.instructions[stage].swap(one, other);
        self
    }

    fn replace(mut self, stage: usize, action: Action, by: Action) -> Self {
        let position = self.find(stage, action);
        self.0.instructions[stage][position].action = by;
        self
    }

    #[track_caller]
    fn rejected(self, message: &str) {
        self.rejected_with(UNBOUNDED, message);
    }

    #[track_caller]
    fn rejected_with(self, capacity: usize, message: &str) {
        let found = check(self.0, capacity).expect_err("this is broken").to_string();
        assert_eq!(found, message);
    }
}

/// Three stages, four micro-batches.
fn one_f_one_b() -> Edit {
    Edit::of(Kind::OneFOneB, 3, 4)
}

fn gpipe() -> Edit {
    Edit::of(Kind::GPipe, 3, 4)
}

fn zb_h1() -> Edit {
    Edit::of(Kind::ZbH1, 3, 4)
}
