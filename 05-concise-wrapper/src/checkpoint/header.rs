//! What a checkpoint says about itself, in the metadata of a safetensors file.
//!
//! Two digests guard a checkpoint. The weights hash in the header covers the tensors. The second covers the
//! header itself, and names, types and shapes of the tensors: a flipped bit in the step counter would do as
//! much harm as one in a weight.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use harness::records::{BatchSums, EpochRecord, TrainerState};
use ops::weights_hash::WeightsHash;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::Configuration;

/// The longest header that is read, in bytes. One epoch's record takes about 250.
pub(super) const MAX_HEADER: usize = 16 << 20;

/// The version of what is written here. Another one is refused.
pub(super) const FORMAT: u32 = 1;

/// The metadata's keys.
const HEADER: &str = "checkpoint";
const DIGEST: &str = "checkpoint-sha256";

/// Type and shape of each tensor, as text, by name.
pub(super) type Table = BTreeMap<String, String>;

/// All of a checkpoint but its tensors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Header {
    /// The version of this structure.
    format: u32,
    /// The version of the program that wrote it, for the curious.
    program: String,
    /// Steps since the beginning of the run.
    pub(super) step: usize,
    /// The epoch that is under way, counted from 1.
    pub(super) epoch: usize,
    /// Batches done of it.
    pub(super) batches: usize,
    /// What they saw.
    sums: Sums,
    /// The epochs before.
    records: Vec<EpochRecord>,
    /// The settings of the run, its seed among them.
    pub(super) configuration: Configuration,
    /// The weights hash of all tensors, all digits.
    pub(super) tensors: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Sums {
    loss: f64,
    correct: u64,
    samples: u64,
    seconds: f64,
}

/// Why a header cannot be used.
#[derive(Debug)]
pub(super) enum Refusal {
    /// It is not what was written.
    Damaged(String),
    /// It has another format.
    Format(u32),
}

impl Header {
    pub(super) fn new(
        position: &TrainerState,
        batches_per_epoch: usize,
        configuration: &Configuration,
        tensors: WeightsHash,
    ) -> Self {
        let BatchSums { loss, correct, samples, .. } = position.sums;
        Self {
            format: FORMAT,
            program: env!("CARGO_PKG_VERSION").to_owned(),
            step: position.steps(batches_per_epoch),
            epoch: position.epoch(),
            batches: position.batches,
            sums: Sums { loss, correct, samples, seconds: position.elapsed.as_secs_f64() },
            records: position.records.clone(),
            configuration: configuration.clone(),
            tensors: format!("{tensors:?}"),
        }
    }

    /// Where the run goes on.
    ///
    /// # Errors
    ///
    /// When the numbers contradict each other: the message says which.
    pub(super) fn position(&self, batches_per_epoch: usize) -> Result<TrainerState, String> {
        let Sums { loss, correct, samples, seconds } = self.sums;
        let position = TrainerState {
            records: self.records.clone(),
            batches: self.batches,
            sums: BatchSums { loss, correct, samples, interrupts: 0 },
            elapsed: Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())?,
        };
        let Self { step, epoch, batches, .. } = self;
        let right = *batches <= batches_per_epoch
            && *epoch == position.epoch()
            && *step == position.steps(batches_per_epoch);
        if !right {
            return Err(format!(
                "step {step} is not that of batch {batches} of {batches_per_epoch} in epoch {epoch}"
            ));
        }
        Ok(position)
    }

    /// The header as the metadata of a file with these tensors.
    pub(super) fn to_metadata(&self, table: &Table) -> serde_json::Result<HashMap<String, String>> {
        let text = serde_json::to_string(self)?;
        let digest = digest(&text, table);
        Ok([(HEADER, text), (DIGEST, digest)].map(|(key, text)| (key.to_owned(), text)).into())
    }

    /// The header that a file's metadata hold.
    pub(super) fn from_metadata(
        metadata: &HashMap<String, String>,
        table: &Table,
    ) -> Result<Self, Refusal> {
        #[derive(Deserialize)]
        struct Format {
            format: u32,
        }
        let damaged = |error: serde_json::Error| Refusal::Damaged(format!("its header: {error}"));
        let (Some(text), Some(expected)) = (metadata.get(HEADER), metadata.get(DIGEST)) else {
            let told = "it is a safetensors file, but no checkpoint of this program";
            return Err(Refusal::Damaged(told.to_owned()));
        };
        if digest(text, table) != *expected {
            return Err(Refusal::Damaged("its header is not the one that was written".to_owned()));
        }
        // First, as a later format may look otherwise.
        let Format { format } = serde_json::from_str(text).map_err(damaged)?;
        if format != FORMAT {
            return Err(Refusal::Format(format));
        }
        serde_json::from_str(text).map_err(damaged)
    }
}

