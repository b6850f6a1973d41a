//! Checkpoints of a run whose state is in chunks: a checkpoint is a *set* of files.
//!
//! Each rank writes its *shard*, a safetensors file. A shard has a chunk of each unit, and the state of the
//! optimizer for the chunk. Rank 0's shard has the buffers, too. Then rank 0 writes the *index*, a checkpoint of
//! stage 5. The index has the progress of the run, all settings, the names and shapes of each unit, and a hash of
//! each shard. No run resumes from a set without an index.
//!
//! A run resumes on any number of ranks: a rank reads its new chunks from all shards that have a part of them. The
//! ranks need one folder, on a file system that all see. Under DDP every rank has everything, and stage 5's
//! checkpoints serve unchanged.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::{fs, io};

use candle_core::safetensors::load_buffer;
use candle_core::{Device, ModuleT, Result as TensorResult, Tensor};
use checkpoints::{Checkpoints, Error as CheckpointError, Folder, read_finite};
use concise_wrapper::weights::{Snapshot, Weights};
use concise_wrapper::{Error, Model as _, Store, replicas, text};
use harness::records::TrainerState;
use harness::report::{Report, file};
use itertools::Itertools as _;
use model_parallel::Executor;
use model_parallel::execute::unit::{Unit as _, refuse};
use model_state::weights_hash::WeightsHash;
use ops::update::overwrite;
use params_and_allreduce::collectives::chunk_range;
use params_and_allreduce::communicator::SharedCommunicator;

use crate::{Sharded, Sharing};

/// The tensor of the index: a hash of each shard, in the order of the ranks.
const HASHES: &str = "shards";

/// The text between the name of the index and the number of a shard.
const SHARD: &str = ".shard-";

/// A folder for the checkpoints of a run on executors of [`Sharded`] units.
pub struct Sets<'a, M> {
    flags: Checkpoints,
    executor: &'a Executor<Sharded<M>>,
}

impl<'a, M: ModuleT> Sets<'a, M> {
    /// The sets of this executor's rank. The configuration in `flags` has the settings that the training loop does
    /// not know, such as the name of the model. It needs neither the sharing nor the units. Fails when ranks share the
    /// layers: the index has the shapes of one part.
    pub fn new(
        mut flags: Checkpoints,
        sharing: Sharing,
        executor: &'a Executor<Sharded<M>>,
    ) -> Result<Self, Error> {
        if executor.parts() > 1 {
            return refuse("a mesh with a tensor axis has no checkpoints in shards".to_owned());
        }
        let settings = &mut flags.configuration;
        settings.extend([("sharing", format!("{sharing:?}").to_lowercase())]);
        for (number, unit) in executor.units().enumerate() {
            let tensors = unit.network().weights().iter();
            let mut tensors = tensors.map(|it| format!("{} {:?}", it.name, it.tensor.dims()));
            let value = format!("{} ({} in a row)", tensors.join(", "), unit.row_len());
            settings.extend([(&*format!("unit {number}"), value)]);
        }
        Ok(Self { flags, executor })
    }

    fn comm(&self) -> &SharedCommunicator {
        self.executor.rank().expect("an executor has a connection")
    }

    /// The length of the row of which a tensor is a chunk, or belongs to a chunk: `mean/unit0.chunk` belongs to
    /// `unit0.chunk`.
    fn row(&self, name: &str) -> Option<usize> {
        let chunk = name.rsplit('/').next()?;
        let mut units = self.executor.units();
        let is_of = |of: &&Sharded<M>| of.owned().parameters.iter().any(|it| it.name == chunk);
        units.find(is_of).map(Sharded::row_len)
    }

    /// The numbers that this rank takes from a shard: their places in its tensor and in the shard's. Of a chunk, these
    /// are the numbers in both chunks. Everything else is in the first shard.
    fn common(
        &self,
        (name, tensor): &(String, Tensor),
        nth: usize,
        shards: usize,
    ) -> Option<[Range<usize>; 2]> {
        let (comm, count) = (self.comm(), tensor.elem_count());
        let chunks = match self.row(name).filter(|_| tensor.rank() == 1) {
            Some(len) => [(comm.world_size(), comm.rank()), (shards, nth)]
                .map(|(chunks, chunk)| chunk_range(len, chunks, chunk)),
            None => [0..count, 0..if nth == 0 { count } else { 0 }],
        };
        let [own, theirs] = &chunks;
        let (start, end) = (own.start.max(theirs.start), own.end.min(theirs.end));
        (start < end).then(|| chunks.map(|chunk| start - chunk.start..end - chunk.start))
    }
}

