//! One checkpoint: a safetensors file that is written whole or not at all, and checked before use.
//!
//! The metadata of the file has two texts: a header in JSON, and a digest. The digest is SHA-256 over the header and over the
//! name, type, shape and bytes of every tensor, so every flipped bit is found.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Display;
use std::path::Path;
use std::{fs, io};

use base16ct::HexDisplay;
use candle_core::safetensors::load_buffer;
use candle_core::{DType, Device, Tensor};
use harness::records::TrainerState;
use harness::report::{counted, file};
use safetensors::tensor::{SafeTensors, View as _};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::Error;

/// The version of the format. A file of another version is refused.
const FORMAT: u64 = 3;

/// The keys of the metadata. Formats 1 and 2 have other digests, under other keys.
const HEADER: &str = "checkpoint";
const DIGEST: &str = "digest";

/// The settings that decide the numbers of a run, as names and values, in the order in which they are compared. Equal texts
/// mean equal numbers. The number of epochs is not among the settings: a run may resume for longer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Configuration(pub Vec<(String, String)>);

impl Configuration {
    /// Appends settings.
    pub fn extend<'a>(&mut self, settings: impl IntoIterator<Item = (&'a str, String)>) {
        self.0.extend(settings.into_iter().map(|(name, value)| (name.to_owned(), value)));
    }

    /// Returns the first difference between a checkpoint's settings and these, in words, with the flag and the value that resume its
    /// run. A missing setting is `none`. The program multiplies the batch size and the rate of the flags by `scale`.
    pub fn difference(&self, checkpoint: &Self, scale: usize) -> Option<String> {
        self.0.iter().chain(&checkpoint.0).find_map(|(name, _)| {
            let (there, here) = (checkpoint.value(name), self.value(name));
            let remedy = || remedy(name, there, scale).map(|it| format!(": resume {it}"));
            let told = || format!("is of {name} {there}, this run's is {here}");
            (there != here).then(|| told() + &remedy().unwrap_or_default())
        })
    }

    fn value(&self, name: &str) -> &str {
        self.0.iter().find(|(own, _)| own == name).map_or("none", |(_, value)| value)
    }
}

/// The flag, with its value, that gives a run this value of a setting, for settings with a flag of their own.
fn remedy(name: &str, value: &str, scale: usize) -> Option<String> {
    const FLAGS: [(&str, &str); 10] = [
        ("batch size", "--batch-size"),
        ("learning rate", "--lr"),
        ("seed", "--seed"),
        ("dtype", "--dtype"),
        ("precision", "--dtype"),
        ("training images", "--train-size"),
        ("warm-up", "--warm-up"),
        ("momentum", "--momentum"),
        ("weight decay", "--weight-decay"),
        ("shards", "--shards"),
    ];
    let (_, flag) = FLAGS.iter().find(|(setting, _)| *setting == name)?;
    let typed = match name {
        "batch size" | "learning rate" if scale > 1 => {
            let of_one = value.parse::<f64>().ok()? / scale as f64;
            let is_whole = name == "learning rate" || of_one.fract() == 0.0;
            // Display prints a whole number without a point, and the shortest text of any other.
            if is_whole { of_one.to_string() } else { format!("{value} --scale none") }
        }
        _ => value.to_owned(),
    };
    match name {
        _ if value != "none" => Some(format!("with {flag} {typed}")),
        "shards" => Some(format!("without {flag}")),
        // Another optimizer has this setting.
        _ => None,
    }
}

#[derive(Serialize, Deserialize)]
struct Header {
    format: u64,
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
) -> io::Result<()> {
    let (state, configuration) = (state.clone(), configuration.clone());
    let header = serde_json::to_string(&Header { format: FORMAT, state, configuration })?;
    let on_cpu =
        |(name, tensor): &(String, Tensor)| Ok((name.clone(), tensor.to_device(&Device::Cpu)?));
    let on_cpu = tensors.iter().map(on_cpu).collect::<candle_core::Result<BTreeMap<_, _>>>();
    let on_cpu = on_cpu.map_err(io::Error::other)?;
    let texts = [(DIGEST, digest(&header, &on_cpu)), (HEADER, header)];
    let metadata = HashMap::from(texts.map(|(key, text)| (key.to_owned(), text)));
    let bytes = safetensors::serialize(&on_cpu, Some(metadata)).map_err(io::Error::other)?;
    file::write(path, |file| file.write_all(&bytes))
}
// ANCHOR_END: write

