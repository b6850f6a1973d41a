//! A timeline as text.

use super::Timeline;
use crate::pipeline::schedule::{Action, Instruction};

/// How wide an instruction's name may get, and a space.
const COLUMN: usize = 4;

impl Timeline {
    /// A line for each stage, with a column for every `seconds`.
    ///
    /// `F` is a forward pass, `B` a backward pass or its first half, `W` its second half; the number is the
    /// micro-batch. Where there are several chunks, a letter tells them apart. `··` is a column in which
    /// the device waits.
    pub fn drawing(&self, seconds: f64) -> String {
        let chunks = self.spans.iter().any(|span| span.instruction.chunk > 0);
        let line = |stage| {
            let mut line = format!("stage {stage}   ");
            let mut columns = 0;
            let column = |time: f64| ((time - self.start()) / seconds).round() as usize;
            for span in self.of_stage(stage) {
                let Some(name) = name(span.instruction, chunks) else { continue };
                let (start, end) = (column(span.start), column(span.end));
                line.push_str(&cells("··", start.saturating_sub(columns)));
                line.push_str(&cells(&name, end - start));
                columns = end;
            }
            line.push_str(&cells("··", column(self.start() + self.makespan()) - columns));
            line.trim_end().to_owned() + "\n"
        };
        (0..self.stages).map(line).collect()
    }
}

fn cells(text: &str, columns: usize) -> String {
    format!("{text:COLUMN$}").repeat(columns)
}

fn name(Instruction { chunk, action }: Instruction, chunks: bool) -> Option<String> {
    let (letter, micro_batch) = match action {
        Action::Forward(i) => ('F', i),
        Action::Backward(i) | Action::BackwardInput(i) => ('B', i),
        Action::BackwardWeight(i) => ('W', i),
        _ => return None,
    };
    let chunk = chunks.then(|| char::from_u32('a' as u32 + chunk as u32)).flatten();
    Some(chunk.into_iter().fold(format!("{letter}{micro_batch}"), |name, c| name + &c.to_string()))
}
