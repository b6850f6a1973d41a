//! PyTorch's side of a list: the step that it has to repeat, and the script that executes it.
//!
//! The exercise `ch06_1f1b` has this module, too.

use std::env;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use candle_core::{DType, Device, Tensor};
use concise_wrapper::Model as _;
use concise_wrapper::optimizer::{Momentum, Optimizer as _, Sgd};
use concise_wrapper::weights::Snapshot;
use datasets::loader::Epochs as _;
use datasets::source::LoadedData;
use datasets::{CLASSES, PIXELS};
use harness::machine::default_data_folder;
use model_parallel::layers::Layers;
use split_batch::loader::{ShardLoader, Shards};

/// The samples of a micro-batch.
const ROWS: usize = 8;
/// The layers of a unit, and their outputs.
const LAYERS: usize = 2;
const HIDDEN: usize = 24;
const LEARNING_RATE: f64 = 0.1;
const SEED: u64 = 1;

/// The most bytes of a list.
const MOST_BYTES: u64 = 1 << 20;

const SCRIPT: &str = "tests/peers/pipeline_lists.py";

const INSTALL: &str =
    "`cargo xtask peers --set-up` installs one with PyTorch, and PYTHON=FILE names another";

/// Writes NAME.npz beside the list NAME.csv: one step in f64 of a dense stack with as many units as the list has, on as many
/// micro-batches. Fails when the file is no list, or NAME.npz cannot be written.
pub fn write_step(list: &Path) -> Result<(), String> {
    let written = || {
        let metadata = fs::metadata(list)?;
        if !metadata.is_file() || metadata.len() > MOST_BYTES {
            return Err("it is no file of at most 1 MB".into());
        }
        let [units, micro_batches] = size(&fs::read_to_string(list)?)?;
        let (step, partial) = (list.with_extension("npz"), list.with_extension("npz.partial"));
        let written = Tensor::write_npz(&one_device(units, micro_batches)?, &partial);
        written.inspect_err(|_| drop(fs::remove_file(&partial)))?;
        Ok(fs::rename(partial, step)?)
    };
    written().map_err(|error: Box<dyn Error>| format!("{}: {error}", list.display()))
}

/// Returns the number of units and of micro-batches. A cell such as `2B3` has a unit, a pass and a micro-batch.
fn size(list: &str) -> Result<[usize; 2], String> {
    let mut size = [0, 0];
    for cell in list.split([',', '\n', '\r']).filter(|cell| !cell.is_empty()) {
        let numbers = cell.split_once(['F', 'B', 'I', 'W']);
        let numbers = numbers.and_then(|(unit, i)| Some([unit.parse().ok()?, i.parse().ok()?]));
        let Some(numbers @ [0..64, 0..1024]) = numbers else {
            let rule = "a unit from 0 to 63, a pass F, B, I or W, and a micro-batch from 0 to 1023";
            return Err(format!("{cell:?} is not {rule}, such as 2B3"));
        };
        size = [0, 1].map(|it| size[it].max(numbers[it] + 1));
    }
    if size[0] == 0 { Err("there is no pass".to_owned()) } else { Ok(size) }
}

/// Computes the step on one device. Returns images and labels, and each parameter before and after the step, with its gradient.
fn one_device(units: usize, micro_batches: usize) -> Result<Vec<(String, Tensor)>, Box<dyn Error>> {
    let hidden = vec![HIDDEN; LAYERS * units - 1];
    let layers = Layers::dense(&[&[PIXELS], &*hidden, &[CLASSES]].concat())?;
    let network = layers.build(0..layers.len(), SEED, DType::F64, &Device::Cpu)?;
    let batch_size = ROWS * micro_batches;
    let data = LoadedData::draw((Some(batch_size), Some(1))).train;
    let loader = ShardLoader::new(&data, batch_size, SEED, DType::F64, Shards::WHOLE);
    let batch = loader.epoch(1).next().ok_or("there are no images")??;
    let weights = network.weights();
    let before = weights.snapshot()?;
    let gradients = network.backward(&batch)?.gradients;
    Sgd::new(Momentum::default()).step(weights, &gradients, LEARNING_RATE, batch_size)?;
    let names = weights.parameters.iter().map(|named| named.name.clone());
    let gradients: Snapshot = names.zip(gradients).collect();
    let mut tensors = Vec::new();
    for (what, all) in [("before", before), ("gradient", gradients), ("after", weights.snapshot()?)]
    {
        tensors.extend(all.into_iter().map(|(name, it)| (format!("{what}/{name}"), it)));
    }
    let (images, labels) = (batch.shards[0].images.clone(), &batch.shards[0].labels);
    tensors.push(("images".to_owned(), images));
    tensors.push(("labels".to_owned(), labels.to_dtype(DType::I64)?));
    let numbers = [LEARNING_RATE, units as f64, micro_batches as f64];
    let names = ["rate", "units", "micro-batches"].map(str::to_owned);
    for (name, number) in names.into_iter().zip(numbers) {
        tensors.push((name, Tensor::new(&[number], &Device::Cpu)?));
    }
    Ok(tensors)
}

/// Executes lists, each with its [step](write_step), in PyTorch. Prints a line for each. Fails with one line when there is no
/// PyTorch, a list cannot be executed, or a step differs from ours.
pub fn execute(lists: &[PathBuf]) -> Result<(), String> {
    let mut above = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().map(|it| it.join(SCRIPT));
    let script = above.find(|it| it.is_file()).ok_or(format!("{SCRIPT} is missing"))?;
    let python = python();
    let mut command = Command::new(&python);
    command.arg(script).args(lists).stdin(Stdio::null()).stderr(Stdio::piped());
    let ended = command.spawn().and_then(|child| child.wait_with_output());
    let ended =
        ended.map_err(|error| format!("the Python {}: {error}; {INSTALL}", python.display()))?;
    if ended.status.success() {
        return Ok(());
    }
    let errors = String::from_utf8_lossy(&ended.stderr);
    let said: Vec<_> = errors.lines().filter_map(|line| line.strip_prefix("error: ")).collect();
    let last = errors.lines().next_back().unwrap_or("PyTorch failed without a message");
    Err(if said.is_empty() { last.to_owned() } else { said.join("; ") })
}

/// Returns the Python of `PYTHON`, of `cargo xtask peers --set-up`, or of the path.
fn python() -> PathBuf {
    let named = env::var_os("PYTHON").filter(|it| !it.is_empty()).map(PathBuf::from);
    let set_up = || default_data_folder().map(|it| it.with_file_name("peers/bin/python"));
    let found = named.or_else(|| set_up().filter(|it| it.is_file()));
    found.unwrap_or_else(|| PathBuf::from("python3"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_of_a_list_is_the_largest_numbers_of_its_cells() {
        assert_eq!(size("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"), Ok([2, 2]));
        assert_eq!(size("0F0,0I0,0W0\r\n"), Ok([1, 1]));
        for (list, said) in [
            ("", "there is no pass"),
            ("0F0,0X0", "\"0X0\" is not a unit"),
            ("0F", "\"0F\" is not"),
            ("F0", "\"F0\" is not"),
            ("64F0", "\"64F0\" is not"),
            ("0F1024", "\"0F1024\" is not"),
            ("0UNSHARD", "such as 2B3"),
        ] {
            let error = size(list).unwrap_err();
            assert!(error.contains(said), "{list}: {error}");
        }
    }
}
