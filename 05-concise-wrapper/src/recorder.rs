//! `--record FILE`: a hash of every tensor in every step, for [`recording`](harness::recording).

use std::sync::Mutex;

use candle_core::Tensor;
use harness::lock::locked;
use harness::recording::Entry;
use harness::report::file::LazyFile;
use model_state::weights_hash::WeightsHash;

use crate::model::{Model, Progress};
use crate::{Error, text};

// ANCHOR: recorder
/// Returns an observer of [`train`](crate::train()) that records every step, if there is a recording. All ranks record
/// together. The observer fails when rank 0 cannot write the file, or another rank stops or stalls.
pub fn record<'a, M: Model>(
    model: &'a M,
    recording: Option<&'a Mutex<Option<LazyFile>>>,
) -> impl FnMut(Progress<'_>) -> Result<(), Error> {
    let rank = model.rank().map_or(0, |rank| rank.rank());
    let entry = move |step: usize, kind: &str, name: &str, hash: String| {
        let (kind, name) = (kind.to_owned(), name.to_owned());
        Entry { step, rank, kind, name, hash }
    };
    let (weights, mut weights_before) = (model.weights(), Vec::new());
    move |Progress { steps, last }| {
        let Some(recording) = recording else { return Ok(()) };
        let mut entries = Vec::new();
        if let Some((batch, step)) = last {
            for (shard, batch) in model.hosts().held.zip(&batch.shards) {
                let name = format!("shard {shard}");
                entries.push(entry(steps, "images", &name, hash(&batch.images)?));
            }
            entries.append(&mut weights_before);
            let loss = step.sums.clone().read()?.loss;
            entries.push(entry(steps, "loss", "loss", format!("{:016x}", loss.to_bits())));
            for (named, gradient) in weights.parameters.iter().zip(&step.gradients).rev() {
                entries.push(entry(steps, "gradient", &named.name, hash(gradient)?));
            }
        }
        // At the end, the weights after the last update.
        entries.append(&mut weights_before);
        let line =
            |entry| Ok(serde_json::to_string(entry).map_err(candle_core::Error::wrap)? + "\n");
        let mut lines = entries.iter().map(line).collect::<Result<String, Error>>()?;
        if let Some(rank) = model.rank() {
            lines = text::values_gathered(&**rank, &lines)?.concat();
        }
        // Ranks above 0 would wait for the lock of rank 0.
        if rank == 0
            && let Some(file) = locked(recording).as_mut()
        {
            file.append(lines.as_bytes()).map_err(trainer::Error::from)?;
        }
        // With local batch norms the ranks have different buffers, and before each evaluation all ranks get rank 0's.
        let buffers = if rank == 0 { &weights.buffers[..] } else { &[] };
        for (kind, all) in [("parameter", &weights.parameters[..]), ("buffer", buffers)] {
            for named in all {
                weights_before.push(entry(steps + 1, kind, &named.name, hash(&named.tensor)?));
            }
        }
        Ok(())
    }
}

/// Returns the first eight bytes of the hash of a tensor's type, shape and bytes.
fn hash(tensor: &Tensor) -> candle_core::Result<String> {
    let mut digits = format!("{:?}", WeightsHash::new(&[(String::new(), tensor.detach())])?);
    digits.truncate(16);
    Ok(digits)
}
// ANCHOR_END: recorder
