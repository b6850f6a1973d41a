//! Writing a checkpoint: there whole or not at all, also when the power fails.

use std::path::Path;

use candle_core::Tensor;
use harness::report::file;
use safetensors::Dtype;

use super::Error;
use super::header::{Header, MAX_HEADER, Table};

/// Type and shape of each tensor.
pub(super) fn table(tensors: &[(String, Tensor)]) -> Table {
    let entry = |(name, tensor): &(String, Tensor)| {
        (name.clone(), kind(tensor.dtype().into(), tensor.dims()))
    };
    tensors.iter().map(entry).collect()
}

/// `F32 [6, 1, 5, 5]`
pub(super) fn kind(dtype: Dtype, dims: &[usize]) -> String {
    format!("{dtype} {dims:?}")
}

/// Writes a checkpoint of tensors that are in CPU memory.
///
/// # Errors
///
/// When the file cannot be written: the message names it. Nothing of it is left behind then.
pub(super) fn write(
    path: &Path,
    header: &Header,
    tensors: &[(String, Tensor)],
) -> Result<(), Error> {
    let unwritable = |reason: String| Error::Unwritable { path: path.to_owned(), reason };
    let metadata =
        header.to_metadata(&table(tensors)).map_err(|error| unwritable(error.to_string()))?;
    let size: usize = metadata.values().map(String::len).sum();
    if size > MAX_HEADER / 2 {
        // Within JSON, text becomes longer.
        return Err(unwritable(format!("its header has {size} bytes")));
    }
    let named = tensors.iter().map(|(name, tensor)| (name.as_str(), tensor));
    let bytes = safetensors::serialize(named, Some(metadata))
        .map_err(|error| unwritable(error.to_string()))?;
    file::write(path, |file| file.write_all(&bytes)).map_err(Error::io("write", path))
}