/// SHA-256 over a header and the table of its tensors.
fn digest(text: &str, table: &Table) -> String {
    let mut hash = Sha256::new();
    // Lengths go in before what they measure, so that no two spell the same bytes.
    let parts = table.iter().flat_map(|(name, kind)| [name.as_str(), kind.as_str()]);
    for part in [text].into_iter().chain(parts) {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part.as_bytes());
    }
    format!("{:?}", WeightsHash::from(<[u8; 32]>::from(hash.finalize())))
}

#[cfg(test)]
mod tests {
    use harness::random;

    use super::*;

    fn header(loss: f64) -> Header {
        let record =
            EpochRecord { epoch: 1, part: 1.0, test_loss: loss / 3.0, ..Default::default() };
        let position = TrainerState {
            records: vec![record],
            batches: 2,
            sums: BatchSums { loss, correct: 3, samples: 14, interrupts: 1 },
            elapsed: Duration::from_millis(1234),
        };
        Header::new(&position, 5, &Configuration::default(), WeightsHash::from([7; 32]))
    }

    #[test]
    fn every_number_comes_back_to_the_last_bit() {
        use rand::RngExt as _;

        let mut generator = random::generator(1, "headers");
        let table = Table::new();
        for _ in 0..10_000 {
            let header = header(100.0 * generator.random::<f64>());
            let read = Header::from_metadata(&header.to_metadata(&table).unwrap(), &table).unwrap();
            assert_eq!(read, header);
        }
    }

    #[test]
    fn a_position_comes_back_without_its_interrupt() {
        let position = header(0.1).position(5).unwrap();
        assert_eq!((position.steps(5), position.epoch(), position.batches), (7, 2, 2));
        let sums = BatchSums { loss: 0.1, correct: 3, samples: 14, interrupts: 0 };
        assert_eq!(position.sums, sums);
        assert_eq!(position.elapsed, Duration::from_millis(1234));
    }

    #[test]
    fn numbers_that_contradict_each_other_are_refused() {
        header(0.1).position(6).unwrap_err();
        let wrong = |change: &dyn Fn(&mut Header)| {
            let mut header = header(0.1);
            change(&mut header);
            header.position(5).unwrap_err()
        };
        wrong(&|header| header.step += 1);
        wrong(&|header| header.epoch += 1);
        wrong(&|header| header.records.clear());
        wrong(&|header| header.sums.seconds = -1.0);
        wrong(&|header| header.sums.seconds = 1e300);
        let told = wrong(&|header| (header.step, header.batches) = (11, 6));
        assert_eq!(told, "step 11 is not that of batch 6 of 5 in epoch 2");
    }

    #[test]
    fn another_format_is_told_even_if_it_looks_otherwise() {
        let table = Table::new();
        let text = r#"{"format":2,"new":"fields"}"#.to_owned();
        let mut metadata = HashMap::from([(DIGEST.to_owned(), digest(&text, &table))]);
        metadata.insert(HEADER.to_owned(), text);
        let refusal = Header::from_metadata(&metadata, &table).unwrap_err();
        assert!(matches!(refusal, Refusal::Format(2)), "{refusal:?}");
    }
}
