//! What one rank gets, where all run the same work.

use std::sync::Mutex;

use harness::lock::locked;

/// Something for rank 0 alone, where all ranks run the same work: whom it reports to, say.
#[derive(Debug)]
pub struct ForRank0<T>(Mutex<Option<T>>);

impl<T> ForRank0<T> {
    /// It is there until rank 0 takes it.
    pub fn new(it: T) -> Self {
        Self(Mutex::new(Some(it)))
    }

    /// It, once, for rank 0; nothing for the others.
    pub fn take(&self, rank: usize) -> Option<T> {
        locked(&self.0).take_if(|_| rank == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rank_0_gets_it_once() {
        let it = ForRank0::new("a report");
        assert_eq!(it.take(1), None);
        assert_eq!(it.take(0), Some("a report"));
        assert_eq!(it.take(0), None);
    }
}
