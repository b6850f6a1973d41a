//! A value for one rank, where all ranks run the same work.

use std::sync::Mutex;

use harness::lock::locked;

/// A value for rank 0 alone, where all ranks run the same work.
#[derive(Debug)]
pub struct ForRank0<T>(Mutex<Option<T>>);

impl<T> ForRank0<T> {
    /// Keeps the value until rank 0 takes it.
    pub fn new(value: T) -> Self {
        Self(Mutex::new(Some(value)))
    }

    /// Returns the value to rank 0, once.
    pub fn take(&self, rank: usize) -> Option<T> {
        locked(&self.0).take_if(|_| rank == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rank_0_gets_its_value_once() {
        let it = ForRank0::new("a report");
        assert_eq!(it.take(1), None);
        assert_eq!(it.take(0), Some("a report"));
        assert_eq!(it.take(0), None);
    }
}
