//! A file of the book that this tool makes.

use anyhow::Context as _;
use harness::report::{file, line};

use crate::checkout;

/// Writes a file, named as from the book's folder, and says so.
pub(crate) fn store(name: &str, text: &str) -> anyhow::Result<()> {
    write(name, text)?;
    line(format_args!("wrote book/{name}"))?;
    Ok(())
}

/// The same without a word.
pub(crate) fn write(name: &str, text: &str) -> anyhow::Result<()> {
    let path = checkout::root().join("book").join(name);
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).with_context(|| format!("{}", folder.display()))?;
    }
    file::write(&path, |file| file.write_all(text.as_bytes()))
        .with_context(|| format!("{}", path.display()))
}