/// Refuses the tensors of a file if one is infinite or NaN: an earlier version may have written them after the weights ran away.
pub fn read_finite<'a>(
    path: &Path,
    tensors: impl IntoIterator<Item = (&'a String, &'a Tensor)>,
) -> Result<(), Error> {
    match not_finite(tensors) {
        Ok(None) => Ok(()),
        Ok(Some(name)) => Err(Error::damaged(path, format_args!("{name} is not finite"))),
        Err(error) => Err(Error::damaged(path, error)),
    }
}

/// Returns the name of the first tensor with a number that is infinite or NaN. The tensors may be on any device.
pub(crate) fn not_finite<'a>(
    tensors: impl IntoIterator<Item = (&'a String, &'a Tensor)>,
) -> candle_core::Result<Option<&'a str>> {
    for (name, tensor) in tensors {
        // Of a finite number the product is zero, and of any other it is NaN. The device adds the products.
        let has_numbers = tensor.dtype().is_float() && tensor.elem_count() > 0;
        if has_numbers {
            let products = tensor.detach().affine(0.0, 0.0)?.sum_all()?;
            if products.to_dtype(DType::F64)?.to_scalar::<f64>()?.is_nan() {
                return Ok(Some(name));
            }
        }
    }
    Ok(None)
}

/// Reads a checkpoint. Fails when the file cannot be read or is damaged, and refuses another version of the format.
pub(crate) fn read(path: &Path) -> Result<Checkpoint, Error> {
    let damaged = |reason: &dyn Display| Error::damaged(path, reason);
    // Before the file is opened: opening a FIFO waits for its writer.
    if !path.metadata().map_err(Error::io("read", path))?.is_file() {
        return Err(damaged(&"it is no file"));
    }
    let bytes = fs::read(path).map_err(Error::io("read", path))?;
    let size = counted(bytes.len(), "byte");
    let foreign = |error: &dyn Display| damaged(&format_args!("it has {size}: {error}"));
    let (_, metadata) = SafeTensors::read_metadata(&bytes).map_err(|error| foreign(&error))?;
    let tensors = load_buffer(&bytes, &Device::Cpu).map_err(|error| foreign(&error))?;
    let tensors: BTreeMap<_, _> = tensors.into_iter().collect();
    let text = |key| metadata.metadata().as_ref()?.get(key);
    let Some(header) = text(HEADER) else {
        return Err(damaged(&"it is a safetensors file, but no checkpoint of this program"));
    };
    let intact = text(DIGEST).map(|written| *written == digest(header, &tensors));
    let value = serde_json::from_str::<Value>(header);
    let format = value.ok().and_then(|header| header["format"].as_u64());
    match (intact, format) {
        (Some(true), Some(FORMAT)) => {}
        (Some(true) | None, Some(found)) if found != FORMAT => {
            return Err(Error::Refused(format!(
                "checkpoint {} is of format {found}, this program reads format {FORMAT}",
                path.display()
            )));
        }
        _ => return Err(damaged(&"its content is not the content that was written")),
    }
    read_finite(path, &tensors)?;
    let Header { state, configuration, .. } =
        serde_json::from_str(header).map_err(|error| damaged(&error))?;
    Ok((state, configuration, tensors))
}

/// The digest of a header and of tensors, in hexadecimal digits.
fn digest(header: &str, tensors: &BTreeMap<String, Tensor>) -> String {
    let mut hash = Sha256::new();
    // With their lengths, no two lists of texts have the same bytes.
    let mut add = |bytes: &[u8]| {
        hash.update((bytes.len() as u64).to_le_bytes());
        hash.update(bytes);
    };
    add(header.as_bytes());
    for (name, tensor) in tensors {
        add(name.as_bytes());
        add(format!("{:?} {:?}", tensor.dtype(), tensor.shape()).as_bytes());
        add(&tensor.data());
    }
    format!("{:x}", HexDisplay(&hash.finalize()))
}

