//! Every check against every candidate: `cargo course verify` runs this program once for each.
//!
//! The tests are named `EXERCISE::CANDIDATE::…`, where the candidate is `stub` (what a learner is
//! given), `solution`, or `wrong_NAME` for each known wrong answer. `build.rs` writes the list.

include!(concat!(env!("OUT_DIR"), "/candidates.rs"));
