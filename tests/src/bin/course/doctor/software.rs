//! CUDA, cuDNN, NCCL, MPI, mdBook, and the data.

use std::path::Path;

use super::Finding;
use super::probe::{ask, first_line, library};

/// The CUDA compiler: on the PATH, or where the CUDA variables point.
pub(super) fn cuda_toolkit() -> Finding {
    let version = |answer: String| {
        let release = answer.lines().find(|line| line.contains("release"));
        release.unwrap_or(&answer).trim().to_owned()
    };
    let homes = ["CUDA_HOME", "CUDA_PATH", "CUDA_ROOT"].iter().filter_map(std::env::var_os);
    let elsewhere = || {
        homes
            .map(|home| Path::new(&home).join("bin/nvcc"))
            .chain([Path::new("/usr/local/cuda/bin/nvcc").to_owned()])
            .find_map(|nvcc| ask(nvcc, &["--version"]).ok())
    };
    let seen = match ask("nvcc", &["--version"]) {
        Ok(answer) => Ok(version(answer)),
        Err(why) => elsewhere().map(version).ok_or(why),
    };
    Finding { what: "CUDA toolkit", seen }
}

/// The library of tuned operations, for the feature `cudnn`.
pub(super) fn cudnn() -> Finding {
    Finding { what: "cuDNN", seen: library("libcudnn.so") }
}

/// The library of collectives between GPUs, for the feature `nccl`.
pub(super) fn nccl() -> Finding {
    Finding { what: "NCCL", seen: library("libnccl.so") }
}

/// An MPI launcher.
pub(super) fn mpi() -> Finding {
    Finding { what: "MPI", seen: ask("mpirun", &["--version"]).map(first_line) }
}

/// The program that builds the book.
pub(super) fn mdbook() -> Finding {
    Finding { what: "mdBook", seen: ask("mdbook", &["--version"]).map(first_line) }
}

/// The real images.
pub(super) fn data() -> Finding {
    let seen = Err("not on this machine: the synthetic garments are used".to_owned());
    Finding { what: "Fashion-MNIST", seen }
}
