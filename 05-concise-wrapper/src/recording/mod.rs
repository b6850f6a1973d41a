//! `--record FILE`: a hash of every tensor in every step (of running statistics, rank 0's), to find out where two runs part.
//!
//! Two runs that should be equal end with other weights. Where did they part? Their last losses say little:
//! one wrong bit has been everywhere by then. But the *first* tensor that differs, in the order in which a
//! step makes them, is the one whose making differs:
//!
//! | in a step, on a rank | if it is the first to differ |
//! | --- | --- |
//! | images | another share of the data: sampler, seed, shuffle |
//! | parameters, and rank 0's buffers | the update of the step before, or the initial values |
//! | loss | the forward pass |
//! | gradients, last layer first | the backward pass of that layer, or the sum over ranks |
//!
//! So a recording is one line of JSON for each of them, in that order, and [`first_divergence`] walks two
//! recordings side by side. Behind the last step come parameters and buffers once more, as those of a step that was not
//! made: what the last update made is otherwise in no recording. They are what a run that goes on begins with.

mod divergence;
mod steps;
mod told;

use std::cell::Cell;
use std::fmt::Display;
use std::io::{self, Write};
use std::sync::Mutex;

use base16ct::HexDisplay;
use candle_core::{Device, Tensor};
use datasets::Dataset;
use harness::lock::locked;
use harness::records::BatchSums;
use ops::weights_hash::WeightsHash;
use params_and_allreduce::communicator::SharedCommunicator;
use serde::{Deserialize, Serialize};
use single_gpu::train::Step;

pub use divergence::{Divergence, first_divergence, read, steps_made};

use crate::model::Model;
use crate::weights::{Named, Weights};
use crate::{Error, Precision, text};
use split_batch::loader::{LocalBatch, Shards};

/// One tensor at one time, or the loss.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Counted from 1 over the whole run, also where it goes on. What a run ends with has the number of the step that
    /// would come next.
    pub step: usize,
    /// Whose.
    pub rank: usize,
    /// `images`, `parameter`, `buffer`, `loss` or `gradient`.
    pub kind: String,
    /// The tensor's name; of images the shard's number.
    pub name: String,
    /// A hash of type, shape and bytes; of the loss, its bits.
    pub hash: String,
}

/// A recording that is being made.
pub struct Recording<W> {
    name: String,
    to: Mutex<W>,
}

impl<W: Write> Recording<W> {
    /// A recording that is written as it is made. Errors are told with its `name`: a flag and a file.
    pub fn new(name: impl Display, to: W) -> Self {
        Self { name: name.to_string(), to: Mutex::new(to) }
    }

    /// Writes lines of entries.
    fn write(&self, lines: &str) -> io::Result<()> {
        let mut to = locked(&self.to);
        let written = to.write_all(lines.as_bytes()).and_then(|()| to.flush());
        written.map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", self.name)))
    }
}

/// A model whose steps are recorded. All ranks tell rank 0 what they have, and it writes.
pub struct Recorded<'a, M, W> {
    model: M,
    rank: usize,
    recording: Option<&'a Recording<W>>,
    step: Cell<usize>,
}

impl<'a, M, W> Recorded<'a, M, W> {
    /// Records a model's steps as those of `rank`; rank 0 has to have something to write them to.
    pub fn new(model: M, rank: usize, recording: Option<&'a Recording<W>>) -> Self {
        Self { model, rank, recording, step: Cell::new(0) }
    }
}

