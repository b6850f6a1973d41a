//! Reading a checkpoint: nothing in it is believed before it has been checked.
//!
//! In this order, so that no number in a file decides how much memory is asked for: sizes against the file's,
//! the header against its digest, the format, the settings against the run's, names and shapes against the
//! network's, and at last the tensors, now known to be as large as the network's own, against their hash.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use candle_core::{DType, Device, Tensor};
use harness::report::counted;
use ops::weights_hash::WeightsHash;
use safetensors::tensor::{Metadata, SafeTensors};

use super::header::{FORMAT, Header, MAX_HEADER, Refusal, Table};
use super::write::kind;
use super::{Configuration, Error};

/// The length of a header, in front of it: a number of 64 bits.
const PREFIX: usize = 8;

/// A checkpoint whose header has been checked.
#[derive(Debug)]
pub(super) struct Checkpoint {
    pub(super) path: PathBuf,
    pub(super) header: Header,
    table: Table,
    /// The file as far as it was read: the prefix and the header.
    begin: Vec<u8>,
    /// Stands after them.
    file: File,
    length: usize,
}

impl Checkpoint {
    /// Opens a file and reads its header.
    ///
    /// # Errors
    ///
    /// [`Error::Io`], [`Error::Damaged`] or [`Error::Format`].
    pub(super) fn open(path: &Path) -> Result<Self, Error> {
        let damaged = |reason: String| Error::Damaged { path: path.to_owned(), reason };
        let io = || Error::io("read", path);
        // Asked before it is opened: to open a pipe is to wait for its writer.
        let about = path.metadata().map_err(io())?;
        if !about.is_file() {
            return Err(damaged("it is no file".to_owned()));
        }
        let length = usize::try_from(about.len()).unwrap_or(usize::MAX);
        if length < PREFIX {
            return Err(damaged(format!("it has {}", counted(length, "byte"))));
        }
        let mut file = File::open(path).map_err(io())?;
        let mut prefix = [0; PREFIX];
        file.read_exact(&mut prefix).map_err(io())?;
        let in_header = usize::try_from(u64::from_le_bytes(prefix)).unwrap_or(usize::MAX);
        if in_header > MAX_HEADER.min(length - PREFIX) {
            return Err(damaged(format!("it has {length} bytes, and {in_header} in its header")));
        }
        let mut begin = prefix.to_vec();
        begin.resize(PREFIX + in_header, 0);
        file.read_exact(&mut begin[PREFIX..]).map_err(io())?;
        let metadata: Metadata = serde_json::from_slice(&begin[PREFIX..])
            .map_err(|error| damaged(format!("its header: {error}")))?;
        if begin.len().checked_add(metadata.data_len()) != Some(length) {
            let expected = metadata.data_len();
            let rest = length - begin.len();
            return Err(damaged(format!("it has {rest} bytes of tensors, not {expected}")));
        }
        let entry = |(name, info): (String, &safetensors::tensor::TensorInfo)| {
            (name, kind(info.dtype, &info.shape))
        };
        let table: Table = metadata.tensors().into_iter().map(entry).collect();
        let texts = metadata.metadata().clone().unwrap_or_default();
        let header = Header::from_metadata(&texts, &table).map_err(|refusal| match refusal {
            Refusal::Damaged(reason) => damaged(reason),
            Refusal::Format(found) => {
                Error::Format { path: path.to_owned(), found, expected: FORMAT }
            }
        })?;
        Ok(Self { path: path.to_owned(), header, table, begin, file, length })
    }

    /// Whether it is of a run of this configuration, with tensors like those of `expected`.
    ///
    /// # Errors
    ///
    /// [`Error::OtherRun`] or [`Error::OtherNetwork`].
    pub(super) fn fits(&self, run: &Configuration, expected: &Table) -> Result<(), Error> {
        let path = self.path.clone();
        if let Some(difference) = run.difference(&self.header.configuration) {
            let super::configuration::Difference { what, there, here } = difference;
            return Err(Error::OtherRun { path, what, there, here });
        }
        let find = |table: &Table, name: &str| {
            table.get(name).map_or_else(|| "none".to_owned(), String::clone)
        };
        for name in expected.keys().chain(self.table.keys()) {
            let (here, there) = (find(expected, name), find(&self.table, name));
            if here != there {
                return Err(Error::OtherNetwork { path, name: name.clone(), there, here });
            }
        }
        Ok(())
    }

