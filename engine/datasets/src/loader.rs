//! The batches of an epoch: every sample once, in an order that depends on the seed and the epoch alone.
//!
//! While a device trains on one batch, a second thread makes the next one: [`prefetch`].

use std::ops::Range;
use std::sync::mpsc::{self, Receiver};
use std::thread;

use candle_core::{DType, Error, Result, bail};
use rand::seq::SliceRandom;

use super::{Batch, Dataset};
use harness::random;

/// Cuts a data set into batches. Loaders with one seed make the same batches on all devices, without communication.
#[derive(Clone, Debug)]
pub struct Loader {
    dataset: Dataset,
    batch_size: usize,
    seed: u64,
    dtype: DType,
}

impl Loader {
    /// Makes a loader of batches of `batch_size` samples. The last batch may be shorter. Panics when `batch_size` is 0.
    pub fn new(dataset: &Dataset, batch_size: usize, seed: u64, dtype: DType) -> Self {
        assert!(batch_size > 0, "a batch has at least one sample");
        Self { dataset: dataset.clone(), batch_size, seed, dtype }
    }

    /// Returns the order of the samples in an epoch.
    pub fn order(&self, epoch: usize) -> Vec<u32> {
        epoch_order(self.dataset.len(), self.seed, epoch)
    }
}

impl Epochs for Loader {
    type Batch = Batch;

    fn batches_per_epoch(&self) -> usize {
        self.dataset.len().div_ceil(self.batch_size)
    }

    fn samples_per_epoch(&self) -> usize {
        self.dataset.count_labels(self.dataset.len())
    }

    fn rest_of_epoch(&self, epoch: usize, done: usize) -> Prefetch<Batch> {
        let (order, batch_size, dtype) = (self.order(epoch), self.batch_size, self.dtype);
        let samples = self.dataset.of_epoch(self.seed, epoch);
        prefetch(done..self.batches_per_epoch(), move |batch| {
            samples.batch(batch_of(&order, batch_size, batch), dtype)
        })
    }
}

/// The batches of a training loop, epoch by epoch.
pub trait Epochs {
    /// The samples of one step.
    type Batch;

    /// The number of batches in an epoch.
    fn batches_per_epoch(&self) -> usize;

    /// The number of samples in an epoch, over all devices. Of a text, the number of tokens.
    fn samples_per_epoch(&self) -> usize;

    /// Returns the batches of an epoch, in CPU memory. A second thread makes them.
    fn epoch(&self, epoch: usize) -> Prefetch<Self::Batch> {
        self.rest_of_epoch(epoch, 0)
    }

    /// Returns the batches of an epoch without the first `done`, which are not made.
    fn rest_of_epoch(&self, epoch: usize, done: usize) -> Prefetch<Self::Batch>;
}

/// Returns a permutation of `0..samples` that depends on the seed and the epoch alone.
pub fn epoch_order(samples: usize, seed: u64, epoch: usize) -> Vec<u32> {
    let mut order: Vec<u32> = (0..).take(samples).collect();
    order.shuffle(&mut random::generator(seed, &format!("shuffle/{epoch}")));
    order
}

/// Returns the samples of batch number `batch`, counted from 0. The last batch of an epoch may be shorter.
pub fn batch_of(order: &[u32], batch_size: usize, batch: usize) -> &[u32] {
    let start = batch * batch_size;
    &order[start..order.len().min(start + batch_size)]
}

/// The number of batches that wait. One is enough to hide the time of making it.
const READY: usize = 1;

/// Calls `make` for each index in order, in a second thread, ahead of the iterator's user.
pub fn prefetch<T: Send + 'static>(
    items: Range<usize>,
    make: impl Fn(usize) -> Result<T> + Send + 'static,
) -> Prefetch<T> {
    let (sender, ready) = mpsc::sync_channel(READY);
    let (left, to_user) = (items.len(), sender.clone());
    // The thread ends when the iterator is dropped early.
    let work = move || items.map(make).try_for_each(|item| to_user.send(item)).unwrap_or(());
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
}

#[cfg(test)]
mod tests {
    use super::super::{CLASSES, PIXELS};
    use super::*;

