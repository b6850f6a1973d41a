//! Threads that drive devices, one for each, and wait for work.
//!
//! A caller in another thread gives all devices a closure and waits for the results. The devices are ranks, so the closures can
//! exchange tensors.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use devices::DevicePlan;
use harness::lock::locked;
use harness::report::trace;
use harness::stopwatch::recv_timeout;
use params_and_allreduce::communicator::Communicator as _;
use params_and_allreduce::thread::{GRACE, Rank, RankFailure, attempt, run_ranks_with};

use crate::Error;

// ANCHOR: threads
/// The failure of a device of which nothing else is known.
const ENDED: &str = "a device has ended early";

/// Work for the thread of a device. The state of the device has type `S`, unless the device could not be opened.
type Work<S> = Box<dyn FnOnce(&Rank, Result<&S, Error>) -> Result<(), Error> + Send>;

/// A queue of work for each device, or the first failure of a device. When the queues are dropped, the threads end.
type Queues<S> = Result<Vec<Sender<Work<S>>>, String>;

/// The threads of several devices.
pub(crate) struct DeviceThreads<S> {
    /// The time for which a device may be silent once another has answered.
    patience: Duration,
    queues: Mutex<Queues<S>>,
    /// Nothing comes from this channel. Its other end is dropped when all threads have ended.
    ended: Mutex<Receiver<()>>,
}

impl<S: 'static> DeviceThreads<S> {
    /// Starts a thread for every device of a plan. `open` makes the state of a device.
    pub(crate) fn start(
        plan: &DevicePlan,
        timeout: Duration,
        open: impl Fn(&Rank) -> Result<S, Error> + Send + Sync + 'static,
    ) -> Result<Self, Error> {
        let (plan, (end, ended)) = (plan.clone(), channel());
        let (queues, work): (Vec<_>, Vec<_>) = plan.slots().iter().map(|_| channel()).unzip();
        let run = move || {
            let _end: Sender<()> = end;
            // The first failure is an answer to the caller.
            let _ = run_ranks_with(&plan, timeout, work, |rank, queue: Receiver<Work<S>>| {
                let _rank = trace::rank("data parallel", rank.rank(), rank.compute_device());
                let state = open(rank);
                let shared = |error: &Error| Error::Device(error.to_string());
                queue.into_iter().try_for_each(|work| work(rank, state.as_ref().map_err(shared)))
            });
        };
        thread::Builder::new().spawn(run).map_err(candle_core::Error::wrap)?;
        // A device that waits for another knows which one is late. So the caller waits longer.
        let patience = timeout.saturating_add(GRACE);
        Ok(Self { patience, queues: Mutex::new(Ok(queues)), ended: Mutex::new(ended) })
    }

    /// Runs `work` on all devices, each with its own input. Waits for all results, and returns them in rank order. Fails with
    /// the first failure of a device, and so do all later calls.
    pub(crate) fn run<I: Send + 'static, T: Send + 'static>(
        &self,
        inputs: Vec<I>,
        work: impl Fn(&Rank, &S, I) -> Result<T, Error> + Send + Sync + 'static,
    ) -> Result<Vec<T>, Error>
    where
        S: Sync,
    {
        // One caller at a time.
        let queues = &mut *locked(&self.queues);
        let mut results: Vec<Option<T>> = inputs.iter().map(|_| None).collect();
        let (work, (answer, answers)) = (Arc::new(work), channel());
        let devices = queues.as_ref().map_err(|why| Error::Device(why.clone()))?;
        for (queue, input) in devices.iter().zip(inputs) {
            let (work, answer) = (Arc::clone(&work), answer.clone());
            // A device that has ended drops its work, and so its end of the channel of answers.
            let _ = queue.send(Box::new(move |rank: &Rank, state: Result<&S, Error>| {
                let outcome = attempt(rank.compute_device(), || work(rank, state?, input));
                let failure = |cause| RankFailure { rank: rank.rank(), cause }.to_string();
                let outcome = outcome.map_err(failure);
                let failed = outcome.as_ref().err().cloned().map(Error::Device);
                // The caller learns of a failure first. The devices that wait for this one fail later.
                let _ = answer.send((rank.rank(), outcome));
                failed.map_or(Ok(()), Err)
            }));
        }
        drop(answer);
        for answered in 0..results.len() {
            // The time of the work is not known, so there is no limit for the first answer.
            let next = match answered {
                0 => answers.recv().map_err(RecvTimeoutError::from),
                _ => recv_timeout(&answers, self.patience),
            };
            let failure = match next {
                Ok((rank, Ok(result))) => {
                    results[rank] = Some(result);
                    continue;
                }
                Ok((_, Err(failure))) => failure,
                Err(RecvTimeoutError::Timeout) => {
                    let silent = results.iter().position(Option::is_none).unwrap_or(0);
                    let seconds = self.patience.as_secs_f64();
                    format!("device {silent} has not answered for {seconds} s, and another has")
                }
                Err(RecvTimeoutError::Disconnected) => ENDED.to_owned(),
            };
            *queues = Err(failure.clone());
            return Err(Error::Device(failure));
        }
        Ok(results.into_iter().flatten().collect())
    }
}

