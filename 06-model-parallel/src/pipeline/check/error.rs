//! How a broken law is told: where, what was expected, and which law.

use std::fmt;

use harness::report::counted;

use crate::pipeline::channel::UNBOUNDED;
use crate::pipeline::schedule::Instruction;

/// One instruction of a schedule, and where it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The stage whose list it is in.
    pub stage: usize,
    /// Its place there, from 0.
    pub position: usize,
    /// What it says.
    pub instruction: Instruction,
}

impl fmt::Display for Step {
    /// `stage 1, instruction 4, Forward(2)`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { stage, position, instruction } = self;
        write!(f, "stage {stage}, instruction {position}, {instruction}")
    }
}

/// A stage that cannot go on before another one does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// What it would do next.
    pub step: Step,
    /// The stage that it waits for.
    pub on: usize,
}

/// The law that a schedule breaks. Stages, instructions, micro-batches and chunks are counted from 0.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Nothing to do, or nobody to do it.
    #[error(
        "stages: {stages}, chunks on each: {chunks}, micro-batches: {micro_batches}; a schedule has at least \
         one of each"
    )]
    Empty {
        /// How many lists of instructions there are.
        stages: usize,
        /// How many chunks a stage is said to have.
        chunks: usize,
        /// How many micro-batches there are said to be.
        micro_batches: usize,
    },
    /// A micro-batch or a chunk that does not exist.
    #[error("{step}: there is no {what} {number}; the last one is {what} {}", of - 1)]
    NoSuch {
        /// Where.
        step: Step,
        /// A micro-batch or a chunk.
        what: &'static str,
        /// Its number.
        number: usize,
        /// How many there are.
        of: usize,
    },
    /// A message from or to a stage that does not exist.
    #[error("{step}: {why}")]
    NobodyThere {
        /// Where.
        step: Step,
        /// Why there is no such message.
        why: &'static str,
    },
    /// Something is used that is not there.
    #[error("{step}: it needs {needs} first, and that {}. {law}", whereabouts(*later))]
    TooEarly {
        /// Where.
        step: Step,
        /// What has to come before it.
        needs: Instruction,
        /// Where that stands instead, if anywhere.
        later: Option<usize>,
        /// The law.
        law: &'static str,
    },
    /// Something is done again.
    #[error(
        "{step}: instruction {first}, {done}, has done that already. Every micro-batch goes forward once and \
         backward once, every message is sent once, and there is one update"
    )]
    Twice {
        /// Where.
        step: Step,
        /// Where it was done before.
        first: usize,
        /// What was done there.
        done: Instruction,
    },
    /// Something is never computed.
    #[error("stage {stage} never does {missing}. {law}")]
    Missing {
        /// The stage.
        stage: usize,
        /// What it should do.
        missing: Instruction,
        /// The law.
        law: &'static str,
    },
    /// Something is never sent.
    #[error("stage {stage} never does {missing}, and stage {waiting} waits for it")]
    Unsent {
        /// The stage.
        stage: usize,
        /// What it should do.
        missing: Instruction,
        /// The stage that it should be sent to.
        waiting: usize,
    },
    /// The weights change before their gradient is complete.
    #[error(
        "{update}: it lacks the gradient of {}, which comes only as instruction {}. The update comes after the \
         gradients of all micro-batches", late.instruction, late.position
    )]
    EarlyUpdate {
        /// Where.
        update: Step,
        /// A gradient that comes later.
        late: Step,
    },
    /// A stage expects another message than the one that it will get.
    #[error(
        "{receiving}: what arrives is {}, instruction {} of stage {}. What is sent first arrives first",
        sending.instruction, sending.position, sending.stage
    )]
    Order {
        /// What is sent.
        sending: Step,
        /// What is expected.
        receiving: Step,
    },
    /// Stages wait for each other in a circle, so none of them will ever go on.
    #[error(
        "deadlock with channels that hold {}: {}. {}", messages(*capacity), in_words(circle), remedy(*suffices)
    )]
    Deadlock {
        /// Each waits for the next, and the last for the first. The smallest stage comes first.
        circle: Vec<Wait>,
        /// How many messages a channel holds.
        capacity: usize,
        /// How many would do, if any number does.
        suffices: Option<usize>,
    },
}

fn whereabouts(later: Option<usize>) -> String {
    match later {
        Some(position) => format!("comes later, as instruction {position}"),
        None => "is never done".to_owned(),
    }
}

fn messages(capacity: usize) -> String {
    match capacity {
        UNBOUNDED => "any number of messages".to_owned(),
        _ => counted(capacity, "message"),
    }
}

/// `stage 0 (instruction 2, SendActivation(1)) waits for stage 1 to receive, …`
fn in_words(circle: &[Wait]) -> String {
    let wait = |Wait { step: Step { stage, position, instruction }, on }: &Wait| {
        let does = if instruction.action.sends() { "receive" } else { "send" };
        format!(
            "stage {stage} (instruction {position}, {instruction}) waits for stage {on} to {does}"
        )
    };
    circle.iter().map(wait).collect::<Vec<_>>().join(", ")
}

fn remedy(suffices: Option<usize>) -> String {
    match suffices {
        Some(capacity) => format!("Channels that hold {} would do", messages(capacity)),
        None => "No channel helps, however much it holds: each needs what another has yet to send"
            .to_owned(),
    }
}
