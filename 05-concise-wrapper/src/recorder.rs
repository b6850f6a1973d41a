//! `--record FILE`: a hash of every tensor in every step, for [`recording`](crate::recording).

use std::io::Write;
use std::sync::Mutex;

use base16ct::HexDisplay;
use candle_core::{Device, Tensor};
use harness::lock::locked;
use harness::recording::Entry;
use ops::weights_hash::WeightsHash;

use crate::model::{Model, Progress};
use crate::weights::Named;
use crate::{Error, text};

// ANCHOR: recorder
/// Records the steps of one rank. All ranks record together, and rank 0 writes.
pub struct Recorder<'a, M, W> {
    model: &'a M,
    /// The file, on rank 0 only. The other ranks would wait for its lock.
    to: Option<&'a Mutex<W>>,
    /// The weights before the next step.
    weights: Vec<Entry>,
}

impl<'a, M: Model, W: Write> Recorder<'a, M, W> {
    /// Makes a recorder. Rank 0 needs a file to write to.
    pub fn new(model: &'a M, to: Option<&'a Mutex<W>>) -> Self {
        let recorder = Self { model, to, weights: Vec::new() };
        Self { to: to.filter(|_| recorder.rank() == 0), ..recorder }
    }

    /// Records a step of [`train`](crate::train()). All ranks call this together. Fails when the recording cannot be
    /// written, or another rank stops or stalls.
    pub fn step(&mut self, Progress { steps, last }: Progress<'_>) -> Result<(), Error> {
        let weights = self.model.weights();
        if let Some((batch, step)) = last {
            let mut entries = Vec::new();
            for (shard, batch) in self.model.hosts().held.zip(&batch.shards) {
                let name = format!("shard {shard}");
                entries.push(self.entry(steps, "images", &name, hash(&batch.images)?));
            }
            entries.append(&mut self.weights);
            let loss = step.sums.clone().read()?.loss;
            entries.push(self.entry(steps, "loss", "loss", format!("{:016x}", loss.to_bits())));
            for (named, gradient) in weights.parameters.iter().zip(&step.gradients).rev() {
                entries.push(self.entry(steps, "gradient", &named.name, hash(gradient)?));
            }
            self.write(&entries)?;
        }
        // With local batch norms the ranks have different buffers, and before each evaluation all ranks get rank 0's.
        let buffers = if self.rank() == 0 { &weights.buffers[..] } else { &[] };
        self.weights.clear();
        for (kind, all) in [("parameter", &weights.parameters[..]), ("buffer", buffers)] {
            for Named { name, tensor } in all {
                self.weights.push(self.entry(steps + 1, kind, name, hash(tensor)?));
            }
        }
        Ok(())
    }

    /// Records the final weights. All ranks call this together, after the last step.
    pub fn end(self) -> Result<(), Error> {
        self.write(&self.weights)
    }

    fn rank(&self) -> usize {
        self.model.rank().map_or(0, |rank| rank.rank())
    }

    fn entry(&self, step: usize, kind: &str, name: &str, hash: String) -> Entry {
        Entry { step, rank: self.rank(), kind: kind.to_owned(), name: name.to_owned(), hash }
    }

    /// Writes the entries of all ranks: one line of JSON for each.
    fn write(&self, entries: &[Entry]) -> Result<(), Error> {
        let mut mine = String::new();
        for entry in entries {
            mine += &serde_json::to_string(entry).map_err(candle_core::Error::wrap)?;
            mine.push('\n');
        }
        let all = match self.model.rank() {
            Some(rank) => text::gathered(&**rank, &mine)?.concat(),
            None => mine,
        };
        let write = |to: &Mutex<W>| locked(to).write_all(all.as_bytes());
        Ok(self.to.map_or(Ok(()), write).map_err(trainer::Error::from)?)
    }
}
// ANCHOR_END: recorder

/// Returns the first eight bytes of the hash of a tensor's type, shape and bytes.
fn hash(tensor: &Tensor) -> candle_core::Result<String> {
    let tensor = tensor.detach().to_device(&Device::Cpu)?;
    let hash = WeightsHash::new(&[(String::new(), tensor)])?;
    Ok(format!("{:x}", HexDisplay(&hash.bytes()[..8])))
}
