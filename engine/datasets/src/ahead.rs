//! What is needed next is made by a thread of its own while the device works on what it has.
//!
//! On a slice of the CPU that hides next to nothing, as a batch takes little beside a step; the shorter the steps, the
//! more it hides.

use std::ops::Range;
use std::sync::mpsc::{self, Receiver};
use std::thread;

use candle_core::{Error, Result, bail};

/// Batches that may lie ready. One is enough to hide the time it takes to make it.
const READY: usize = 1;

/// The items of these numbers, made one after the other, ahead of time, by a thread of their own.
pub fn ahead<T: Send + 'static>(
    items: Range<usize>,
    make: impl Fn(usize) -> Result<T> + Send + 'static,
) -> Ahead<T> {
    let (sender, ready) = mpsc::sync_channel(READY);
    let left = items.len();
    let work = {
        let sender = sender.clone();
        move || {
            for index in items {
                // Whoever asked has stopped early: so does this thread.
                if sender.send(make(index)).is_err() {
                    break;
                }
            }
        }
    };
    if let Err(error) = thread::Builder::new().name("loader".to_owned()).spawn(work) {
        // The channel is empty, so there is room.
        let _ = sender.send(Err(Error::wrap(error)));
    }
    Ahead { ready, left }
}

/// Items in order, of which the next is being made. Dropped early, it stops the thread that makes them.
#[derive(Debug)]
pub struct Ahead<T> {
    ready: Receiver<Result<T>>,
    left: usize,
}

impl<T> Iterator for Ahead<T> {
    type Item = Result<T>;

    fn next(&mut self) -> Option<Result<T>> {
        self.left = self.left.checked_sub(1)?;
        Some(self.ready.recv().unwrap_or_else(|_| bail!("the thread that makes batches is gone")))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}
