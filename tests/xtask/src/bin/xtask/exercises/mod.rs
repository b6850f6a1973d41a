//! Whether the exercises' checks can be trusted: `verify` runs them on every known answer, `soak` on small changes.

pub(crate) mod soak;
pub(crate) mod verify;
mod wrong;
