//! Which schedules a worker executes: every stage has one chunk of the model, and goes backward in one piece.

use super::error::Error;
use crate::pipeline::check::Checked;
use crate::pipeline::schedule::Action;

/// Whether workers can execute a schedule on so many ranks.
pub(super) fn executable(checked: &Checked, ranks: usize) -> Result<(), Error> {
    let schedule = checked.schedule();
    if schedule.stages() != ranks {
        return Err(Error::Ranks { stages: schedule.stages(), ranks });
    }
    if schedule.chunks > 1 {
        return Err(Error::Chunks { chunks: schedule.chunks });
    }
    for (stage, list) in schedule.instructions.iter().enumerate() {
        for &instruction in list {
            if let Action::BackwardInput(_) | Action::BackwardWeight(_) = instruction.action {
                return Err(Error::HalfBackward { stage, instruction });
            }
        }
    }
    Ok(())
}
