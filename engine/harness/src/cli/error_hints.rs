//! Hints for errors of a GPU's driver and libraries.

/// Error codes of CUDA and its libraries, each with a hint for the user.
const HINTS: [(&str, &str); 5] = [
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

/// Appends the hint to a message with one of these error codes.
pub(super) fn with_hint(message: String) -> String {
    match HINTS.iter().find(|(code, _)| message.contains(code)) {
        Some((_, hint)) => format!("{message}; {hint}"),
        None => message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_gpu_is_explained_and_other_errors_are_left_as_they_are() {
        let driver = r#"rank 0 failed: DriverError(CUDA_ERROR_OUT_OF_MEMORY, "out of memory")"#;
        let message = with_hint(driver.to_owned());
        assert!(
            message.starts_with(driver) && message.contains("smaller --batch-size"),
            "{message}"
        );
        assert_eq!(with_hint("no such file".to_owned()), "no such file");
    }
}