impl<S> Drop for DeviceThreads<S> {
    /// Waits until all threads have ended. A thread that stalls is left behind after [`GRACE`].
    fn drop(&mut self) {
        *locked(&self.queues) = Err(ENDED.to_owned());
        let _ = recv_timeout(&locked(&self.ended), GRACE);
    }
}
// ANCHOR_END: threads

#[cfg(test)]
mod tests {
    use candle_core::DType;
    use params_and_allreduce::thread::DEFAULT_TIMEOUT;

    use super::*;

    fn threads(devices: usize) -> DeviceThreads<()> {
        let plan = DevicePlan::slices(devices).unwrap();
        DeviceThreads::start(&plan, DEFAULT_TIMEOUT, |_| Ok(())).unwrap()
    }

    #[test]
    fn results_are_in_the_order_of_ranks() {
        let threads = threads(3);
        let results = threads.run(vec![30, 20, 10], |rank, _, milliseconds| {
            thread::sleep(Duration::from_millis(milliseconds));
            Ok((rank.rank(), milliseconds))
        });
        assert_eq!(results.unwrap(), [(0, 30), (1, 20), (2, 10)]);
    }

    #[test]
    fn a_device_that_panics_is_named_in_every_later_call() {
        let threads = threads(3);
        let panics = |rank: &Rank, (): &(), ()| {
            assert_ne!(rank.rank(), 1, "on purpose");
            Ok(())
        };
        for _ in 0..2 {
            let error = threads.run(vec![(); 3], panics).unwrap_err().to_string();
            assert!(
                error.starts_with("rank 1 panicked: ") && error.contains("on purpose"),
                "{error}"
            );
        }
    }

    #[test]
    fn the_first_device_that_fails_is_named_and_not_those_that_wait_for_it() {
        let threads = threads(3);
        let fails = |rank: &Rank, (): &(), ()| match rank.rank() {
            1 => Err(Error::Device("out of memory".to_owned())),
            number => {
                let message = rank.recv(1, &().into(), DType::F32);
                // Rank 1 answers before it ends, and so before these calls return.
                message.map(drop).map_err(|error| Error::Device(format!("{number}: {error}")))
            }
        };
        let error = threads.run(vec![(); 3], fails).unwrap_err().to_string();
        assert_eq!(error, "rank 1 failed: out of memory");
    }

    #[test]
    fn a_device_that_stalls_is_named() {
        let mut threads = threads(3);
        threads.patience = Duration::from_millis(200);
        let stalls = |rank: &Rank, (): &(), ()| {
            if rank.rank() == 1 {
                thread::sleep(Duration::from_secs(2));
            }
            Ok(())
        };
        let error = threads.run(vec![(); 3], stalls).unwrap_err().to_string();
        assert_eq!(error, "device 1 has not answered for 0.2 s, and another has");
    }

    #[test]
    fn devices_that_have_ended_are_not_waited_for() {
        let threads = threads(2);
        *locked(&threads.queues) = Ok((0..2).map(|_| channel().0).collect());
        let error = threads.run(vec![(); 2], |_, _, ()| Ok(())).unwrap_err().to_string();
        assert_eq!(error, ENDED);
    }

    #[test]
    fn a_device_that_cannot_be_opened_is_named() {
        let plan = DevicePlan::slices(2).unwrap();
        let open = |rank: &Rank| match rank.rank() {
            1 => Err(Error::Device("no memory".to_owned())),
            _ => Ok(()),
        };
        let threads = DeviceThreads::start(&plan, DEFAULT_TIMEOUT, open).unwrap();
        let error = threads.run(vec![(); 2], |_, (), ()| Ok(())).unwrap_err().to_string();
        assert_eq!(error, "rank 1 failed: no memory");
    }
}
