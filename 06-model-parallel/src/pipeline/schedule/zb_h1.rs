//! ZB-H1: the backward pass in two halves, one of which can wait.
//!
//! The stage before needs the gradient of its output, and nothing else. So that half of the backward pass
//! comes first and is sent; the gradient of the weights is computed when there is nothing more urgent.
//! Stage r leaves it for r micro-batches. Three stages, four micro-batches, B the input's gradient and W
//! the weights':
//!
//! ```text
//! stage 0   F0  F1  F2  ··  ··  B0  W0  F3  B1  W1  B2  W2  B3  W3
//! stage 1   ··  F0  F1  ··  B0  F2  B1  W0  F3  B2  W1  B3  W2  W3
//! stage 2   ··  ··  F0  B0  F1  B1  F2  B2  W0  F3  B3  W1  W2  W3
//! ```
//!
//! When a forward, an input's gradient and a weights' gradient take tF, tB and tW, a device is idle for
//! (p − 1)(tF + tB − tW), where 1F1B has (p − 1)(tF + tB + tW): a third of it if the three are equal. That
//! takes at least p micro-batches, and a tW that is not longer than tF and tB: what it is longer does not
//! help. As in 1F1B, no stage keeps anything of more than p micro-batches.
//!
//! Source: Qi et al., *Zero Bubble Pipeline Parallelism*, 2023, arXiv 2401.10241, section 2.1, figure 3 and
//! table 2. The schedules of theirs that have no bubble at all need more memory, or another way to place the
//! layers.

use super::Action::{self, BackwardInput, BackwardWeight};
use super::one_f_one_b;

/// In which order a stage computes.
pub fn order(stage: usize, stages: usize, micro_batches: usize) -> Vec<Action> {
    let mut order = Vec::new();
    for action in one_f_one_b::order(stage, stages, micro_batches) {
        match action {
            Action::Backward(i) => {
                order.push(BackwardInput(i));
                order.extend(i.checked_sub(stage).map(BackwardWeight));
            }
            forward => order.push(forward),
        }
    }
    order.extend((micro_batches.saturating_sub(stage)..micro_batches).map(BackwardWeight));
    order
}
