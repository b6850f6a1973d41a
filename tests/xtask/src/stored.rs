//! Files of the checkout, and files that measurements write.

use std::fs;
use std::path::Path;

use anyhow::Context as _;
use harness::report::file;

use crate::root;

/// The text of a file. The name begins below the root of the checkout.
pub fn text(name: &str) -> anyhow::Result<String> {
    let text = fs::read_to_string(root().join(name)).with_context(|| name.to_owned())?;
    // Git can be configured to write the line ends of another system.
    Ok(text.replace("\r\n", "\n"))
}

/// Writes a file and its folder. A file that would be the same is left alone, because cargo would compile the file again. An
/// error names the file.
pub fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    if fs::read_to_string(path).is_ok_and(|old| old == text) {
        return Ok(());
    }
    fs::create_dir_all(path.parent().unwrap_or(path))?;
    file::write(path, |file| file.write_all(text.as_bytes()))
        .with_context(|| path.display().to_string())
}
