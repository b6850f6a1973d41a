//! Which part of the model lies where.
//!
//! With two chunks on each of three stages, the model is cut into six parts. They go around, so that
//! every stage has an early one and a late one:
//!
//! ```text
//!            stage 0   stage 1   stage 2
//! chunk 0    part 0    part 1    part 2
//! chunk 1    part 3    part 4    part 5
//! ```

use super::Schedule;

/// A chunk of a stage: the place of one part of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// Which stage.
    pub stage: usize,
    /// Which of its chunks.
    pub chunk: usize,
}

impl Place {
    /// Where the part before this one lies, in a pipeline of so many stages. The first has none.
    pub fn before(self, stages: usize) -> Option<Self> {
        match self {
            Self { stage: 0, chunk: 0 } => None,
            Self { stage: 0, chunk } => Some(Self { stage: stages - 1, chunk: chunk - 1 }),
            Self { stage, chunk } => Some(Self { stage: stage - 1, chunk }),
        }
    }

    /// Where the part after this one lies, with so many stages and chunks. The last has none.
    pub fn after(self, stages: usize, chunks: usize) -> Option<Self> {
        let Self { stage, chunk } = self;
        if stage + 1 < stages {
            Some(Self { stage: stage + 1, chunk })
        } else if chunk + 1 < chunks {
            Some(Self { stage: 0, chunk: chunk + 1 })
        } else {
            None
        }
    }
}

impl Schedule {
    /// Where the part of the model before this one lies. The first has none: its input is the data.
    pub fn before(&self, place: Place) -> Option<Place> {
        place.before(self.stages())
    }

    /// Where the part of the model after this one lies. The last has none: it ends in the loss.
    pub fn after(&self, place: Place) -> Option<Place> {
        place.after(self.stages(), self.chunks)
    }
}
