//! CUDA, libraries, MPI, mdBook.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use super::Finding;
use super::probe::{ask, first_line};

/// The variables with the folder of CUDA.
const CUDA: [&str; 3] = ["CUDA_HOME", "CUDA_PATH", "CUDA_ROOT"];

/// The usual folders of libraries.
const LIBRARIES: [&str; 5] = [
    "/usr/local/cuda/lib64",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/local/lib",
];

/// The CUDA compiler: on the PATH, or where the CUDA variables point.
pub(super) fn cuda_toolkit() -> Finding {
    let version = |answer: String| {
        let release = answer.lines().find(|line| line.contains("release"));
        release.unwrap_or(&answer).trim().to_owned()
    };
    let elsewhere = || {
        let homes = CUDA.iter().filter_map(env::var_os).chain(["/usr/local/cuda".into()]);
        homes
            .map(|home| Path::new(&home).join("bin/nvcc"))
            .find_map(|it| ask(it, &["--version"]).ok())
    };
    let seen = ask("nvcc", &["--version"]).or_else(|why| elsewhere().ok_or(why)).map(version);
    let hint = "NVIDIA's CUDA toolkit has it, and .ci/gpu-toolkit can fetch one to compile with";
    Finding::new("CUDA toolkit", seen, hint)
}

/// A program that prints its version.
pub(super) fn program(what: &'static str, name: &str, hint: &str) -> Finding {
    Finding::new(what, ask(name, &["--version"]).map(first_line), hint)
}

/// A file of a shared library, by the beginning of its name (`libnccl.so`): in the folders of the loader, of CUDA, and in
/// the usual ones.
pub(super) fn library(what: &'static str, name: &str, hint: &str) -> Finding {
    let of_loader = ["LD_LIBRARY_PATH", "LIBRARY_PATH"].iter().filter_map(env::var_os);
    let of_loader = of_loader.flat_map(|paths| env::split_paths(&paths).collect::<Vec<_>>());
    let of_cuda = CUDA.iter().filter_map(env::var_os);
    let of_cuda = of_cuda.flat_map(|root| ["lib64", "lib"].map(|lib| Path::new(&root).join(lib)));
    let folders = of_loader.filter(|folder| !folder.as_os_str().is_empty());
    let seen = folders.chain(of_cuda).chain(LIBRARIES.map(PathBuf::from)).find_map(|folder| {
        let files = fs::read_dir(folder).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
        let has_name = |path: &PathBuf| {
            path.file_name().is_some_and(|file| file.to_string_lossy().starts_with(name))
        };
        // The longest name has the version: libnccl.so, libnccl.so.2, libnccl.so.2.28.3.
        files.filter(has_name).max_by_key(|path| path.as_os_str().len())
    });
    let missing =
        || format!("not found (no {name} in LD_LIBRARY_PATH, CUDA_HOME or the usual folders)");
    Finding::new(what, seen.map(|file| file.display().to_string()).ok_or_else(missing), hint)
}
