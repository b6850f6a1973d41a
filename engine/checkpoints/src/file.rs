//! One checkpoint: a safetensors file that is written whole or not at all, and checked before use.
//!
//! The metadata of the file has two texts: JSON and a digest. The digest is SHA-256 over all bytes of the file, with zeros in
//! place of the digest's own digits. So every flipped bit is found.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Display;
use std::ops::Range;
use std::path::Path;
use std::{fs, io};

use base16ct::HexDisplay;
use candle_core::{Device, Tensor};
use harness::records::TrainerState;
use harness::report::{counted, file};
use safetensors::SafeTensors;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::Error;

/// The version of the format. A file of another version is refused.
const FORMAT: u32 = 2;

/// The keys of the metadata.
const HEADER: &str = "checkpoint";
const DIGEST: &str = "sha256";

/// The length of a digest in hexadecimal digits.
const DIGITS: usize = 64;

/// The settings that decide the numbers of a run, as names and values, in the order in which they are compared.
///
/// Numbers are written so that equal texts mean equal numbers. The number of epochs is not among the settings: a run may
/// resume for longer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Configuration(pub Vec<(String, String)>);

impl Configuration {
    /// Appends settings.
    pub fn extend<'a>(&mut self, settings: impl IntoIterator<Item = (&'a str, String)>) {
        self.0.extend(settings.into_iter().map(|(name, value)| (name.to_owned(), value)));
    }

    /// Returns the first difference between a checkpoint's settings and these, in words. A missing setting has the value
    /// `none`.
    pub fn difference(&self, checkpoint: &Self) -> Option<String> {
        self.0.iter().chain(&checkpoint.0).find_map(|(name, _)| {
            let (there, here) = (checkpoint.value(name), self.value(name));
            (there != here).then(|| format!("is of {name} {there}, this run's is {here}"))
        })
    }

    fn value(&self, name: &str) -> &str {
        self.0.iter().find(|(own, _)| own == name).map_or("none", |(_, value)| value)
    }
}

#[derive(Serialize, Deserialize)]
struct Header {
    format: u32,
    state: TrainerState,
    configuration: Configuration,
}

/// The content of a checkpoint: the state of the training loop, the settings of its run, and the tensors, in CPU memory.
pub(crate) type Checkpoint = (TrainerState, Configuration, BTreeMap<String, Tensor>);

// ANCHOR: write
/// Writes a checkpoint. The tensors may be on any device. Fails when a tensor cannot be read or the file cannot be written.
/// Then no part of the file is left behind.
pub(crate) fn write(
    path: &Path,
    state: &TrainerState,
    configuration: &Configuration,
    tensors: &[(String, Tensor)],
) -> Result<(), Error> {
    let header =
        Header { format: FORMAT, state: state.clone(), configuration: configuration.clone() };
    let content = || -> io::Result<Vec<u8>> {
        let on_cpu = tensors.iter().map(|(_, tensor)| tensor.to_device(&Device::Cpu));
        let on_cpu = on_cpu.collect::<Result<Vec<_>, _>>().map_err(io::Error::other)?;
        let views = tensors.iter().map(|(name, _)| name).zip(&on_cpu);
        let texts = [(HEADER, serde_json::to_string(&header)?), (DIGEST, "0".repeat(DIGITS))];
        let metadata = HashMap::from(texts.map(|(key, text)| (key.to_owned(), text)));
        let mut bytes = safetensors::serialize(views, Some(metadata)).map_err(io::Error::other)?;
        let place = place_of_digest(&bytes).ok_or(io::ErrorKind::InvalidData)?;
        let digest = digest(&bytes, &place);
        bytes[place].copy_from_slice(digest.as_bytes());
        Ok(bytes)
    };
    let written = content().and_then(|bytes| file::write(path, |file| file.write_all(&bytes)));
    written.map_err(Error::io("write", path))
}
// ANCHOR_END: write

/// Reads a checkpoint. Fails when the file cannot be read, is [damaged](Error::Damaged), or has another version of the
/// format ([`Error::Refused`]).
pub(crate) fn read(path: &Path) -> Result<Checkpoint, Error> {
    let damaged =
        |reason: &dyn Display| Error::Damaged { path: path.to_owned(), reason: reason.to_string() };
    // Before the file is opened: opening a FIFO waits for its writer.
    if !path.metadata().map_err(Error::io("read", path))?.is_file() {
        return Err(damaged(&"it is no file"));
    }
    let bytes = fs::read(path).map_err(Error::io("read", path))?;
    let (_, metadata) = SafeTensors::read_metadata(&bytes).map_err(|error| {
        damaged(&format_args!("it has {}: {error}", counted(bytes.len(), "byte")))
    })?;
    let text = metadata.metadata().as_ref().and_then(|texts| texts.get(HEADER));
    let Some(text) = text else {
        return Err(damaged(&"it is a safetensors file, but no checkpoint of this program"));
    };
    let intact = place_of_digest(&bytes)
        .map(|place| digest(&bytes, &place).as_bytes() == &bytes[place.clone()]);
    match (intact, format(text)) {
        (Some(true), Some(FORMAT)) => {}
        // Format 1 has other digests.
        (Some(true) | None, Some(found)) if found != FORMAT => {
            return Err(Error::Refused(format!(
                "checkpoint {} is of format {found}, this program reads format {FORMAT}",
                path.display()
            )));
        }
        _ => return Err(damaged(&"its content is not the content that was written")),
    }
    let Header { state, configuration, .. } =
        serde_json::from_str(text).map_err(|error| damaged(&error))?;
    let tensors = candle_core::safetensors::load_buffer(&bytes, &Device::Cpu)
        .map_err(|error| damaged(&error))?;
    Ok((state, configuration, tensors.into_iter().collect()))
}

