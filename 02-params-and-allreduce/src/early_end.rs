//! Ctrl-C between two runs of a measurement: all ranks leave it at the same one.

use std::sync::atomic::{AtomicUsize, Ordering};

use params_and_allreduce::communicator::{Communicator, Error};

/// Where a measurement ends before its time, the same on all ranks, which are threads.
///
/// A signal may reach one rank before a run and another rank behind it, and who leaves alone is waited for by all
/// others. So rank 0 alone looks, in front of a barrier, and behind it all know what it saw:
///
/// ```text
/// rank 0   looks: nothing   barrier 3   run 3   looks: Ctrl-C!   barrier 4   leaves
/// rank 1                    barrier 3   run 3                    barrier 4   leaves
/// ```
///
/// What is written down is the number of the run: rank 0 may look for run 4 while rank 1 is still about to read what
/// holds for run 3.
#[derive(Debug)]
pub(crate) struct EarlyEnd(AtomicUsize);

impl EarlyEnd {
    /// Of one measurement, which goes on until its end unless somebody ends it.
    pub(crate) fn new() -> Self {
        Self(AtomicUsize::new(usize::MAX))
    }

    /// Waits for all ranks, and tells whether a run is to be made: the same on all of them. Runs are numbered upwards.
    ///
    /// `interrupted` is whether this rank has seen Ctrl-C; only rank 0's answer counts.
    ///
    /// # Errors
    ///
    /// When another rank stops or stalls.
    pub(crate) fn begins(
        &self,
        rank: &impl Communicator,
        run: usize,
        interrupted: bool,
    ) -> Result<bool, Error> {
        if rank.rank() == 0 && interrupted {
            self.0.store(run, Ordering::SeqCst);
        }
        rank.barrier()?;
        Ok(run < self.0.load(Ordering::SeqCst))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use devices::DevicePlan;

    use params_and_allreduce::thread::run_ranks;

    use super::*;

    /// Ranks 1 and 2 see the signal long before rank 0, or never.
    #[test]
    fn all_ranks_leave_at_the_run_at_which_rank_0_sees_it() {
        const SEEN_AT: [usize; 3] = [7, 2, usize::MAX];
        let plan = DevicePlan::slices(3).expect("a plan");
        for _ in 0..100 {
            let end = EarlyEnd::new();
            let made = run_ranks(&plan, Duration::from_secs(60), |rank| {
                let mut made = 0;
                while end.begins(rank, made, made >= SEEN_AT[rank.rank()])? {
                    made += 1;
                }
                Ok::<_, Error>(made)
            });
            assert_eq!(made.expect("ranks that agree"), [7; 3]);
        }
    }
}
