//! Facts about the machine, and the limits on this process.
//!
//! Most facts are in files of Linux, and other systems do not report them. Tests lay out such files in a folder.

mod cores;
mod memory;

use std::path::PathBuf;
use std::{env, fs};

use etcetera::BaseStrategy as _;

pub use cores::{CoreSet, available_cores, fewer_physical_cores};
pub use memory::{Amount, Memory, gigabytes, memory};

/// The environment variable with the folder of Fashion-MNIST.
pub const DATA_FOLDER: &str = "COURSE_DATA_DIR";

/// The name of the processor. `None` if the system does not report it.
pub fn processor() -> Option<String> {
    processor_field("model name")
}

/// Numbers that distinguish processors of the same name: `family 25 model 17, cache 1024 KB`. `None` if there are none.
pub fn processor_model() -> Option<String> {
    let [family, model, cache] = ["cpu family", "model", "cache size"].map(processor_field);
    Some(format!("family {} model {}, cache {}", family?, model?, cache?))
}

fn processor_field(name: &str) -> Option<String> {
    let info = fs::read_to_string("/proc/cpuinfo").ok()?;
    let mut fields = info.lines().filter_map(|line| line.split_once(':'));
    fields.find(|(field, _)| field.trim() == name).map(|(_, value)| value.trim().to_owned())
}

/// The usual folder for Fashion-MNIST: `~/.cache/multi-gpu-course/fashion-mnist` on Linux. `None` without a folder for caches.
pub fn default_data_folder() -> Option<PathBuf> {
    let platform = etcetera::base_strategy::choose_native_strategy().ok()?;
    Some(platform.cache_dir().join("multi-gpu-course").join("fashion-mnist"))
}

/// The folder of a run without `--data-dir`: that of the variable [`DATA_FOLDER`], or the [default](default_data_folder).
pub fn data_folder() -> Option<PathBuf> {
    let named = env::var_os(DATA_FOLDER).filter(|folder| !folder.is_empty());
    named.map(PathBuf::from).or_else(default_data_folder)
}
