//! Chapter 7, `book/src/ch07-sharded-state.md`: the units to recompute, for a budget of bytes.
//!
//! Check your answer: `cargo course check ch07_recompute`

/// Chooses the units to recompute: activations fit into the budget, and as little time as possible is added.
///
/// The model has n units, at least one, and the batch is one micro-batch. A forward pass keeps the `activations` of the unit, its input among them. A unit
/// that is recomputed keeps its `inputs` alone. Right before its backward pass, the unit goes forward again, from a copy of the kept
/// input, and has both: the kept input, and all activations. A backward pass frees everything of its unit. So the most bytes at one time are the largest of these sums, over all units u:
///
/// ```text
/// what the units before u keep  +  activations of u  (+ input of u, if u is recomputed)
/// ```
///
/// Recomputing a unit adds the seconds of its forward pass. The last unit goes backward right after it has gone forward, and is never
/// recomputed. Three units, budget 40:
///
/// ```text
/// unit          0     1     2
/// forward, µs   5     3     4
/// activations  20    20    10
/// input         4     4     4
///
/// nothing recomputed   20 + 20 + 10 = 50 bytes
/// unit 1               20 + 4 + 10 = 34 bytes, and 20 + 20 + 4 = 44 bytes for unit 1: too much
/// unit 0               4 + 20 + 10 = 34 bytes, and 20 + 4 = 24 for unit 0: 5 µs more
/// both                 4 + 4 + 10 = 18 bytes, 4 + 20 + 4 = 28 for unit 1, and 24 for unit 0: 8 µs more
/// ```
///
/// | name | what |
/// | --- | --- |
/// | `forward` | the µs of each unit's forward pass |
/// | `activations`, `inputs` | bytes of each unit; an input is smaller than the activations |
/// | `budget` | the most bytes at one time; there is a choice that fits |
/// | result | the units to recompute, in any order, each once |
///
/// There are at most 12 units, so all choices can be tried. If several choices add as little, return any of them.
pub fn recompute(forward: &[u64], activations: &[u64], inputs: &[u64], budget: u64) -> Vec<usize> {
    // TODO: which choices fit, and which of them adds the least?
    todo!("the units to recompute")
}

// The check of this answer. Leave this line as it is.
exercises::check!(ch07_recompute, recompute, run);
