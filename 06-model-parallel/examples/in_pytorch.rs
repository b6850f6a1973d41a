//! One step of a pipeline, and everything that PyTorch's pipelining runtime needs to repeat the step:
//! `cargo run --release -p model-parallel --example in_pytorch -- 1f1b --stages 2 --micro-batches 4 target/1f1b`.
//!
//! The folder gets two files. `list.csv` is the schedule in PyTorch's format. `step.npz` has the images, the labels, and each
//! parameter of a dense stack before and after the step, with its gradient. `tests/peers/pipeline_lists.py` reads the folder.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Context as _;
use candle_core::{DType, Device, Tensor};
use clap::Parser;
use concise_wrapper::optimizer::{Momentum, Optimizer as _, Sgd};
use concise_wrapper::weights::Snapshot;
use concise_wrapper::{Error, Model as _};
use datasets::loader::Epochs as _;
use datasets::source::LoadedData;
use datasets::{CLASSES, PIXELS, SAMPLE};
use devices::DevicePlan;
use harness::cli::{self, UsageError};
use harness::report::line;
use model_parallel::layers::Layers;
use model_parallel::mesh::Mesh;
use model_parallel::partition::cut;
use model_parallel::pipeline::{Kind, UNBOUNDED, Worker, check};
use params_and_allreduce::communicator::Communicator as _;
use params_and_allreduce::thread::{DEFAULT_TIMEOUT, run_ranks};
use split_batch::loader::ShardLoader;

/// The samples of a micro-batch.
const ROWS: usize = 8;
const HIDDEN: usize = 24;
const LEARNING_RATE: f64 = 0.1;
const SEED: u64 = 1;

/// Executes one step of a schedule, and writes the step for PyTorch.
#[derive(Debug, Parser)]
struct Arguments {
    /// Schedule: naive, gpipe, 1f1b, interleaved:CHUNKS or zb-h1
    schedule: Kind,

    /// Folder for list.csv and step.npz
    folder: PathBuf,

    /// Stages, each on a device
    #[arg(long, default_value_t = 2, value_parser = cli::whole::<usize>(1..=8))]
    stages: usize,

    /// Micro-batches of the batch
    #[arg(long, default_value_t = 4, value_parser = cli::whole::<usize>(1..=64))]
    micro_batches: usize,
}

fn main() -> ExitCode {
    cli::prepare();
    cli::conclude(run(&Arguments::parse()))
}

fn run(flags: &Arguments) -> anyhow::Result<()> {
    let Arguments { schedule: kind, folder, stages, micro_batches } = flags;
    let schedule = kind.schedule(*stages, *micro_batches).map_err(UsageError::new)?;
    let list = schedule.to_pytorch();
    let checked = check(schedule, UNBOUNDED)?;
    let parts = stages * kind.chunks();
    // Two layers for each part.
    let layers = Layers::dense(&[&[PIXELS], &*vec![HIDDEN; 2 * parts - 1], &[CLASSES]].concat())?;
    let cut = cut(&vec![1.0; layers.len()], parts)?;
    let batch_size = ROWS * micro_batches;
    let data = LoadedData::draw((Some(batch_size), Some(1))).train;

    let plan = DevicePlan::slices(*stages)?;
    let results = run_ranks(&plan, DEFAULT_TIMEOUT, |rank| {
        let own = checked.schedule().parts(rank.rank());
        let build = |part: usize| layers.build(cut[part].clone(), SEED, DType::F64, rank.device());
        let chunks = own.map(build).collect::<Result<_, _>>()?;
        let mesh = Mesh::pipeline(*stages);
        let worker = Worker::new(&checked, chunks, rank.into(), mesh, &SAMPLE, Instant::now())?;
        let before = worker.weights().snapshot()?;
        let loader = ShardLoader::new(&data, batch_size, SEED, DType::F64, worker.hosts());
        let batch = loader.epoch(1).next().context("the data set is empty").map_err(other)??;
        let gradients = worker.backward(&batch)?.gradients;
        let sgd = &mut Sgd::new(Momentum::default());
        sgd.step(worker.weights(), &gradients, LEARNING_RATE, batch_size)?;
        let names = worker.weights().parameters.iter().map(|named| named.name.clone());
        let gradients: Snapshot = names.zip(gradients).collect();
        let mut tensors = Vec::new();
        let all = [("before", before), ("gradient", gradients)];
        for (kind, mine) in all.into_iter().chain([("after", worker.weights().snapshot()?)]) {
            let whole = worker.whole(mine)?.unwrap_or_default();
            tensors.extend(whole.into_iter().map(|(name, it)| (format!("{kind}/{name}"), it)));
        }
        let join = |of: Vec<&Tensor>| Tensor::cat(&of, 0);
        let images = join(batch.shards.iter().map(|shard| &shard.images).collect())?;
        let labels = join(batch.shards.iter().map(|shard| &shard.labels).collect())?;
        tensors.push(("images".to_owned(), images));
        tensors.push(("labels".to_owned(), labels.to_dtype(DType::I64)?));
        Ok::<_, Error>(tensors)
    })?;
    // Rank 0 has the tensors of all stages.
    let mut tensors = results.into_iter().next().unwrap_or_default();
    let number = |number: f64| Tensor::new(&[number], &Device::Cpu);
    tensors.push(("rate".to_owned(), number(LEARNING_RATE)?));
    let first_layers: Vec<u32> = cut.iter().map(|part| part.start as u32).collect();
    tensors.push(("first layers".to_owned(), Tensor::new(first_layers, &Device::Cpu)?));

    let in_folder = || format!("{} cannot be written", folder.display());
    std::fs::create_dir_all(folder).with_context(in_folder)?;
    std::fs::write(folder.join("list.csv"), &list).with_context(in_folder)?;
    Tensor::write_npz(&tensors, folder.join("step.npz")).with_context(in_folder)?;
    Ok(line(format_args!("{list}\n{}: list.csv, step.npz", folder.display()))?)
}

fn other(error: anyhow::Error) -> Error {
    Error::Model(error.into())
}
