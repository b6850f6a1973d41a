//! Prefetching: a second thread makes the next batch while the device works on the current one.
//!
//! On a slice of the CPU this hides little, because making a batch is short compared with a step. The shorter the steps,
//! the more it hides.

use std::ops::Range;
use std::sync::mpsc::{self, Receiver};
use std::thread;

use candle_core::{Error, Result, bail};

/// The number of batches that wait. One is enough to hide the time of making it.
const READY: usize = 1;

/// Calls `make` for each index in order, in a second thread, ahead of the iterator's user.
pub fn prefetch<T: Send + 'static>(
    items: Range<usize>,
    make: impl Fn(usize) -> Result<T> + Send + 'static,
) -> Prefetch<T> {
    let (sender, ready) = mpsc::sync_channel(READY);
    let left = items.len();
    let work = {
        let sender = sender.clone();
        move || {
            for index in items {
                // The iterator was dropped early.
                if sender.send(make(index)).is_err() {
                    break;
                }
            }
        }
    };
    if let Err(error) = thread::Builder::new().name("loader".to_owned()).spawn(work) {
        // The channel is empty, so this does not wait.
        let _ = sender.send(Err(Error::wrap(error)));
    }
    Prefetch { ready, left }
}

/// An iterator over items that a second thread makes. Dropping it ends the thread.
#[derive(Debug)]
pub struct Prefetch<T> {
    ready: Receiver<Result<T>>,
    left: usize,
}

impl<T> Iterator for Prefetch<T> {
    type Item = Result<T>;

    fn next(&mut self) -> Option<Result<T>> {
        self.left = self.left.checked_sub(1)?;
        Some(self.ready.recv().unwrap_or_else(|_| bail!("the thread that makes batches is gone")))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}