/// Takes the values of a run's tensors out of the checkpoint at `path`, in order. Refuses other tensors, with the first difference.
pub fn take(
    path: &Path,
    tensors: &[(String, Tensor)],
    mut values: BTreeMap<String, Tensor>,
) -> Result<Vec<Tensor>, Error> {
    let kind = |it: &Tensor| format!("{:?} {:?}", it.dtype(), it.dims());
    let here: BTreeMap<_, _> = tensors.iter().map(|(name, it)| (name, kind(it))).collect();
    let there: BTreeMap<_, _> = values.iter().map(|(name, it)| (name, kind(it))).collect();
    for name in here.keys().chain(there.keys()) {
        let [there, here] = [&there, &here].map(|of| of.get(name).map_or("none", String::as_str));
        if there != here {
            let difference = format!("has tensor {name} {there}, this run's network has {here}");
            return Err(Error::Refused(format!("checkpoint {} {difference}", path.display())));
        }
    }
    Ok(tensors.iter().filter_map(|(name, _)| values.remove(name)).collect())
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
        assert_eq!(run.difference(&run, 1), None);
        let difference = |checkpoint: &[(&str, &str)]| run.difference(&of(checkpoint), 1).unwrap();
        let other = [("model", "LeNet"), ("batch size", "128"), ("seed", "2")];
        assert_eq!(
            difference(&other),
            "is of batch size 128, this run's is 256: resume with --batch-size 128"
        );
        assert_eq!(difference(&other[..1]), "is of batch size none, this run's is 256");
        let more = [("model", "LeNet"), ("batch size", "256"), ("seed", "1"), ("new", "3")];
        assert_eq!(difference(&more), "is of new 3, this run's is none");
    }

    /// With three devices under the linear rule, a user types a third of the batch and of the rate.
    #[test]
    fn a_difference_names_the_flag_and_the_value_that_a_user_types() {
        for (name, value, scale, expected) in [
            ("batch size", "48", 1, Some("with --batch-size 48")),
            ("batch size", "48", 3, Some("with --batch-size 16")),
            ("batch size", "47", 3, Some("with --batch-size 47 --scale none")),
            ("learning rate", "0.3", 1, Some("with --lr 0.3")),
            ("learning rate", "0.25", 2, Some("with --lr 0.125")),
            ("seed", "5", 3, Some("with --seed 5")),
            ("precision", "bf16", 3, Some("with --dtype bf16")),
            ("training images", "512", 2, Some("with --train-size 512")),
            ("shards", "8", 1, Some("with --shards 8")),
            ("shards", "none", 1, Some("without --shards")),
            ("momentum", "none", 1, None),
            ("model", "LeNet", 1, None),
        ] {
            assert_eq!(remedy(name, value, scale).as_deref(), expected, "{name} {value} {scale}");
        }
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
        take(&path, &tensors(), values.clone()).unwrap();
        let bits: Vec<u32> =
            values["b"].to_vec1::<f32>().unwrap().iter().map(|v| v.to_bits()).collect();
        assert_eq!(bits, [1.0, -0.0, 3e-40].map(f32::to_bits));

        let bytes = fs::read(&path).unwrap();
        let refused = |bytes: &[u8], change: &str| {
            fs::write(&path, bytes).unwrap();
            let error = read(&path).expect_err(change);
            assert!(error.to_string().contains(" is damaged: "), "{change}: {error}");
        };
        for length in 0..bytes.len() {
            refused(&bytes[..length], &format!("{length} bytes"));
        }
        refused(&[&bytes[..], b" "].concat(), "a byte more");
        refused(&vec![0; bytes.len()], "zeros");
        let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let hole = [&bytes[..header], &vec![0; bytes.len() - header]].concat();
        refused(&hole, "a header without what follows");
        for bit in 0..8 * bytes.len() {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            refused(&flipped, &format!("bit {bit}"));
        }
    }

    #[test]
    fn foreign_files_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("checkpoint");
        let with_header = |length: u64, text: &[u8]| [&length.to_le_bytes()[..], text].concat();
        let json = |text: &str| with_header(text.len() as u64, text.as_bytes());
        let giant =
            r#"{"a":{"dtype":"F32","shape":[4000000000,4000000000],"data_offsets":[0,16]}}"#;
        let long =
            r#"{"a":{"dtype":"F32","shape":[250000000000],"data_offsets":[0,1000000000000]}}"#;
        for (content, bytes) in [
            ("text", b"Dear reader, this is no checkpoint.".to_vec()),
            ("another safetensors file", safetensors::serialize(tensors(), None).unwrap()),
            ("an endless header", with_header(u64::MAX, b"{}")),
            ("a header of gigabytes", with_header(1 << 33, b"{}")),
            ("a header as long as the file", with_header(10, b"{}")),
            ("no tensors", json("{}")),
            ("no JSON", json("}{")),
            ("no text", json("\u{0}")),
            ("a shape that overflows", json(giant)),
            ("a terabyte", json(long)),
            ("deep JSON", json(&"[".repeat(1_000_000))),
        ] {
            fs::write(&path, bytes).unwrap();
            let error = read(&path).expect_err(content).to_string();
            assert!(error.contains(" is damaged: "), "{content}: {error}");
        }
        let error = read(folder.path()).unwrap_err().to_string();
        assert!(error.contains("is damaged: it is no file"), "{error}");
    }

    #[test]
    fn a_checkpoint_that_is_not_finite_is_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("checkpoint");
        let largest = Tensor::new(&[f32::MAX, -f32::MAX, 1e-45], &Device::Cpu).unwrap();
        let whole = Tensor::new(&[u32::MAX, 0], &Device::Cpu).unwrap();
        let empty = Tensor::zeros((0, 3), DType::F64, &Device::Cpu).unwrap();
        let mut tensors = vec![("c", largest), ("d", whole), ("e", empty)];
        let read = |tensors: &[(&str, Tensor)]| {
            let named = tensors.iter().map(|(name, it)| ((*name).to_owned(), it.clone()));
            write(&path, &state(0.1), &configuration(), &named.collect::<Vec<_>>()).unwrap();
            read(&path).map(|(state, ..)| state).map_err(|error| error.to_string())
        };
        assert_eq!(read(&tensors), Ok(state(0.1)));
        for (value, dtype) in
            [(f64::NAN, DType::F32), (f64::INFINITY, DType::F64), (f64::NEG_INFINITY, DType::BF16)]
        {
            let value = Tensor::new(&[[1.0, value], [2.0, 3.0]], &Device::Cpu).unwrap();
            tensors.truncate(3);
            tensors.push(("mean/f", value.to_dtype(dtype).unwrap()));
            let error = read(&tensors).unwrap_err();
            assert!(error.ends_with("checkpoint is damaged: mean/f is not finite"), "{error}");
        }
    }

    #[test]
    fn another_format_is_refused_by_name_even_if_it_looks_otherwise() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("checkpoint");
        let tensors: BTreeMap<_, _> = tensors().into_iter().collect();
        let error = |texts: &[(&str, &str)]| {
            let texts = texts.iter().map(|(key, text)| ((*key).to_owned(), (*text).to_owned()));
            let bytes = safetensors::serialize(&tensors, Some(texts.collect())).unwrap();
            fs::write(&path, bytes).unwrap();
            read(&path).unwrap_err().to_string()
        };
        let text = |format: u64| format!(r#"{{"format":{format},"new":"fields"}}"#);
        let [one, two, three, four] = [1, 2, 3, 4].map(text);
        let [of_three, of_four] = [&three, &four].map(|header| digest(header, &tensors));
        for (texts, reason) in [
            (
                [(HEADER, &*four), (DIGEST, &*of_four)],
                " is of format 4, this program reads format 3",
            ),
            ([(HEADER, &*two), ("sha256", "00")], " is of format 2, this program reads format 3"),
            (
                [(HEADER, &*one), ("checkpoint-sha256", "00")],
                " is of format 1, this program reads format 3",
            ),
            (
                [(HEADER, &*three), ("sha256", "00")],
                "its content is not the content that was written",
            ),
            (
                [(HEADER, &*four), (DIGEST, &*of_three)],
                "its content is not the content that was written",
            ),
            ([(HEADER, &*three), (DIGEST, &*of_three)], "field"),
            ([("a", ""), ("b", "")], "but no checkpoint of this program"),
        ] {
            let error = error(&texts);
            assert!(error.contains(reason), "{texts:?}: {error}");
            let path = format!("checkpoint {} is ", path.display());
            assert!(error.starts_with(&path), "{error}");
            assert_eq!(error.contains("is damaged: "), !reason.contains("is of format"), "{error}");
        }
    }

    #[test]
    fn other_tensors_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("checkpoint");
        let whole = Tensor::new(&[1u32, 2], &Device::Cpu).unwrap();
        write(&path, &state(0.1), &configuration(), &[("a".to_owned(), whole)]).unwrap();
        let (.., values) = read(&path).unwrap();
        let refused = |values| take(&path, &tensors(), values).unwrap_err().to_string();
        let found = "has tensor a U32 [2], this run's network has F64 []";
        assert_eq!(refused(values), format!("checkpoint {} {found}", path.display()));
        written(&path);
        let (.., mut values) = read(&path).unwrap();
        values.remove("b");
        assert!(refused(values).ends_with("has tensor b none, this run's network has F32 [3]"));
        let error = read(&folder.path().join("nothing")).unwrap_err().to_string();
        assert!(error.starts_with("cannot read "), "{error}");
    }
}
