//! CUDA, cuDNN, NCCL, MPI, mdBook.

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
        .or_hint("NVIDIA's CUDA toolkit has it, and .ci/gpu-toolkit can fetch one to compile with")
}

pub(super) fn cudnn() -> Finding {
    Finding { what: "cuDNN", seen: library("libcudnn.so") }
        .or_hint("only --features cudnn needs it")
}

pub(super) fn nccl() -> Finding {
    Finding { what: "NCCL", seen: library("libnccl.so") }.or_hint("only --features nccl needs it")
}

pub(super) fn mpi() -> Finding {
    Finding { what: "MPI", seen: ask("mpirun", &["--version"]).map(first_line) }
        .or_hint("Open MPI or MPICH have it; ranks that are threads do not need it")
}

pub(super) fn mdbook() -> Finding {
    Finding { what: "mdBook", seen: ask("mdbook", &["--version"]).map(first_line) }
        .or_hint("cargo xtask install-tools")
}