/// The version of a header of any version.
fn format(text: &str) -> Option<u32> {
    #[derive(Deserialize)]
    struct Format {
        format: u32,
    }
    serde_json::from_str(text).ok().map(|Format { format }| format)
}

/// The position of the digest's digits in a file. They follow the first key in quotes: a text that contains the key has
/// escaped quotes.
fn place_of_digest(bytes: &[u8]) -> Option<Range<usize>> {
    let key = format!("\"{DIGEST}\":\"");
    let begin = bytes.windows(key.len()).position(|window| window == key.as_bytes())? + key.len();
    (begin + DIGITS <= bytes.len()).then_some(begin..begin + DIGITS)
}

/// The digest of a file, in hexadecimal digits.
fn digest(bytes: &[u8], place: &Range<usize>) -> String {
    let hash = Sha256::new()
        .chain_update(&bytes[..place.start])
        .chain_update([b'0'; DIGITS])
        .chain_update(&bytes[place.end..]);
    format!("{:x}", HexDisplay(&hash.finalize()))
}

/// Returns the first difference between the tensors of a checkpoint and the `expected` ones, in words: a name, a type or a
/// shape.
pub(crate) fn difference(
    expected: &[(String, Tensor)],
    checkpoint: &BTreeMap<String, Tensor>,
) -> Option<String> {
    let expected: BTreeMap<_, _> = expected.iter().map(|(name, tensor)| (name, tensor)).collect();
    let mut names = expected.keys().copied().chain(checkpoint.keys());
    let kind = |tensor: Option<&Tensor>| match tensor {
        Some(tensor) => format!("{:?} {:?}", tensor.dtype(), tensor.dims()),
        None => "none".to_owned(),
    };
    names.find_map(|name| {
        let (there, here) = (kind(checkpoint.get(name)), kind(expected.get(name).copied()));
        (there != here).then(|| format!("has tensor {name} {there}, this run's network has {here}"))
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use harness::random;
    use harness::records::{BatchSums, EpochRecord};
    use rand::RngExt as _;

    use super::*;

    fn tensors() -> Vec<(String, Tensor)> {
        let tensor = Tensor::new(&[1.0f32, -0.0, 3e-40], &Device::Cpu).unwrap();
        let scalar = Tensor::new(0.1f64, &Device::Cpu).unwrap();
        vec![("b".to_owned(), tensor), ("a".to_owned(), scalar)]
    }

    fn state(loss: f64) -> TrainerState {
        let record =
            EpochRecord { epoch: 1, part: 1.0, test_loss: loss / 3.0, ..Default::default() };
        TrainerState {
            records: vec![record],
            batches: 2,
            sums: BatchSums { loss, correct: 3, samples: 14, interrupts: 0 },
            elapsed: Duration::from_micros(1_234_567),
        }
    }

    /// A name and a value that look like the metadata of the file.
    fn configuration() -> Configuration {
        Configuration(vec![("sha256".to_owned(), "\"sha256\":\"quoted\"".to_owned())])
    }

    fn written(path: &Path) {
        write(path, &state(0.1), &configuration(), &tensors()).unwrap();
    }

    #[test]
    fn the_first_difference_is_reported() {
        let of = |entries: &[(&str, &str)]| {
            let mut configuration = Configuration::default();
            configuration.extend(entries.iter().map(|(name, value)| (*name, (*value).to_owned())));
            configuration
        };
        let run = of(&[("model", "LeNet"), ("batch size", "256"), ("seed", "1")]);
        assert_eq!(run.difference(&run), None);
        let difference = |checkpoint: &[(&str, &str)]| run.difference(&of(checkpoint)).unwrap();
        let other = [("model", "LeNet"), ("batch size", "128"), ("seed", "2")];
        assert_eq!(difference(&other), "is of batch size 128, this run's is 256");
        assert_eq!(difference(&other[..1]), "is of batch size none, this run's is 256");
        let more = [("model", "LeNet"), ("batch size", "256"), ("seed", "1"), ("new", "3")];
        assert_eq!(difference(&more), "is of new 3, this run's is none");
    }

    #[test]
    fn every_number_comes_back_to_the_last_bit() {
        let mut generator = random::generator(1, "headers");
        for _ in 0..10_000 {
            let state = state(100.0 * generator.random::<f64>());
            let text = serde_json::to_string(&state).unwrap();
            assert_eq!(serde_json::from_str::<TrainerState>(&text).unwrap(), state);
        }
    }

    #[test]
    fn a_position_comes_back_without_its_interrupt() {
        let mut interrupted = state(0.1);
        interrupted.sums.interrupts = 1;
        let text = serde_json::to_string(&interrupted).unwrap();
        assert_eq!(serde_json::from_str::<TrainerState>(&text).unwrap(), state(0.1));
        let wrong = text.replace("\"nanos\":234567000", "\"nanos\":-1");
        assert_ne!(wrong, text);
        serde_json::from_str::<TrainerState>(&wrong).unwrap_err();
    }

    #[test]
    fn what_was_written_is_read_and_no_other_byte_sequence_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("checkpoint");
        written(&path);
        let (position, settings, values) = read(&path).unwrap();
        assert_eq!((position, settings), (state(0.1), configuration()));
        assert_eq!(difference(&tensors(), &values), None);
        let bits: Vec<u32> =
            values["b"].to_vec1::<f32>().unwrap().iter().map(|v| v.to_bits()).collect();
        assert_eq!(bits, [1.0, -0.0, 3e-40].map(f32::to_bits));

        let bytes = fs::read(&path).unwrap();
        let refused = |bytes: &[u8], change: &str| {
            fs::write(&path, bytes).unwrap();
            let error = read(&path).expect_err(change);
            assert!(matches!(error, Error::Damaged { .. }), "{change}: {error}");
        };
        for length in 0..bytes.len() {
            refused(&bytes[..length], &format!("{length} bytes"));
        }
        for bit in 0..8 * bytes.len() {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            refused(&flipped, &format!("bit {bit}"));
        }
    }

    #[test]
    fn another_format_is_refused_by_name_even_if_it_looks_otherwise() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("checkpoint");
        let error = |metadata: &[(&str, String)], digested: bool| {
            let metadata = metadata.iter().map(|(key, text)| ((*key).to_owned(), text.clone()));
            let views = tensors();
            let views = views.iter().map(|(name, tensor)| (name, tensor));
            let mut bytes = safetensors::serialize(views, Some(metadata.collect())).unwrap();
            if let Some(place) = place_of_digest(&bytes).filter(|_| digested) {
                let digest = digest(&bytes, &place);
                bytes[place].copy_from_slice(digest.as_bytes());
            }
            fs::write(&path, bytes).unwrap();
            read(&path).unwrap_err().to_string()
        };
        let text = |format: u32| format!(r#"{{"format":{format},"new":"fields"}}"#);
        let zeros = || "0".repeat(DIGITS);
        let later = error(&[(HEADER, text(3)), (DIGEST, zeros())], true);
        assert_eq!(
            later,
            format!("checkpoint {} is of format 3, this program reads format 2", path.display())
        );
        let earlier = error(&[(HEADER, text(1)), ("checkpoint-sha256", zeros())], true);
        assert!(earlier.ends_with("is of format 1, this program reads format 2"), "{earlier}");
        let without = error(&[(HEADER, text(2))], true);
        assert!(without.ends_with("its content is not the content that was written"), "{without}");
        let wrong = error(&[(HEADER, text(3)), (DIGEST, zeros())], false);
        assert!(wrong.ends_with("its content is not the content that was written"), "{wrong}");
        let fields = error(&[(HEADER, text(2)), (DIGEST, zeros())], true);
        assert!(fields.contains(" is damaged: ") && fields.contains("field"), "{fields}");
        let foreign = error(&[], true);
        assert!(foreign.ends_with("but no checkpoint of this program"), "{foreign}");
    }

    #[test]
    fn other_tensors_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("checkpoint");
        let whole = Tensor::new(&[1u32, 2], &Device::Cpu).unwrap();
        write(&path, &state(0.1), &configuration(), &[("a".to_owned(), whole)]).unwrap();
        let (.., values) = read(&path).unwrap();
        let found = difference(&tensors(), &values).unwrap();
        assert_eq!(found, "has tensor a U32 [2], this run's network has F64 []");
        written(&path);
        let (.., mut values) = read(&path).unwrap();
        values.remove("b");
        let missing = difference(&tensors(), &values).unwrap();
        assert_eq!(missing, "has tensor b none, this run's network has F32 [3]");
        assert!(matches!(read(&folder.path().join("nothing")), Err(Error::Io { .. })));
    }
}
