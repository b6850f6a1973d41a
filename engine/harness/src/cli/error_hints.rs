//! What a GPU's driver says in a word, and what to do about it.

/// Words in errors of CUDA and its libraries, with what they mean to whoever reads them.
const MEANINGS: [(&str, &str); 5] = [
    ("CUDA_ERROR_OUT_OF_MEMORY", FULL),
    ("CUBLAS_STATUS_ALLOC_FAILED", FULL),
    ("CUDNN_STATUS_ALLOC_FAILED", FULL),
    (
        "CUDA_ERROR_NO_BINARY_FOR_GPU",
        "the program's kernels are for another GPU: build it with CUDA_COMPUTE_CAP set to this one's compute capability, \
         without the dot (nvidia-smi --query-gpu=compute_cap --format=csv)",
    ),
    (
        "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
        "the GPU's driver is older than the CUDA that the program was built with: take a newer driver, or an older CUDA",
    ),
];

const FULL: &str = "the GPU's memory is full: take a smaller --batch-size, give fewer devices a share of that GPU, or end \
                    what else is running there (nvidia-smi)";

/// The message, and behind it what it means, where it is one of those words.
pub(super) fn explained(message: String) -> String {
    match MEANINGS.iter().find(|(word, _)| message.contains(word)) {
        Some((_, meaning)) => format!("{message}; {meaning}"),
        None => message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_gpu_is_explained_and_other_errors_are_left_as_they_are() {
        let driver = r#"rank 0 failed: DriverError(CUDA_ERROR_OUT_OF_MEMORY, "out of memory")"#;
        let told = explained(driver.to_owned());
        assert!(told.starts_with(driver) && told.contains("smaller --batch-size"), "{told}");
        assert_eq!(explained("no such file".to_owned()), "no such file");
    }
}