    /// Ten samples: all pixels of sample i have the value i.
    fn ten() -> Dataset {
        let images = (0..10).map(|i| [i; PIXELS]).collect();
        Dataset::new(images, (0..10).map(|i| i % CLASSES as u8).collect()).unwrap()
    }

    fn labels(batch: Result<Batch>) -> Vec<u32> {
        batch.unwrap().labels.to_vec1().unwrap()
    }

    #[test]
    fn batches_made_ahead_have_every_sample_once_in_the_order_that_the_loader_says() {
        let dataset = ten();
        for dtype in [DType::F32, DType::F64] {
            let loader = Loader::new(&dataset, 4, 7, dtype);
            let (order, batches) = (loader.order(2), loader.epoch(2).collect::<Vec<_>>());
            assert_eq!((batches.len(), loader.batches_per_epoch()), (3, 3));
            for (batch, indices) in batches.into_iter().zip(order.chunks(4)) {
                let (batch, expected) = (batch.unwrap(), dataset.batch(indices, dtype).unwrap());
                let values = |batch: &Batch| {
                    let images = batch.images.to_dtype(DType::F64).unwrap();
                    images.flatten_all().unwrap().to_vec1::<f64>().unwrap()
                };
                assert_eq!((batch.images.dtype(), values(&batch)), (dtype, values(&expected)));
                assert_eq!(labels(Ok(batch)), indices, "the label of a sample is its number");
            }
            let mut sorted = order;
            sorted.sort_unstable();
            assert_eq!(sorted, (0..10).collect::<Vec<u32>>());
        }
    }

    #[test]
    fn windows_of_a_text_are_those_of_the_epoch() {
        let text = Dataset::text((0..200).collect(), 9).unwrap();
        let loader = Loader::new(&text, 4, 7, DType::F32);
        assert_eq!((loader.batches_per_epoch(), loader.samples_per_epoch()), (6, 21 * 9));
        for epoch in 0..3 {
            let batches: Vec<_> = loader.epoch(epoch).map(Result::unwrap).collect();
            let order = loader.order(epoch);
            let expected = text.of_epoch(7, epoch).batch(&order[..4], DType::F32).unwrap();
            let values = |batch: &Batch| batch.images.to_vec2::<u32>().unwrap();
            assert_eq!(values(&batches[0]), values(&expected));
            assert_eq!(batches.iter().map(Batch::len).sum::<usize>(), loader.samples_per_epoch());
        }
    }

    #[test]
    fn the_rest_of_an_epoch_is_the_end_of_the_whole() {
        let loader = Loader::new(&ten(), 4, 7, DType::F32);
        let whole: Vec<_> = loader.epoch(3).map(labels).collect();
        for done in 0..=4 {
            let rest: Vec<_> = loader.rest_of_epoch(3, done).map(labels).collect();
            assert_eq!(rest, whole[done.min(3)..]);
        }
    }

    #[test]
    fn an_epoch_of_errors_has_as_many_as_batches() {
        let batches: Vec<_> = Loader::new(&ten(), 4, 7, DType::F4).epoch(0).collect();
        assert_eq!(batches.len(), 3);
        assert!(batches.iter().all(Result::is_err));
    }

    #[test]
    fn an_epoch_that_is_left_early_ends_its_thread() {
        let dataset = ten();
        let mut batches = Loader::new(&dataset, 1, 7, DType::F32).epoch(0);
        assert!(batches.next().is_some());
        drop(batches);
        // The thread holds the images until it ends.
        let start = std::time::Instant::now();
        while std::sync::Arc::strong_count(&dataset.fingerprint) > 1 {
            assert!(start.elapsed().as_secs() < 10, "the thread goes on");
            std::thread::yield_now();
        }
    }

    #[test]
    fn the_order_depends_on_seed_and_epoch_alone() {
        let order = |batch, seed, epoch| Loader::new(&ten(), batch, seed, DType::F32).order(epoch);
        assert_eq!(order(4, 7, 0), order(3, 7, 0));
        assert_ne!(order(4, 7, 0), order(4, 7, 1));
        assert_ne!(order(4, 7, 0), order(4, 8, 0));
    }
}
