//! A timeline as text.

use super::Timeline;
use crate::pipeline::schedule::{Action, Instruction};

/// How wide a column is at least: `F12` or `B3a`, and a space.
const COLUMN: usize = 4;

/// What stands for a column in which the device waits.
const WAITS: &str = "··";

impl Timeline {
    /// A line for each stage, with a column for every `seconds`.
    ///
    /// `F` is a forward pass, `B` a backward pass or its first half, `W` its second half; the number is the
    /// micro-batch. Where there are several chunks, a letter tells them apart. `··` is a column in which
    /// the device waits.
    pub fn drawing(&self, seconds: f64) -> String {
        let chunks = self.spans.iter().any(|span| span.instruction.chunk > 0);
        let start = self.start();
        let column = |time: f64| ((time - start) / seconds).round() as usize;
        let last = column(start + self.makespan());
        // Of each stage, what is drawn of its spans: first and last column, and a name.
        let mut stages = vec![Vec::new(); self.stages];
        for span in &self.spans {
            if let (Some(drawn), Some(name)) =
                (stages.get_mut(span.stage), name(span.instruction, chunks))
            {
                drawn.push((column(span.start), column(span.end), name));
            }
        }
        let names = stages.iter().flatten().map(|(.., name)| name.len() + 1);
        let width = names.max().unwrap_or(0).max(COLUMN);
        let cells = |text: &str, columns: usize| format!("{text:width$}").repeat(columns);
        let digits = self.stages.saturating_sub(1).to_string().len();
        let line = |(stage, drawn): (usize, &Vec<(usize, usize, String)>)| {
            let mut line = format!("stage {stage:<digits$}   ");
            let mut columns = 0;
            for (start, end, name) in drawn {
                line.push_str(&cells(WAITS, start.saturating_sub(columns)));
                line.push_str(&cells(name, end.saturating_sub(*start)));
                columns = *end;
            }
            line.push_str(&cells(WAITS, last.saturating_sub(columns)));
            line.trim_end().to_owned() + "\n"
        };
        stages.iter().enumerate().map(line).collect()
    }
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
