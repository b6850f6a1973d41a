//! A schedule as PyTorch's pipelining runtime reads it.

use itertools::Itertools as _;

use crate::instructions::{Action, Instruction, Schedule};

// ANCHOR: pytorch
impl Schedule {
    /// The instructions that compute, in the format of PyTorch's `_PipelineScheduleRuntime._load_csv`: a row for each rank, and
    /// a cell such as `2B3` for each instruction. The cell names the unit of the model, the pass and the micro-batch.
    ///
    /// PyTorch adds the messages and the sums over replicas. Its caller makes the update.
    pub fn to_pytorch(&self) -> String {
        let row = |list: &Vec<Instruction>| {
            let cell = |&Instruction { unit, action }: &Instruction| {
                let (pass, i) = match action {
                    Action::Forward(i) => ("F", i),
                    Action::Backward(i) => ("B", i),
                    Action::BackwardInput(i) => ("I", i),
                    Action::BackwardWeight(i) => ("W", i),
                    _ => return None,
                };
                Some(format!("{unit}{pass}{i}"))
            };
            list.iter().filter_map(cell).join(",") + "\n"
        };
        self.lists.iter().map(row).collect()
    }
}
// ANCHOR_END: pytorch

#[cfg(test)]
mod tests {
    use crate::Kind;

    #[test]
    fn a_row_names_parts_passes_and_micro_batches() {
        for (kind, stages, expected) in [
            (Kind::OneFOneB, 2, "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"),
            (Kind::ZbH1, 2, "0F0,0F1,0I0,0W0,0I1,0W1\n1F0,1I0,1F1,1I1,1W0,1W1\n"),
            (
                Kind::Interleaved { chunks: 2 },
                2,
                "0F0,0F1,2F0,2F1,2B0,2B1,0B0,0B1\n1F0,1F1,3F0,3B0,3F1,3B1,1B0,1B1\n",
            ),
        ] {
            assert_eq!(kind.schedule(stages, 2).unwrap().to_pytorch(), expected, "{kind}");
        }
    }
}