impl<M: ModuleT> Store for Sets<'_, M> {
    fn flags(&self) -> &Checkpoints {
        &self.flags
    }

    /// Ranks have different chunks.
    fn check(&self, _: &SharedCommunicator, _: &Weights) -> Result<(), Error> {
        Ok(())
    }

    /// Writes this rank's shard. When all ranks have written theirs, rank 0 writes the index.
    fn write(
        &self,
        folder: Option<&Folder>,
        (index, state): (&Path, &TrainerState),
        tensors: &Snapshot,
    ) -> Result<(), Error> {
        let (rank, ranks) = (self.comm().rank(), self.comm().world_size());
        let own = tensors.iter().filter(|(name, _)| rank == 0 || self.row(name).is_some());
        let copy = |(name, it): &(String, Tensor)| Ok((name.clone(), it.to_device(&Device::Cpu)?));
        let own = own.map(copy).collect::<TensorResult<Snapshot>>()?;
        let path = shard(index, rank, ranks);
        let bytes = safetensors::serialize(own.iter().map(|(name, it)| (name, it)), None);
        let bytes = bytes.map_err(io::Error::other);
        let written = bytes.and_then(|bytes| file::write(&path, |file| file.write_all(&bytes)));
        written.map_err(CheckpointError::io("write", &path))?;
        // No rank gets all hashes before all shards are on the disk.
        let hashes = replicas::hashes(&**self.comm(), &own)?;
        if let Some(folder) = folder {
            let hashes = hashes.iter().map(|hash| hash.to_tensor(&Device::Cpu));
            let hashes = Tensor::stack(&hashes.collect::<TensorResult<Vec<_>>>()?, 0)?;
            let mut all = (0..ranks).map(|rank| shard(index, rank, ranks));
            if let Some(elsewhere) = all.find(|path| !path.exists()) {
                let reason = "another rank wrote it to another file system: all ranks need one";
                let reason = io::Error::other(reason);
                return Err(CheckpointError::io("find", &elsewhere)(reason).into());
            }
            folder.write(index, state, &[(HASHES.to_owned(), hashes)])?;
            let removed = remove_without_index(&self.flags.folder);
            removed.map_err(CheckpointError::io("remove shards in", &self.flags.folder))?;
        }
        Ok(self.comm().barrier()?)
    }

    /// Rank 0 finds the newest complete set, and reads all its shards once. Then each rank reads its chunks.
    fn read(
        &self,
        folder: Option<&Folder>,
        tensors: &Snapshot,
        _: Option<&SharedCommunicator>,
        report: &Report<'_>,
    ) -> Result<TrainerState, Error> {
        let found = folder.map(|folder| folder.find(complete, report)).transpose()?;
        let found = text::value_of_rank_0(&**self.comm(), &found.unwrap_or_default())?;
        let (state, (index, hashes)): (TrainerState, (String, Vec<Vec<u8>>)) = found;
        let index = self.flags.folder.join(index);
        for nth in 0..hashes.len() {
            let common = |it| Some((it, self.common(it, nth, hashes.len())?));
            let parts = tensors.iter().filter_map(common).collect_vec();
            if parts.is_empty() {
                continue;
            }
            let shard = read(&index, nth, &hashes)?;
            for ((name, tensor), [to, from]) in parts {
                let value = shard
                    .get(name)
                    .ok_or_else(|| CheckpointError::damaged(&index, "it is not whole"))?;
                let value = value.flatten_all()?.narrow(0, from.start, from.len())?;
                overwrite(&tensor.flatten_all()?.narrow(0, to.start, to.len())?, &value)?;
            }
        }
        for unit in self.executor.units().filter(|unit| !unit.is_freed()) {
            unit.network().weights().set(&unit.whole()?)?;
        }
        Ok(state)
    }
}

/// The file of a rank's shard: `step-00000010.shard-0-of-2.safetensors`.
fn shard(index: &Path, rank: usize, ranks: usize) -> PathBuf {
    index.with_extension(format!("{}{rank}-of-{ranks}.safetensors", &SHARD[1..]))
}

/// Checks all shards of a set. Returns the name of the index, and the hashes of the shards.
fn complete(
    index: &Path,
    mut tensors: BTreeMap<String, Tensor>,
) -> Result<(String, Vec<Vec<u8>>), CheckpointError> {
    let name = index.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let hashes = tensors.remove(HASHES).map(|hashes| hashes.to_vec2::<u8>());
    let Some(Ok(hashes)) = hashes else {
        return Err(CheckpointError::damaged(index, "it has no hashes of shards"));
    };
    (0..hashes.len()).try_for_each(|nth| read(index, nth, &hashes).map(drop))?;
    Ok((name, hashes))
}

/// Reads a shard, and compares it with its hash.
fn read(
    index: &Path,
    nth: usize,
    hashes: &[Vec<u8>],
) -> Result<HashMap<String, Tensor>, CheckpointError> {
    let path = shard(index, nth, hashes.len());
    let bytes = fs::read(&path).map_err(CheckpointError::io("read", &path))?;
    let Ok(tensors) = load_buffer(&bytes, &Device::Cpu) else {
        return Err(CheckpointError::damaged(&path, "it is no safetensors file"));
    };
    let hash = WeightsHash::new(&tensors.clone().into_iter().collect_vec());
    let hash = hash.and_then(|hash| hash.to_tensor(&Device::Cpu)?.to_vec1());
    match hash.is_ok_and(|hash: Vec<u8>| hash == hashes[nth]) {
        true => read_finite(&path, &tensors).map(|()| tensors),
        false => {
            Err(CheckpointError::damaged(&path, "its content is not the content that was written"))
        }
    }
}

/// Removes shards without an index: the shards of surplus sets, and of a set that was not completed.
fn remove_without_index(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let Some((step, _)) = name.split_once(SHARD) else { continue };
        let has_index = folder.join(format!("{step}.safetensors")).exists();
        if step.starts_with("step-") && path.is_file() && !has_index {
            fs::remove_file(&path)?;
        }
    }
    Ok(())
}