    /// Reads the tensors of a checkpoint that [`fits`](Self::fits), into CPU memory.
    ///
    /// # Errors
    ///
    /// [`Error::Io`], or [`Error::Damaged`] when they are not those that were written.
    pub(super) fn tensors(mut self) -> Result<Vec<(String, Tensor)>, Error> {
        let damaged = |reason: String| Error::Damaged { path: self.path.clone(), reason };
        let mut bytes = self.begin;
        let header = bytes.len();
        bytes.resize(self.length, 0);
        self.file.read_exact(&mut bytes[header..]).map_err(Error::io("read", &self.path))?;
        let read = || {
            let file = SafeTensors::deserialize(&bytes).map_err(candle_core::Error::wrap)?;
            let tensor = |(name, view): (&str, safetensors::tensor::TensorView<'_>)| {
                let dtype = DType::try_from(view.dtype())?;
                let tensor =
                    Tensor::from_raw_buffer(view.data(), dtype, view.shape(), &Device::Cpu)?;
                Ok((name.to_owned(), tensor))
            };
            let tensors = file.iter().map(tensor).collect::<candle_core::Result<Vec<_>>>()?;
            let hash = WeightsHash::new(&tensors)?;
            Ok::<_, candle_core::Error>((tensors, hash))
        };
        let (tensors, hash) = read().map_err(|error| damaged(error.to_string()))?;
        if format!("{hash:?}") != self.header.tensors {
            return Err(damaged("its tensors are not those that were written".to_owned()));
        }
        Ok(tensors)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use harness::records::TrainerState;

    use super::super::write::{table, write};
    use super::*;

    fn tensors() -> Vec<(String, Tensor)> {
        let tensor = |values: &[f32]| Tensor::new(values, &Device::Cpu).unwrap();
        let scalar = Tensor::new(0.1f64, &Device::Cpu).unwrap();
        vec![("b".to_owned(), tensor(&[1.0, -0.0, 3e-40])), ("a".to_owned(), scalar)]
    }

    fn read(path: &Path) -> Result<Vec<(String, Tensor)>, Error> {
        let checkpoint = Checkpoint::open(path)?;
        checkpoint.fits(&Configuration::default(), &table(&tensors()))?;
        checkpoint.tensors()
    }

    #[test]
    fn what_was_written_is_read_and_no_other_byte_sequence_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("checkpoint");
        let hash = WeightsHash::new(&tensors()).unwrap();
        let header = Header::new(&TrainerState::default(), 5, &Configuration::default(), hash);
        write(&path, &header, &tensors()).unwrap();
        assert_eq!(Checkpoint::open(&path).unwrap().header, header);
        assert_eq!(WeightsHash::new(&read(&path).unwrap()).unwrap(), hash);

        let bytes = fs::read(&path).unwrap();
        let refused = |bytes: &[u8], told: &str| {
            fs::write(&path, bytes).unwrap();
            let error = read(&path).expect_err(told);
            assert!(error.is_damage(), "{told}: {error}");
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
    fn what_is_no_number_of_ours_is_no_panic() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("checkpoint");
        let hash = WeightsHash::from([0; 32]);
        let header = Header::new(&TrainerState::default(), 5, &Configuration::default(), hash);
        let whole = Tensor::new(&[1u32, 2], &Device::Cpu).unwrap();
        write(&path, &header, &[("a".to_owned(), whole)]).unwrap();
        let checkpoint = Checkpoint::open(&path).unwrap();
        let error = checkpoint.fits(&Configuration::default(), &table(&tensors())).unwrap_err();
        assert!(error.to_string().ends_with("has tensor a U32 [2], this run's network has F64 []"));
        assert!(checkpoint.tensors().unwrap_err().is_damage());
        assert!(matches!(read(&folder.path().join("nothing")), Err(Error::Io { .. })));
    }
}
