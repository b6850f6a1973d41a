//! Facts about the machine, and the limits on this process.
//!
//! Most facts are in files of Linux, and other systems do not report them. Tests lay out such files in a folder.

mod cores;
mod memory;

use std::env;
use std::path::PathBuf;

use etcetera::BaseStrategy as _;

pub use cores::{CoreSet, available_cores, fewer_physical_cores};
pub use memory::{Amount, Memory, gigabytes, memory};

/// The environment variable with the folder of Fashion-MNIST.
pub const DATA_FOLDER: &str = "COURSE_DATA_DIR";

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