impl<M: Model, W: Write> Recorded<'_, M, W> {
    fn entry(&self, kind: &str, name: &str, hash: String) -> Entry {
        let (kind, name) = (kind.to_owned(), name.to_owned());
        Entry { step: self.step.get(), rank: self.rank, kind, name, hash }
    }

    fn tensor(&self, kind: &str, name: &str, tensor: &Tensor) -> candle_core::Result<Entry> {
        Ok(self.entry(kind, name, hash(tensor)?))
    }

    /// What there is before a step.
    fn before(&self, share: &LocalBatch) -> candle_core::Result<Vec<Entry>> {
        let mut entries = Vec::new();
        for (shard, batch) in self.model.hosts().held.zip(&share.shards) {
            entries.push(self.tensor("images", &format!("shard {shard}"), &batch.images)?);
        }
        entries.extend(self.of_weights()?);
        Ok(entries)
    }

    fn of_weights(&self) -> candle_core::Result<Vec<Entry>> {
        let mut entries = Vec::new();
        let Weights { parameters, buffers } = self.model.weights();
        // With local batch norms each rank has buffers of its own, and a run that goes on has not; but before anybody looks
        // at them all get rank 0's.
        let of_a_copy = self.rank > 0 && self.model.is_whole();
        let buffers: &[Named] = if of_a_copy { &[] } else { buffers };
        for (kind, all) in [("parameter", &parameters[..]), ("buffer", buffers)] {
            for Named { name, tensor } in all {
                entries.push(self.tensor(kind, name, tensor)?);
            }
        }
        Ok(entries)
    }

    /// What the step has made.
    fn after(&self, step: &Step) -> candle_core::Result<Vec<Entry>> {
        let mut entries =
            vec![self.entry("loss", "loss", format!("{:016x}", step.sums.loss.to_bits()))];
        let parameters = &self.model.weights().parameters;
        for (Named { name, .. }, gradient) in parameters.iter().zip(&step.gradients).rev() {
            entries.push(self.tensor("gradient", name, gradient)?);
        }
        Ok(entries)
    }

    /// Writes the entries of all ranks, which call this together.
    fn write(&self, entries: &[Entry]) -> Result<(), Error> {
        let mine = lines(entries).map_err(candle_core::Error::wrap)?;
        let all = match self.rank() {
            Some(rank) => text::gathered(&**rank, &mine)?,
            None => vec![mine],
        };
        if let Some(recording) = self.recording {
            all.iter()
                .try_for_each(|lines| recording.write(lines))
                .map_err(trainer::Error::from)?;
        }
        Ok(())
    }
}

impl<M: Model, W: Write> Model for Recorded<'_, M, W> {
    fn hosts(&self) -> Shards {
        self.model.hosts()
    }

    fn begins_after(&self, steps: usize) {
        self.step.set(steps);
        self.model.begins_after(steps);
    }

    fn ends(&self) -> Result<(), Error> {
        self.model.ends()?;
        self.step.set(self.step.get() + 1);
        self.write(&self.of_weights()?)
    }

    fn backward(&self, share: &LocalBatch) -> Result<Step, Error> {
        self.step.set(self.step.get() + 1);
        let mut entries = self.before(share)?;
        let step = self.model.backward(share)?;
        entries.extend(self.after(&step)?);
        self.write(&entries)?;
        Ok(step)
    }

    fn precision(&self) -> Precision {
        self.model.precision()
    }

    fn weights(&self) -> &Weights {
        self.model.weights()
    }

    fn rank(&self) -> Option<&SharedCommunicator> {
        self.model.rank()
    }

    fn is_whole(&self) -> bool {
        self.model.is_whole()
    }

    fn evaluate(&self, images: &Dataset) -> Result<Option<BatchSums>, Error> {
        self.model.evaluate(images)
    }
}

/// One line of JSON for each.
fn lines(entries: &[Entry]) -> serde_json::Result<String> {
    let mut lines = String::new();
    for entry in entries {
        lines.push_str(&serde_json::to_string(entry)?);
        lines.push('\n');
    }
    Ok(lines)
}

/// The first eight bytes of the hash of a tensor's type, shape and bytes.
fn hash(tensor: &Tensor) -> candle_core::Result<String> {
    let tensor = tensor.detach().to_device(&Device::Cpu)?;
    let hash = WeightsHash::new(&[(String::new(), tensor)])?;
    Ok(format!("{:x}", HexDisplay(&hash.bytes()[..8])))
}
